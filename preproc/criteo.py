"""Raw Criteo click logs to a tf_raw dataset.

    python -m preproc.criteo --train day_0.gz day_1.gz --test day_2.gz --dst criteo_t15 --frequency_threshold 15

    # the ids of that dataset for the days that follow, so that a model trained on it can score them
    python -m preproc.criteo --unlabelled day_3.gz --vocabulary criteo_t15 --dst day_3

Dictionaries come from the training days only: ids from 1 by falling frequency (equal counts by rising value), and 0 for
values that are missing, rare or not in the training days. Rows keep the order of the logs.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from tqdm import tqdm

from dataloading.contract import VOCABULARY, DatasetError, bytes_per_sample, stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec, generator_spec
from dataloading.tf_raw import TfRawWriter, refuse_dataset
from dataloading.vocabularies import read_vocabulary
from preproc.clicklog import LABEL, LogForm, Rows, row_tasks
from preproc.criteo_options import NAME, NEW, SPLITS, Options, parse
from preproc.id_table import write_table_ids
from preproc.in_order import by_size, in_order
from preproc.known_vocabulary import KnownVocabularies, known_vocabularies
from preproc.log_table import log_plus_3
from preproc.resume import DATASET, Progress, dataset_files, link
from preproc.row_order import INPUT, shuffle_file, shuffled_parts
from preproc.staging import Staging
from preproc.stores import Source
from utils.encoding import numerical, transforms
from utils.encoding.vocabulary import build_vocabulary
from utils.errors import run_command
from utils.interrupt import EndedBySignals
from utils.naming import naming

_SMALL = 4_000_000  # values of a table of which two may be in memory


@dataclass
class Tally:
    """What was read into one split."""

    files: list[str]
    rows: int = 0
    clicks: int = 0
    bad_lines: int = 0
    labelled: bool = True
    file_rows: list[int] = field(default_factory=list)  # of each file

    def statistics(self) -> dict[str, Any]:
        """The split's part of the dataset's metadata."""
        clicks = {"click_rate": round(self.clicks / self.rows, 6)} if self.labelled else {}
        return {"files": self.files, "rows": self.rows, **clicks, "bad_lines_skipped": self.bad_lines}

    def described(self) -> str:
        """For people."""
        return f"{self.rows:,} rows" + (f" (click rate {self.clicks / self.rows:.4f})" if self.labelled else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    Raises:
        UserError: a log that is missing, empty, damaged or malformed, a destination that holds a dataset, a value that
            does not fit. Nothing is left at the destination then.
    """
    options = parse(argv, __doc__)
    started = time.monotonic()
    for paths in options.logs.values():
        for path in paths:
            _check_log(path, options.destination)
    refuse_dataset(options.destination, DEFAULT_FILE_NAME, options.overwrite)
    known = options.vocabulary and known_vocabularies(options.vocabulary, options.form.categorical)
    transform = _transform(options, known)
    if options.leak:
        print(f"{NAME}: warning: --dictionary_days all: values of test rows are in the dictionaries, which flatters the model", file=sys.stderr)

    progress = _progress(options)
    with Staging(options.destination, options.splits, progress) as staging:
        progress.start(staging.folder)
        tallies = _stage(staging, options, transform, progress)
        dataset = staging.folder / DATASET
        folder = dataset / VOCABULARY
        folder.mkdir(parents=True, exist_ok=True)
        cardinalities = _vocabularies(staging, options, known, folder, progress)
        spec = generator_spec(cardinalities, options.form.num_numerical, alpha=0.0)
        with TfRawWriter(options.destination, spec, options.splits, overwrite=options.overwrite, unlabelled=[NEW], within=dataset) as writer:
            _write_columns(staging, writer, options, progress)
            if options.ordering != INPUT:
                parts = shuffled_parts(options.ordering, tallies["train"].file_rows)
                _shuffle(writer, parts, options.seed, staging.folder / "shuffled", progress)
            metadata = _metadata(tallies, options, transform, writer.spec, folder)
            progress.publishing(dataset)
            spec = writer.publish(metadata)
    print(_summary(options.destination, spec, tallies, time.monotonic() - started))
    return 0


def _progress(options: Options) -> Progress:
    """What of this run is complete: by the options on which bytes depend, and by all files that are read."""
    read = [path for paths in options.logs.values() for path in paths] + (dataset_files(options.vocabulary) if options.vocabulary else [])
    return Progress(NAME, options.of_the_bytes(), read, options.destination, options.resume)


def _check_log(path: Source, destination: Path) -> None:
    """Find out before anything is written, and not after an hour of work, that a log cannot be read."""
    if not isinstance(path, Path):
        path.open().close()
        return
    if not path.is_file():
        raise DatasetError(
            f"{path}: {'not a file' if path.exists() else 'no such file'}; expected a click log (--train, --valid, --test, --unlabelled)"
        )
    path.open("rb").close()
    for folder in (*SPLITS, VOCABULARY):
        if path.resolve().is_relative_to((destination / folder).resolve()):  # publishing replaces these folders, the log with them
            raise DatasetError(f"{path} lies in {destination / folder}, which the dataset will replace; choose another --dst")


def _transform(options: Options, known: KnownVocabularies | None) -> str:
    """What becomes of the integers: as in the dataset whose ids are used, for a model of that one."""
    if known is None:
        return options.transform
    if options.transform not in (None, known.numerical_transform):
        raise DatasetError(
            f"--numerical_transform {options.transform}: --vocabulary {options.vocabulary} has {known.numerical_transform}, and a model of one reads "
            "nothing of the other; drop the flag"
        )
    return known.numerical_transform


def _stage(staging: Staging, options: Options, transform: str, progress: Progress) -> dict[str, Tally]:
    """Read every log once, but those that an earlier run has read; returns what was found in each split."""
    tallies = {split: Tally([path.name for path in paths], labelled=split != NEW) for split, paths in options.logs.items()}
    places = [(split, place) for split, paths in options.logs.items() for place in range(len(paths))]
    read = _restore(staging, tallies, ["read halved", *(f"read {split} {place}" for split, place in reversed(places))], progress)
    if read == len(places) + 1:
        staging.flush()
        return {split: tallies[split] for split in options.splits}
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
                for found in in_order(partial(_staged, path, block, form, transform) for block in blocks):
                    first_fault = first_fault or next(iter(found.faults), "")
                    bad_lines += len(found.faults)
                    if found.categorical.height:
                        staging.append(split, found.labels, found.numbers, found.categorical)
                        tally.rows += found.categorical.height
                        tally.clicks += 0 if found.labels is None else int(found.labels.sum())
                if bad_lines:
                    bar.write(f"preproc.criteo: {path}: bad lines skipped: {bad_lines}, the first: {first_fault}", file=sys.stderr)
                tally.bad_lines += bad_lines
                tally.file_rows.append(tally.rows - before)
                if not (options.halve and split == "test" and place == len(paths) - 1):  # halving takes from it, so that both are one stage
                    _record(f"read {split} {place}", staging, tallies, progress)
            if not tally.rows:
                raise DatasetError(f"the {split} split holds no rows: every line of {', '.join(tally.files)} is malformed")
    staging.flush()
    if options.halve:
        tallies["valid"] = _halve(staging, tallies["test"])
        _record("read halved", staging, tallies, progress)
    return {split: tallies[split] for split in options.splits}


def _record(stage: str, staging: Staging, tallies: dict[str, Tally], progress: Progress) -> None:
    """Record what has been read so far."""
    if progress.on:
        value = {"staging": staging.state(), "tallies": {split: asdict(tally) for split, tally in tallies.items()}}
        progress.complete(stage, [], value, growing=staging.paths())


def _restore(staging: Staging, tallies: dict[str, Tally], stages: Sequence[str], progress: Progress) -> int:
    """Go back to the last of the stages (the latest first) that an earlier run completed; returns how many are done."""
    for place, stage in enumerate(stages):
        known = progress.done(stage)
        if known and staging.restore(known["value"]["staging"]):
            tallies |= {split: Tally(**tally) for split, tally in known["value"]["tallies"].items()}
            return len(stages) - place
    staging.restore(None)
    return 0


def _halve(staging: Staging, test: Tally) -> Tally:
    """Make the second half of the last test day the valid split; of an odd number of rows the first half has one more."""
    held = test.file_rows[-1] // 2
    if not held:
        raise DatasetError(f"--halve_test: {test.files[-1]} holds {test.file_rows[-1]} rows; expected at least 2")
    clicks = staging.cut("test", test.rows - held, "valid")
    test.rows, test.clicks = test.rows - held, test.clicks - clicks
    return Tally(test.files[-1:], held, clicks)


class Staged(NamedTuple):
    """What is staged of a block of n rows (`Staging.append`), and what was wrong with the lines that were skipped."""

    labels: np.ndarray | None
    numbers: np.ndarray
    categorical: pl.DataFrame
    faults: tuple[str, ...]


def _staged(path: Source, block: Callable[[], Rows], form: LogForm, transform: str) -> Staged:
    rows = block()
    labels = rows.frame[LABEL].to_numpy() if form.labelled else None
    return Staged(labels, _transformed(path, rows, form.numerical, transform), rows.frame.select(form.categorical), rows.faults)


def _transformed(path: Source, rows: Rows, names: Sequence[str], transform: str) -> np.ndarray:
    """The numerical features of a block, `[n, M]` float16."""
    if not names:
        return np.empty((rows.frame.height, 0), np.float16)
    numbers = rows.frame.select(names)
    if transform == "log":
        return log_plus_3(numbers)
    if found := numerical.beyond_float16(numbers):
        # An error under --bad_lines skip too: the line is sound, and large values are too common to be dropped unseen.
        row, name, value = found
        where = f"{path}: line {rows.lines[row]}: field {rows.frame.columns.index(name) + 1} ({name})"
        raise DatasetError(f"{where} is {value}, expected at most ±{numerical.FLOAT16_MAX}, what float16 holds; use --numerical_transform log")
    return numerical.unchanged(numbers)


def _vocabularies(staging: Staging, options: Options, known: KnownVocabularies | None, folder: Path, progress: Progress) -> list[int]:
    """Write the vocabulary of every feature; returns the cardinalities."""
    counted = [split for split in options.splits if split != NEW] if options.leak else ["train"]

    def write(feature: str) -> int:
        path = folder / f"{feature}.parquet"
        if known is None:
            vocabulary = build_vocabulary(staging.values(counted, feature), options.thresholds.of(feature))
        elif options.extend:
            vocabulary = known.extended(feature, staging.values(counted, feature), options.thresholds.of(feature))
        else:
            vocabulary = known.read(feature)
        with naming(path):
            if known is None or options.extend:
                vocabulary.write_parquet(path)
            else:
                shutil.copyfile(stored_vocabulary(known.spec, feature), path)
        bar.update()
        return vocabulary.height + 1

    def once(feature: str) -> int:
        return progress.once(f"vocabulary {feature}", [folder / f"{feature}.parquet"], partial(write, feature))

    rows = staging.num_rows(counted)  # as many different values as a feature can have
    with tqdm(total=len(options.form.categorical), desc="dictionaries", unit="feature", disable=None) as bar:
        return by_size([(rows, partial(once, feature)) for feature in options.form.categorical], _SMALL)


def _write_columns(staging: Staging, writer: TfRawWriter, options: Options, progress: Progress) -> None:
    """Fill the dataset's files: labels and numerical features are moved, ids are written column by column."""
    splits = options.splits

    def once(split: str, path: Path, work: Callable[[], None]) -> None:
        stage = _column(path)
        if split == "train" and options.ordering != INPUT:  # done when it is shuffled
            if not progress.done(stage):
                work()
        else:
            progress.once(stage, [path], work)

    for split in splits:
        files = writer.files(split)
        for source, path in ((staging.labels(split), files.label), (staging.numerical(split), files.numerical)):
            if path is not None:
                once(split, path, partial(link if progress.on else Path.rename, source, path))

    def write(place: int) -> None:
        feature = writer.spec.categorical[place]
        vocabulary = pl.read_parquet(writer.folder / VOCABULARY / f"{feature.name}.parquet", columns=["value", "id"])
        for split in splits:
            path = writer.files(split).categorical[place]
            once(split, path, partial(write_table_ids, staging.columns(split, feature.name), vocabulary, feature.dtype, path))
            bar.update(1 / len(splits))

    sizes = [feature.cardinality for feature in writer.spec.categorical]
    with tqdm(total=len(sizes), desc="ids", unit="feature", disable=None) as bar:
        by_size([(size, partial(write, place)) for place, size in enumerate(sizes)], _SMALL)


def _column(path: Path) -> str:
    return f"column {path.parent.name}/{path.name}"


def _shuffle(writer: TfRawWriter, parts: Sequence[int], seed: int, scratch: Path, progress: Progress) -> None:
    """Bring the training rows into their random order, column by column."""
    columns = zip(writer.files("train").all(), bytes_per_sample(writer.spec).values(), strict=True)
    for path, row_bytes in tqdm(list(columns), desc="shuffling", unit="column", disable=None):
        progress.once(_column(path), [path], partial(shuffle_file, path, row_bytes, parts, seed, scratch))


def _metadata(tallies: dict[str, Tally], options: Options, transform: str, spec: FeatureSpec, folder: Path) -> dict[str, Any]:
    """What the specification says of its making; what is as it always was is left out."""
    found = {
        "source": "criteo",
        **{split: tally.statistics() for split, tally in tallies.items()},
        "frequency_threshold": options.thresholds.described() if options.thresholds else None,
        "numerical_transform": transform,
        transforms.NAME: transforms.criteo_transforms(options.form.numerical, options.form.categorical, transform),
        "vocabulary": f"{VOCABULARY}/<feature>.parquet",
    }
    if options.ordering != INPUT:
        found["output_ordering"] = {"train": options.ordering, "seed": options.seed}
    if options.leak:
        found["dictionary_days"] = "all"
    if options.vocabulary:
        digests = {feature.name: read_vocabulary(folder / f"{feature.name}.parquet", 0, feature.cardinality)[0] for feature in spec.categorical}
        found["vocabulary_use"] = "extended" if options.extend else "frozen"
        found["vocabulary_digests"] = {name: vocabulary.digest for name, vocabulary in digests.items()}
    return found


def _summary(destination: Path, spec: FeatureSpec, tallies: dict[str, Tally], seconds: float) -> str:
    rows = sum(tally.rows for tally in tallies.values())
    splits = ", ".join(f"{split} {tally.described()}" for split, tally in tallies.items())
    skipped = sum(tally.bad_lines for tally in tallies.values())
    tables = f"{len(spec.categorical)} categorical features with {sum(spec.cardinalities):,} table rows"
    return f"{destination}: {splits}; {tables}; {skipped:,} bad lines skipped; {seconds:.1f} s, {rows / seconds:,.0f} rows/s"


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
