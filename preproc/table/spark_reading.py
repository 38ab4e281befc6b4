"""Reading of a table's files into staging by Spark tasks, each of which reads a part of a file; blocks are kept in file order."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dataloading.features import DatasetError
from preproc.reading.files import CSV, JSON_LINES, form_of
from preproc.reading.log_ranges import moved, moved_error, ranges
from preproc.reading.row_groups import row_ranges
from preproc.reading.stores import Source
from preproc.spark.engine import SparkEngine
from preproc.table.columns import Plan
from preproc.table.reading import FileCounts, Reading, rows_of, skipped
from preproc.table.spark_tasks import SPLITS, FilePart, FilePartRead, read_part, spans_lines
from preproc.table.splits import ROWS, TRAIN, SplitRule
from preproc.table.staging import Block, TableStaging

_RANGE_BYTES = 128 << 20  # the most of a file that one task reads, approximately
TASKS_A_CORE = 4  # several small tasks a core, so that all cores finish at about the same time


class Parts:
    """The files of a table in parts, each read by a task.

    Args:
        engine: the engine that runs the tasks.
        staging: the staging to which their blocks are added.
        rule: the rule that divides the rows of the training files.

    Attributes:
        blocks: the group, the block and its number of rows, for all blocks of all groups.
        split_files: files with counts of the values by which the training rows are split.
    """

    def __init__(self, engine: SparkEngine, staging: TableStaging, rule: SplitRule):
        self._engine, self._staging, self._rule = engine, staging, rule
        self.blocks: list[tuple[str, Block, int]] = []
        self.split_files: list[Path] = []
        staging.split_of = rule.split_of if rule.by == ROWS else None

    def read(self, files: Mapping[str, Sequence[Source]], plan: Plan, reading: Reading) -> dict[str, FileCounts]:
        """Read every file into staging. Raises DatasetError for the first fault in file order."""
        whole, fault = self._files(files, plan, reading)
        items = self._ranges(whole, reading)
        found, error = self._engine.map("reading", read_part, [part for _, part in items], "part")
        tallies = {group: FileCounts([path.name for path in paths]) for group, paths in files.items()}
        counts = Counter((part.group, id(source)) for source, part in items)
        number = 0
        for group, paths in files.items():
            for path in paths:
                count = counts[group, id(path)]
                if not count:  # its format could not be inferred; later files were not read
                    raise fault
                parts = found[number : number + count]
                bad_lines, fault_of_lines = self._add_file(group, path, parts, number, tallies[group])
                if error is not None and len(parts) < count:
                    raise moved_error(error, path, sum(part.lines for part in parts), _everywhere(path))
                if bad_lines:
                    print(skipped(path, bad_lines, fault_of_lines), file=sys.stderr)
                number += count
            tallies[group].check_rows(group)
        return tallies

    def _files(
        self, files: Mapping[str, Sequence[Source]], plan: Plan, reading: Reading
    ) -> tuple[list[tuple[Source, FilePart]], DatasetError | None]:
        """Return every file as one part, up to the first whose format cannot be inferred, and that file's fault."""
        found = []
        for group, paths in files.items():
            rows = rows_of(group, plan, self._rule, reading)
            for path in paths:
                try:
                    found.append((path, FilePart(group, rows, _everywhere(path), form_of(path, rows.form))))
                except DatasetError as error:
                    return found, error
        return found, None

    def _ranges(self, whole: Sequence[tuple[Source, FilePart]], reading: Reading) -> list[tuple[Source, FilePart]]:
        """Cut the files into parts for tasks: plain text into byte ranges, Parquet and Arrow files into ranges of row groups.

        A CSV file in which a row may span lines is kept whole.
        """
        total = sum(path.stat().st_size for path, _ in whole)
        size = min(_RANGE_BYTES, max(2 * reading.block_bytes, total // (TASKS_A_CORE * self._engine.parallelism)))
        parts = [[(path, each) for each in _cut(path, part, size)] for path, part in whole]
        quoted = [part for found in parts for _, part in found if len(found) > 1 and part.form.kind == CSV and part.form.quote is not None]
        spans, error = self._engine.map("quotes", spans_lines, quoted, "part")
        if error is not None:
            raise error
        kept_whole = {(part.group, str(part.path)) for part, spans_lines in zip(quoted, spans, strict=True) if spans_lines}
        return [
            pair
            for (path, part), found in zip(whole, parts, strict=True)
            for pair in ([(path, part)] if (part.group, str(part.path)) in kept_whole else found)
        ]

    def _add_file(self, group: str, path: Source, parts: Sequence[FilePartRead], first: int, tally: FileCounts) -> tuple[int, str]:
        """Add the blocks of a file's parts to staging; return the number of bad rows left out and the fault of the first."""
        bad_lines, fault, lines = 0, "", 0
        for number, part in enumerate(parts, first):
            folder = self._engine.task_folder("reading", number)
            before = tally.rows if group == TRAIN and self._rule.by == ROWS else None
            blocks = self._staging.adopt(group, part.blocks, folder, path, before)
            self.blocks += [(group, block, height) for block, height in zip(blocks, part.heights, strict=True)]
            if (folder / SPLITS).exists():
                self.split_files.append(folder / SPLITS)
            tally.unmatched.update(part.unmatched)
            fault = fault or moved(part.first_fault, lines)
            lines, bad_lines, tally.rows = lines + part.lines, bad_lines + part.bad_lines, tally.rows + sum(part.heights)
        tally.bad_lines += bad_lines
        return bad_lines, fault


def _cut(path: Source, whole: FilePart, size: int) -> list[FilePart]:
    """Cut a file into parts of about `size` bytes."""
    if whole.form.kind in (CSV, JSON_LINES):
        return [replace(whole, byte_range=each) for each in ranges(path, size)]
    return [replace(whole, row_range=each) for each in (row_ranges(path, whole.form, size) if isinstance(path, Path) else [None])]


def _everywhere(path: Source) -> Source:
    """Return a file by an absolute path, since executors run in other working directories."""
    return path.absolute() if isinstance(path, Path) else path
