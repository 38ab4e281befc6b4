"""Checkpoints: one TensorStore array a table and a weight, whole tables by feature name, whatever the number of workers.

    PATH/latest                      name of the newest step
    PATH/step-00000060/manifest.json what is inside, sizes and checksums, and the model's configuration; written last
    PATH/step-00000060/dense/…       weights of the dense layers
    PATH/step-00000060/tables/…      one array `[V, D]` for each categorical feature

Arrays are zarr version 3 with a CRC-32C of every chunk, so that a flipped bit is an error and not a wrong prediction. A
step's folder appears under its name only when it is whole.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from utils import manifest
from utils.agreement import compare_weights
from utils.checkpoint_folder import being_written, complete_steps, forget_best, pointed, prune, publish, tidy
from utils.distributed import World
from utils.errors import UserError
from utils.launcher import progressed
from utils.manifest import CheckpointError, DamagedError
from utils.zarr_store import brief, chunk_files, create_array, file_of, open_array, write_rows

__all__ = ["Array", "Checkpoint", "CheckpointError", "Part", "Saving", "newest", "save"]

_CHUNK_BYTES = 32 << 20
_IN_FLIGHT = 8  # chunks being written or read at a time: bounds the memory to 256 MiB, keeps the disk busy


@dataclass(frozen=True)
class Part:
    """A part of an array that this worker writes: all rows of the columns first to last (all columns where `columns` is None).

    `read` gives rows start to stop, once and in order, so that no table is copied whole; what it gives may not change any more.
    With `later` it gives the values of now even while training goes on.
    """

    array: str
    read: Callable[[int, int], np.ndarray]
    columns: tuple[int, int] | None = None
    later: bool = False


@dataclass(frozen=True)
class Array:
    """An array of a checkpoint: its shape, and the number of columns in which it is cut (all of them in one piece where None)."""

    shape: tuple[int, ...]
    column_step: int | None = None

    @property
    def chunk(self) -> tuple[int, ...]:
        """Shape of the chunks it is stored in, about 32 MiB each; no two workers write into the same chunk."""
        rest = self.shape[1:] if self.column_step is None else (self.column_step,)
        row_bytes = 4 * int(np.prod(rest, dtype=np.int64))
        return (max(min(_CHUNK_BYTES // row_bytes, self.shape[0]), 1), *rest)


class Saving:
    """A checkpoint of float32 arrays being written, all workers side by side; `finish` makes it the newest of `path`.

    What has no `later` is read by the constructor. The rest is read and written by `advance`, a little at a time and
    without waiting, between training steps; or at once by `finish`.

    Args:
        path: folder that holds all steps; made where missing.
        step: training steps done.
        arrays: by name, `dense/bottom_mlp/0/kernel` or `tables/cat_0/weights` for instance; the same on every worker.
        parts: what this worker writes; the workers' parts together cover every array once.
        facts: anything JSON can say, kept in the manifest.
        world: the workers; each calls the constructor and `finish` at the same point.
        keep: how many of the newest steps to keep, the best apart; None for all.
        best: this is the best so far: `best` points to it and it is kept until a better one comes.
        digest: a hash of what every worker holds a copy of.
        alone: once this one is visible, all others in the folder are removed: they are of another run.

    Raises:
        UserError: some worker could not write, or the workers' digests differ; nothing has changed then, and every worker knows.
    """

    def __init__(
        self,
        path: str | Path,
        step: int,
        arrays: Mapping[str, Array],
        parts: Iterable[Part],
        facts: Mapping[str, Any],
        world: World,
        *,
        keep: int | None = None,
        best: bool = False,
        digest: str = "",
        alone: bool = False,
    ):
        self._digest, self._alone = digest, alone
        self._path, self._step, self._arrays, self._facts = Path(path), step, arrays, facts
        self._world, self._keep, self._best = world, keep, best
        self._folder = being_written(self._path, step)
        self._error: str | None = None
        self._futures: deque = deque()
        parts = list(parts)
        now, later = [part for part in parts if not part.later], [part for part in parts if part.later]
        self._chunks = self._read_and_write(later)
        self._exhausted = False
        try:
            _together(self._prepare if world.first else None, world, "checkpoint_prepared")
            self._try(lambda: self._write_all(self._read_and_write(now)))
        except BaseException:
            self.abandon()
            raise

    def advance(self, wait: bool = False) -> bool:
        """Read and begin to write as many chunks as may be in flight; with `wait` one more than that, after waiting for its turn.

        Returns:
            whether this worker has nothing left to do but to `finish`: all is written, or something failed.
        """
        self._try(lambda: self._advance(wait))
        return self._error is not None or (self._exhausted and not self._futures)

    def finish(self) -> Path:
        """Write what is left and make the step visible; returns its folder."""
        try:
            self._try(lambda: self._write_all(self._chunks))
            self._world.agree(self._error, "checkpoint_written")
            compare_weights(self._world.everyone(self._digest, "checkpoint_digest"))
            _together(self._publish if self._world.first else None, self._world, "checkpoint_published")
        except BaseException:
            self.abandon()
            raise
        return self._path / self._folder.name.removeprefix(".").removesuffix(".writing")

    def abandon(self) -> None:
        """Leave nothing of it behind."""
        if self._world.first and self._folder.exists():
            tidy(self._path)

    def _prepare(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        tidy(self._path)
        self._folder.mkdir()
        created = [create_array(self._folder / file_of(name), array.shape, array.chunk) for name, array in self._arrays.items()]
        for future in created:
            future.result()

    def _publish(self) -> None:
        shapes = {name: {"shape": list(array.shape), "dtype": "float32"} for name, array in self._arrays.items()}
        about = {"step": self._step, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "arrays": shapes, **self._facts}
        chunks = [f"{file_of(name)}/{chunk}" for name, array in self._arrays.items() for chunk in chunk_files(array.shape, array.chunk)]
        manifest.write(self._folder, about, chunks)
        if self._alone:
            forget_best(self._path)
        publish(self._path, self._step, self._best)
        if self._alone:
            prune(self._path, 1)
        elif self._keep is not None:
            prune(self._path, self._keep)

    def _read_and_write(self, parts: Iterable[Part]) -> Iterator:
        """Futures of the chunks, each read only when it is asked for."""
        for part in parts:
            array, store = self._arrays[part.array], open_array(self._folder / file_of(part.array))
            for start in range(0, array.shape[0], array.chunk[0]):
                values = part.read(start, min(start + array.chunk[0], array.shape[0]))
                if (
                    not np.isfinite(values.sum()) and not np.isfinite(values).all()
                ):  # a sum is three times as fast, and not finite if one value is not
                    raise CheckpointError(
                        f"{part.array}: holds weights that are not finite; nothing is saved. Try a lower --learning_rate or --loss_scale"
                    )
                yield write_rows(store, start, values, part.columns)

    def _write_all(self, chunks: Iterator) -> None:
        for future in chunks:
            self._futures.append(future)
            progressed()
            while len(self._futures) >= _IN_FLIGHT:
                self._futures.popleft().result()
        while self._futures:
            self._futures.popleft().result()
            progressed()

    def _advance(self, wait: bool) -> None:
        if wait and self._futures:
            self._futures.popleft().result()
        while self._futures and self._futures[0].done():
            self._futures.popleft().result()
        while len(self._futures) < _IN_FLIGHT and not self._exhausted:
            future = next(self._chunks, None)
            self._exhausted = future is None
            if future is not None:
                self._futures.append(future)

    def _try(self, action: Callable[[], None]) -> None:
        """Do something unless something has failed already; remember what fails for `finish`."""
        if self._error is not None:
            return
        try:
            action()
        except UserError as problem:
            self._error = str(problem)
        except OSError as problem:
            self._error = _of_system(problem)
        except ValueError as problem:  # TensorStore's word for a full disk, too
            self._error = f"{self._path}: the checkpoint could not be written: {brief(problem)}"


def save(path: str | Path, step: int, arrays: Mapping[str, Array], parts: Iterable[Part], facts: Mapping[str, Any], world: World, **options) -> Path:
    """Write a checkpoint at once; returns the step's folder. See `Saving`."""
    return Saving(path, step, arrays, parts, facts, world, **options).finish()


def _together(action: Callable[[], None] | None, world: World, name: str) -> None:
    """Do something, then hear whether every worker managed to; raises UserError on all where one did not."""
    error = None
    try:
        if action:
            action()
    except UserError as problem:
        error = str(problem)
    except OSError as problem:
        error = _of_system(problem)
    except ValueError as problem:
        error = f"the checkpoint could not be written: {brief(problem)}"
    world.agree(error, name)


def _of_system(problem: OSError) -> str:
    return f"{problem.filename or 'checkpoint'}: {problem.strerror or problem}"


def newest(path: str | Path) -> "Checkpoint | None":
    """The newest complete checkpoint of a folder; None where there is none yet."""
    steps = complete_steps(Path(path))
    return Checkpoint(steps[0]) if steps else None


class Checkpoint:
    """A checkpoint opened for reading.

    Args:
        path: a step's folder; the folder that holds the steps: then the newest complete one; or a file in it that names a
            step, `…/best`.

    Raises:
        CheckpointError: there is none, its manifest cannot be read, or a file has not the size or the checksum it should have.
    """

    def __init__(self, path: str | Path):
        self.folder = _find(Path(path))
        self.manifest = manifest.read(self.folder)
        try:
            self._arrays = {name: tuple(int(size) for size in facts["shape"]) for name, facts in self.manifest["arrays"].items()}
            if any(len(shape) == 0 or min(shape) < 1 for shape in self._arrays.values()):
                raise ValueError("an array has no shape")
            self.step = int(self.manifest["step"])  # the training steps done
            manifest.check_files(self.folder, self.manifest)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DamagedError(
                self.folder, f"{self.folder}/{manifest.NAME}: cannot be read ({manifest.brief_cause(error)}); the checkpoint is damaged"
            ) from None

    @property
    def identity(self) -> str:
        """Which checkpoint it is: the step's name and the checksum of its manifest."""
        return f"{self.folder.name} ({manifest.checksum(self.manifest)})"

    def names(self, prefix: str) -> list[str]:
        """Names of the arrays that start with `prefix`."""
        return [name for name in self._arrays if name.startswith(prefix)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an array. Raises CheckpointError where there is none of that name."""
        if name not in self._arrays:
            raise CheckpointError(f"{self.folder}: holds no array {name}; it is of another model or damaged")
        return self._arrays[name]

    def read(self, name: str) -> np.ndarray:
        """A whole array."""
        return np.concatenate([rows for _, rows in self.read_rows(name)]) if self.shape(name)[0] else np.empty(self.shape(name), np.float32)

    def read_rows(self, name: str, columns: tuple[int, int] | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """An array, or some of its columns, by blocks of rows: (first row, `[n, …]`), the next blocks being read meanwhile.

        Raises:
            CheckpointError: the array is missing, of another shape than the manifest says, or a chunk's checksum is wrong.
        """
        shape = self.shape(name)
        chosen = () if columns is None else (slice(*columns),)
        try:
            store = open_array(self.folder / file_of(name))
            if tuple(store.shape) != shape:
                raise ValueError(f"shape {list(store.shape)}, the manifest says {list(shape)}")
            rows = store.chunk_layout.read_chunk.shape[0]
            starts = iter(range(0, shape[0], rows))
            pending: deque = deque()
            while True:
                while len(pending) < _IN_FLIGHT and (start := next(starts, None)) is not None:
                    pending.append((start, store[(slice(start, min(start + rows, shape[0])), *chosen)].read()))
                if not pending:
                    return
                start, future = pending.popleft()
                yield start, future.result()
        except (ValueError, OSError) as error:
            raise DamagedError(self.folder, f"{self.folder}/{file_of(name)}: {brief(error)}; the checkpoint is damaged") from None

    def verify(self, world: World) -> None:
        """Read everything, the workers side by side, and compare all checksums.

        Raises:
            UserError: something is damaged; on every worker.
        """

        def mine() -> None:
            for name in self.names("")[world.rank :: world.size]:
                for _ in self.read_rows(name):
                    pass

        _together(mine, world, "checkpoint_verified")


def _find(path: Path) -> Path:
    if (path / manifest.NAME).is_file():
        return path
    if path.is_file() and (named := pointed(path)) is not None:
        return named
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; expected a checkpoint (--save_checkpoint_path writes one)")
    steps = complete_steps(path)
    if not steps:
        raise CheckpointError(f"{path}: holds no checkpoint (no step-… folder with a manifest.json); --save_checkpoint_path writes one")
    return steps[0]
