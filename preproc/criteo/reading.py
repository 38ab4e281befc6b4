"""Reading of click logs into staging in this process; a run with `--resume` continues after the last log that an earlier run has read."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

from tqdm import tqdm

from dataloading.features import DatasetError
from preproc.criteo.clicklog import row_tasks
from preproc.criteo.options import Options
from preproc.criteo.rows import SplitCounts, skipped, staged
from preproc.criteo.staging import Staging
from preproc.shared.in_order import in_order
from preproc.shared.resume import Progress


def read_logs(staging: Staging, options: Options, transform: str, tallies: dict[str, SplitCounts], progress: Progress) -> None:
    """Read every log once, except those that an earlier run has read, and halve the last test day if `--halve_test` is given.

    Args:
        staging: receives the rows.
        options: options of the run.
        transform: transform of the integers.
        tallies: counts of each split, updated in place.
        progress: progress of the run.

    Raises:
        DatasetError: a line is malformed and not skipped, or a split has no well-formed line.
    """
    places = [(split, place) for split, paths in options.logs.items() for place in range(len(paths))]
    read = _restore(staging, tallies, ["read halved", *(f"read {split} {place}" for split, place in reversed(places))], progress)
    if read == len(places) + 1:
        staging.flush()
        return
    total_bytes = sum(path.stat().st_size for paths in options.logs.values() for path in paths)
    with tqdm(total=total_bytes, desc="reading", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        for split, paths in options.logs.items():
            tally = tallies[split]
            form = replace(options.form, labelled=tally.labelled)
            for place, path in enumerate(paths):
                if (split, place) in places[:read]:
                    bar.update(path.stat().st_size)
                    continue
                bad_lines, first_fault, before = 0, "", tally.rows
                blocks = row_tasks(path, options.block_bytes, options.skip_bad_lines, form, bar.update)
                for found in in_order(partial(staged, path, block, form, transform) for block in blocks):
                    first_fault = first_fault or next(iter(found.faults), "")
                    bad_lines += len(found.faults)
                    if found.categorical.height:
                        staging.append(split, found.labels, found.numbers, found.categorical)
                        tally.rows += found.categorical.height
                        tally.clicks += 0 if found.labels is None else int(found.labels.sum())
                if bad_lines:
                    bar.write(skipped(path, bad_lines, first_fault), file=sys.stderr)
                tally.bad_lines += bad_lines
                tally.file_rows.append(tally.rows - before)
                if not (options.halve and split == "test" and place == len(paths) - 1):  # halving takes its rows: one stage
                    _record(f"read {split} {place}", staging, tallies, progress)
            tally.check_rows(split)
    staging.flush()
    if options.halve:
        tallies["valid"] = halve(staging, tallies["test"])
        _record("read halved", staging, tallies, progress)


def _record(stage: str, staging: Staging, tallies: dict[str, SplitCounts], progress: Progress) -> None:
    """Record what has been read so far."""
    if progress.on:
        value = {"staging": staging.state(), "tallies": {split: asdict(tally) for split, tally in tallies.items()}}
        progress.complete(stage, [], value, growing=staging.paths())


def _restore(staging: Staging, tallies: dict[str, SplitCounts], stages: Sequence[str], progress: Progress) -> int:
    """Restore the state after the last stage that an earlier run completed; `stages` lists the latest first. Return how many are done."""
    for place, stage in enumerate(stages):
        known = progress.done(stage)
        if known and staging.restore(known["value"]["staging"]):
            tallies |= {split: SplitCounts(**tally) for split, tally in known["value"]["tallies"].items()}
            return len(stages) - place
    staging.restore(None)
    return 0


def halve(staging: Staging, test: SplitCounts) -> SplitCounts:
    """Move the second half of the last test day to the valid split; with an odd number of rows the first half has one more."""
    held = test.file_rows[-1] // 2
    if not held:
        raise DatasetError(f"--halve_test: {test.files[-1]} holds {test.file_rows[-1]} rows; expected at least 2")
    clicks = staging.cut("test", test.rows - held, "valid")
    test.rows, test.clicks = test.rows - held, test.clicks - clicks
    return SplitCounts(test.files[-1:], held, clicks)
