"""Writing of checkpoints: a TensorStore array for each table and each weight; tables are whole and named by feature, for any number of workers.

    PATH/latest                      name of the newest step
    PATH/step-00000060/manifest.json content, sizes and checksums, and the model's configuration; written last
    PATH/step-00000060/dense/…       weights of the dense layers
    PATH/step-00000060/tables/…      one array `[V, D]` for each categorical feature
    PATH/step-00000060/vocabulary/…  the dataset's vocabularies, where it has any
    PATH/step-00000060/touched.bin   the rows of each table that a training batch has had so far, one bit a row
    PATH/step-00000060/touched_rows/…  the rows that are stored of a table of which the others are not, see `touched_form`

Arrays are zarr version 3 with a CRC-32C of every chunk, so that a flipped bit is an error and not a wrong prediction. A step's folder gets its
name only when it is complete.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from utils.checkpoint import manifest
from utils.checkpoint.faults import failed, together
from utils.checkpoint.folder import being_written, forget_best, prune, publish, tidy
from utils.checkpoint.kept_files import NO_FILES, KeptFiles, write_checked
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.touched_form import bitmap_name, touched_tables
from utils.checkpoint.zarr_store import IN_FLIGHT, chunk_files, create_array, file_of, open_array, write_rows
from utils.cluster.agreement import compare_weights
from utils.distributed import World
from utils.errors import UserError
from utils.launch import progressed

CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class ArrayPart:
    """A part of an array that this worker writes: all rows of a range of columns (of all columns where `columns` is None).

    `read` returns the rows from start to stop; of an array of touched rows, these count only the touched ones. It is called once for each range, in
    order, so that no table is copied whole. The returned array must not change any more. With `later`, `read` returns the values at the time of the
    checkpoint even while training goes on.
    """

    array: str
    read: Callable[[int, int], np.ndarray]
    columns: tuple[int, int] | None = None
    later: bool = False


@dataclass(frozen=True)
class Array:
    """An array of a checkpoint: its shape, and the width of the column slices that different workers write (None: it is not sliced).

    With `rows`, it holds the touched rows, `shape[0]` of them (0 or more), of a table of so many rows; see `touched_form`.
    """

    shape: tuple[int, ...]
    column_step: int | None = None
    rows: int | None = None

    @property
    def chunk(self) -> tuple[int, ...]:
        """The shape of the chunks, about 32 MiB each; no two workers write to the same chunk."""
        rest = self.shape[1:] if self.column_step is None else (self.column_step,)
        row_bytes = 4 * int(np.prod(rest, dtype=np.int64))
        return (max(min(CHUNK_BYTES // row_bytes, self.shape[0]), 1), *rest)

    @property
    def is_stored(self) -> bool:
        """False where there is nothing to store: no row of the table was touched."""
        return self.rows is None or self.shape[0] > 0

    def described(self) -> dict[str, Any]:
        """Return the array's entry in the manifest."""
        if self.rows is None:
            return {"shape": list(self.shape), "dtype": "float32"}
        return {"shape": [self.rows, *self.shape[1:]], "dtype": "float32", manifest.TOUCHED: self.shape[0]}


@dataclass(frozen=True)
class Among:
    """The place of a checkpoint among those of its folder.

    `keep`: the number of newest steps to keep, besides the best one; None for all. `best`: this is the best so far: the file `best` names it, and it
    is kept until there is a better one. `alone`: all others belong to another run and are removed once this one is visible. `settle`: called with
    the folder before this one is visible, to settle which step is the best there.
    """

    keep: int | None = None
    best: bool = False
    alone: bool = False
    settle: Callable[[Path], None] | None = None


ONE_OF_ALL = Among()


class Saving:
    """A checkpoint of float32 arrays that all workers write together; `finish` makes it the newest of `path`.

    The constructor writes the parts without `later`. The others are written by `advance`, a little at a time and without waiting, between
    training steps, or all at once by `finish`.

    Args:
        path: the folder of all steps; made where it is missing.
        step: the number of training steps done.
        arrays: all arrays by name, `dense/bottom_mlp/0/kernel` or `tables/cat_0/weights` for instance; the same on every worker.
        parts: the parts that this worker writes; those of all workers together cover every array once.
        metadata: JSON values for the manifest; with arrays of touched rows, also `TOUCHED_ROWS`, and `put` writes their bitmaps (`touched_form`).
        world: the workers; each calls the constructor and `finish` at the same point.
        among: the checkpoint's place in its folder.
        digest: a hash of the weights that every worker has a copy of.

    Raises:
        UserError: a worker could not write, or the workers' digests differ; then the folder is unchanged, and all workers raise the error.
    """

    def __init__(
        self,
        path: str | Path,
        step: int,
        arrays: Mapping[str, Array],
        parts: Iterable[ArrayPart],
        metadata: Mapping[str, Any],
        world: World,
        among: Among = ONE_OF_ALL,
        digest: str = "",
    ):
        self._digest, self._among = digest, among
        self._path, self._step, self._arrays, self._metadata = Path(path), step, arrays, metadata
        self._world = world
        self._folder, self._files = being_written(self._path, step), NO_FILES
        self._error: str | None = None
        self._futures: deque = deque()
        parts = list(parts)
        now, later = [part for part in parts if not part.later], [part for part in parts if part.later]
        self._chunks = _chunks(self._folder, arrays, later)
        self._exhausted = False
        try:
            together(self._prepare if world.first else None, world, "checkpoint_prepared", self._path)
            self._try(lambda: self._write_all(_chunks(self._folder, arrays, now)))
        except BaseException:
            self.abandon()
            raise

    def keep(self, files: KeptFiles) -> None:
        """Put files beside the arrays, on the first worker; `finish` raises their error."""
        self._files = files
        if self._world.first:
            self._try(lambda: files.put(self._folder))

    def put(self, name: str, content: bytes | np.ndarray) -> None:
        """Write a small file beside the arrays, with its checksum at the end, on the first worker; `finish` raises its error."""
        if self._world.first:
            self._try(lambda: write_checked(self._folder / name, content))

    def advance(self, wait: bool = False) -> bool:
        """Read chunks and start to write them, as many as may be in flight; with `wait`, first wait for the oldest one, so that there is room.

        Returns:
            true where only `finish` remains: everything is written, or something failed.
        """
        self._try(lambda: self._advance(wait))
        return self._error is not None or (self._exhausted and not self._futures)

    def finish(self) -> Path:
        """Write the rest and make the step visible; return its folder."""
        try:
            self._try(lambda: self._write_all(self._chunks))
            self._settle()
            self._world.agree(self._error, "checkpoint_written")
            compare_weights(self._world.everyone(self._digest, "checkpoint_digest"))
            together(self._publish if self._world.first else None, self._world, "checkpoint_published", self._path)
        except BaseException:
            self.abandon()
            raise
        return self._path / self._folder.name.removeprefix(".").removesuffix(".writing")

    def abandon(self) -> None:
        """Remove all of it from the folder."""
        self._settle()
        if self._world.first and self._folder.exists():
            tidy(self._path)

    def _settle(self) -> None:
        """Wait for chunks still being written after a failure; otherwise they would appear in a folder that is being removed."""
        while self._futures:
            with contextlib.suppress(Exception):  # only the first failure is reported
                self._futures.popleft().result()

    def _prepare(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        tidy(self._path)
        self._folder.mkdir()
        stored = {name: array for name, array in self._arrays.items() if array.is_stored}
        self._futures.extend(create_array(self._folder / file_of(name), array.shape, array.chunk) for name, array in stored.items())
        while self._futures:  # where one fails, `abandon` waits for the others
            self._futures.popleft().result()

    def _publish(self) -> None:
        shapes = {name: array.described() for name, array in self._arrays.items()}
        about = {"step": self._step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "arrays": shapes, **self._metadata}
        chunks = [f"{file_of(name)}/{chunk}" for name, array in self._arrays.items() for chunk in chunk_files(array.shape, array.chunk)]
        manifest.write(self._folder, about, [*chunks, *map(bitmap_name, touched_tables(self._folder, about))])
        if self._among.alone:
            forget_best(self._path)
        elif self._among.settle:
            self._among.settle(self._path)
        self._files.are_in(publish(self._path, self._step, self._among.best))
        if self._among.alone:
            prune(self._path, 1)
        elif self._among.keep is not None:
            prune(self._path, self._among.keep)

    def _write_all(self, chunks: Iterator) -> None:
        for future in chunks:
            self._futures.append(future)
            progressed()
            while len(self._futures) >= IN_FLIGHT:
                self._futures.popleft().result()
        while self._futures:
            self._futures.popleft().result()
            progressed()

    def _advance(self, wait: bool) -> None:
        if wait and self._futures:
            self._futures.popleft().result()
        while self._futures and self._futures[0].done():
            self._futures.popleft().result()
        while len(self._futures) < IN_FLIGHT and not self._exhausted:
            future = next(self._chunks, None)
            self._exhausted = future is None
            if future is not None:
                self._futures.append(future)

    def _try(self, action: Callable[[], None]) -> None:
        """Call an action unless one has failed before; record its error for `finish`."""
        if self._error is not None:
            return
        try:
            action()
        except UserError as problem:
            self._error = str(problem)
        except (OSError, ValueError) as problem:
            self._error = failed(problem, self._path)


def _chunks(folder: Path, arrays: Mapping[str, Array], parts: Iterable[ArrayPart]) -> Iterator:
    """Yield the futures of the chunks; each chunk is read only when its future is requested."""
    for part in parts:
        array = arrays[part.array]
        if not array.is_stored:
            continue
        store = open_array(folder / file_of(part.array))
        for start in range(0, array.shape[0], array.chunk[0]):
            values = part.read(start, min(start + array.chunk[0], array.shape[0]))
            with np.errstate(over="ignore", invalid="ignore"):
                suspicious = not np.isfinite(values.sum())  # three times as fast as a check of each value; the sum is not finite if a value is not
            if suspicious and not np.isfinite(values).all():
                raise CheckpointError(
                    f"{part.array}: holds weights that are not finite; nothing is saved. Try a lower --learning_rate or --loss_scale"
                )
            yield write_rows(store, start, values, part.columns)


def save(
    path: str | Path,
    step: int,
    arrays: Mapping[str, Array],
    parts: Iterable[ArrayPart],
    metadata: Mapping[str, Any],
    world: World,
    among: Among = ONE_OF_ALL,
    files: KeptFiles = NO_FILES,
) -> Path:
    """Write a whole checkpoint and return the step's folder; see `Saving`."""
    saving = Saving(path, step, arrays, parts, metadata, world, among)
    saving.keep(files)
    return saving.finish()
