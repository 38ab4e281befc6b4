"""`preproc.criteo` on Spark: executors read, count and assign ids in tasks; the driver does the rest as on one machine."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from dataloading.feature_spec import Categorical
from dataloading.tf_raw import TfRawWriter
from preproc.criteo.known_vocabulary import KnownVocabularies
from preproc.criteo.options import NEW, Options
from preproc.criteo.rows import SplitCounts, skipped
from preproc.criteo.sorted_ids import IDS, VALUES, value_ranges
from preproc.criteo.spark_tasks import COUNTS, LABELS, NUMBERS, LogPartRead, Numbering, Reading, Sorting, number_part, read_part, sort_part
from preproc.criteo.staging import Staging
from preproc.reading.log_ranges import moved, moved_error, ranges
from preproc.reading.stores import Source
from preproc.shared.joining import join_files
from preproc.shared.negatives import TRAIN, KeptRows
from preproc.spark.dictionaries import Dictionaries
from preproc.spark.engine import SparkEngine

_RANGE_BYTES = 128 << 20  # the most bytes of a plain log that a task reads
_TASKS_A_CORE = 4  # several, so that all cores finish at about the same time
TABLE_VALUES = 1 << 24  # the largest dictionary that is a hash table in an executor's memory, of up to 268 MB; larger ones are searched in files


class SparkCriteo:
    """The steps of a run that executors perform, in this order: `stage`, `dictionaries`, `write_ids`.

    Args:
        engine: running Spark engine.
        options: options of the run.
        staging: staging of the run, in a folder that all executors see.
    """

    def __init__(self, engine: SparkEngine, options: Options, staging: Staging):
        self._engine, self._options, self._staging = engine, options, staging
        self._counts = 0

    def stage(self, tallies: Mapping[str, SplitCounts], transform: str) -> None:
        """Read every log into the staging, and count rows and values. Raises DatasetError for the first fault in the order of the logs."""
        logs, most = self._options.logs, self._range_bytes()
        items = {split: [list(self._parts(split, path, transform, most)) for path in paths] for split, paths in logs.items()}
        found, error = self._engine.map("reading", read_part, [item for files in items.values() for parts in files for item in parts], "part")
        number = 0
        for split, paths in logs.items():
            for path, asked in zip(paths, items[split], strict=True):
                parts = len(asked)
                here = found[number : number + parts]
                if error is not None and len(here) < parts:
                    raise moved_error(error, path, sum(part.lines for part in here), _everywhere(path))
                self._add_log(split, path, here, number, tallies[split])
                number += parts
            tallies[split].check_rows(split)

    def _range_bytes(self) -> int:
        """Return the number of bytes of a plain log that a task reads."""
        total = sum(log.stat().st_size for logs in self._options.logs.values() for log in logs)
        return min(_RANGE_BYTES, max(2 * self._options.block_bytes, total // (_TASKS_A_CORE * self._engine.parallelism)))

    def _parts(self, split: str, path: Source, transform: str, range_bytes: int) -> Iterator[Reading]:
        options = self._options
        makes = options.thresholds is not None
        counted = makes and split != NEW and (split == "train" or options.leak)
        form = replace(options.form, labelled=split != NEW)
        for part in ranges(path, range_bytes):
            yield Reading(_everywhere(path), part, form, transform, options.block_bytes, options.skip_bad_lines, counted)

    def _add_log(self, split: str, path: Source, parts: Sequence[LogPartRead], first: int, tally: SplitCounts) -> None:
        bad_lines, fault, lines, before = 0, "", 0, tally.rows
        for number, part in enumerate(parts, first):
            folder = self._engine.task_folder("reading", number)
            self._staging.adopt(split, folder / LABELS, folder / NUMBERS, [(folder / name, rows) for name, rows in part.chunks])
            fault = fault or moved(part.first_fault, lines)
            lines += part.lines
            bad_lines += part.bad_lines
            tally.rows += part.rows
            tally.clicks += part.clicks
            self._counts += part.counts
        if bad_lines:
            print(skipped(path, bad_lines, fault), file=sys.stderr)
        tally.bad_lines += bad_lines
        tally.file_rows.append(tally.rows - before)

    def dictionaries(self, known: KnownVocabularies | None) -> Dictionaries:
        """Make dictionaries of the values that `stage` counted; known values, where there are some, come first."""
        features = self._options.form.categorical
        thresholds = [self._options.thresholds.of(feature) for feature in features]
        old = known and {place: known.scan(feature) for place, feature in enumerate(features)}
        return Dictionaries(self._engine, f"reading-*/{COUNTS}-*.parquet", self._counts, thresholds, old)

    def write_ids(self, vocabularies: Path, writer: TfRawWriter, kept: KeptRows | None) -> None:
        """Write the dataset's files of ids.

        Args:
            vocabularies: folder of `FEATURE.parquet`.
            writer: writer of the dataset.
            kept: training rows that are written; None for all.
        """
        features = writer.spec.categorical
        # Long tasks start first, so that the last ones to run are short.
        largest_first = sorted(range(len(features)), key=lambda place: -features[place].cardinality)
        parts = [(place, pieces) for place in largest_first for pieces in self._pieces(len(features))]
        files = {place: self._dictionary(features[place], vocabularies.absolute()) for place in largest_first}
        items = [Numbering(features[place].name, features[place].dtype, files[place], pieces) for place, pieces in parts]
        _, error = self._engine.map("ids", number_part, items, "part")
        if error is not None:
            raise error
        for place in largest_first:
            for split in self._options.splits:
                numbers = [number for number, (other, pieces) in enumerate(parts) if other == place and split in dict(pieces)]
                files_of_ids = [self._engine.task_folder("ids", number) / f"{split}.bin" for number in numbers]
                (join_files if kept is None or split != TRAIN else kept.join)(files_of_ids, writer.files(split).categorical[place])

    def _pieces(self, features: int) -> list[list[tuple[str, list[Path]]]]:
        """Divide the rows of all splits into parts of about equal size, one for each task of a feature; return the splits and files of each."""
        chunks = [(split, path.absolute(), rows) for split in self._options.splits for path, rows in self._staging.chunks(split)]
        parts = min(len(chunks), -(-_TASKS_A_CORE * self._engine.parallelism // features))
        ends = list(accumulate(rows for _, _, rows in chunks))
        found: list[dict[str, list[Path]]] = [{} for _ in range(parts)]
        for (split, path, _), end in zip(chunks, ends, strict=True):
            found[-(-end * parts // ends[-1]) - 1].setdefault(split, []).append(path)
        return [list(part.items()) for part in found if part]

    def _dictionary(self, feature: Categorical, vocabularies: Path) -> Path:
        """Return the dictionary in which a task looks ids up: the vocabulary, or a folder of sorted files if it is too large for a table."""
        vocabulary, values = vocabularies / f"{feature.name}.parquet", feature.cardinality - 1
        if values <= TABLE_VALUES:
            return vocabulary
        job, folder = f"sorting_{feature.name}", self._engine.folder / f"sorted-{feature.name}"
        items = [Sorting(vocabulary, low, high) for low, high in value_ranges(values, TABLE_VALUES)]
        _, error = self._engine.map(job, sort_part, items, "part")
        if error is not None:
            raise error
        folder.mkdir()
        for name in (VALUES, IDS):
            join_files([self._engine.task_folder(job, number) / name for number in range(len(items))], folder / name)
        return folder


def _everywhere(path: Source) -> Source:
    """Return a source by a name that does not depend on the working directory of a process."""
    return path.absolute() if isinstance(path, Path) else path
