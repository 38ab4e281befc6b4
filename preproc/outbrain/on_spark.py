"""`preproc.outbrain` on Spark: executors parse raw rows, collect statistics and make features; the driver does the rest as on one machine."""

import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawWriter
from preproc.outbrain.files import RawFiles
from preproc.outbrain.fit import Fitted
from preproc.outbrain.joined import Documents
from preproc.outbrain.rows import features
from preproc.outbrain.spark_tasks import Piece, RawFilePart, RawFilePartRead, column_file, read_part, write_piece
from preproc.outbrain.staging import StagedClicks
from preproc.reading.log_ranges import moved, moved_error, ranges
from preproc.shared.joining import join_files
from preproc.spark.engine import SparkEngine
from preproc.spark.shared_objects import save_shared

_RANGE_BYTES = 128 << 20  # the most bytes of a plain file that a task reads
TASKS_A_CORE = 4  # several, so that all cores finish at about the same time
PIECE_ROWS = 1 << 22  # the most rows of which a task makes the features


class SparkFiles(RawFiles):
    """The raw files, read in parts by executors: the same rows in the same order, and the same errors, but other blocks.

    Args:
        engine: running Spark engine.
        paths, skip_bad_lines, block_bytes: see `RawFiles`.
    """

    def __init__(self, engine: SparkEngine, paths: Mapping[str, Path], skip_bad_lines: bool, block_bytes: int):
        super().__init__(paths, skip_bad_lines, block_bytes)
        self._engine = engine

    def _read(self, table: str, work: Callable[[pl.DataFrame], object]) -> Iterator[tuple[int, Sequence[str], object]]:
        shared = self._engine.folder / f"work-{table}"
        save_shared(work, shared)  # with the indices of documents, or of displays and ads, in which it looks rows up
        path = self.paths[table]
        size = max(2 * self._block_bytes, path.stat().st_size // (TASKS_A_CORE * self._engine.parallelism))
        job = table
        parts, error = self._map(job, table, ranges(path, min(_RANGE_BYTES, size)), shared)
        if any(part.spans_lines for part in parts):  # parts cannot be cut at line ends: read the whole file in one task
            job = f"whole_{table}"
            parts, error = self._map(job, table, [None], shared)
        if error is not None:
            raise moved_error(error, path, sum(part.lines for part in parts), path.absolute())
        lines = 0
        for number, part in enumerate(parts):
            folder = self._engine.task_folder(job, number)
            for height, faults, name in part.blocks:
                yield height, [moved(fault, lines) for fault in faults], pickle.loads((folder / name).read_bytes())
            lines += part.lines
            shutil.rmtree(folder)

    def _map(self, job: str, table: str, parts: Sequence[tuple[int, int] | None], work: Path) -> tuple[list[RawFilePartRead], Exception | None]:
        items = [RawFilePart(table, self.paths[table].absolute(), part, self._skip, self._block_bytes, work) for part in parts]
        return self._engine.map(job, read_part, items, "part")


def write_features(
    engine: SparkEngine, writer: TfRawWriter, staging: StagedClicks, splits: Sequence[str], found: Fitted, documents: Documents
) -> None:
    """Write the dataset's files of features, labels and groups."""
    spec, shared = writer.spec, engine.folder / "work-features"
    save_shared(partial(_columns, fitted=found, documents=documents, ad_rows=spec.categorical[0].cardinality), shared)
    pieces = [(split, piece) for split in splits for piece in _pieces(staging.files(split), TASKS_A_CORE * engine.parallelism)]
    items = [Piece(split, piece, shared, _dtypes(spec)) for split, piece in pieces]
    _, error = engine.map("features", write_piece, items, "part")
    if error is not None:
        raise error
    for split in splits:
        folders = [engine.task_folder("features", number) for number, item in enumerate(items) if item.split == split]
        for place, target in enumerate(writer.files(split).all()):
            join_files([folder / column_file(place) for folder in folders], target)


def _columns(rows: pl.DataFrame, fitted: Fitted, documents: Documents, ad_rows: int) -> list[np.ndarray]:
    """Return the columns of a block of clicks in the order of `contract.SplitFiles.all`."""
    made = features(rows, fitted, documents, ad_rows)
    return [made.labels, made.numerical, *made.ids, made.groups]


def _dtypes(spec: FeatureSpec) -> list[Any]:
    return [np.bool_, spec.numerical_dtype, *(feature.dtype for feature in spec.categorical), spec.group_dtype]


def _pieces(files: Sequence[tuple[Path, int]], parts: int) -> list[list[tuple[Path, int, int]]]:
    """Divide the rows of files, in order, into at least `parts` parts of equal size, of at most `PIECE_ROWS`; return the file slices of each.

    There are fewer parts where there are fewer rows. A slice is a file, the first of its rows, and the number of rows.
    """
    total = sum(rows for _, rows in files)
    parts = min(total, max(parts, -(-total // PIECE_ROWS)))
    found: list[list[tuple[Path, int, int]]] = [[] for _ in range(parts)]
    bounds = [total * part // parts for part in range(parts + 1)]
    before = 0
    for path, rows in files:
        for part in range(parts):
            first, end = max(bounds[part], before), min(bounds[part + 1], before + rows)
            if first < end:
                found[part].append((path.absolute(), first - before, end - first))
        before += rows
    return found
