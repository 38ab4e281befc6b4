"""Reading of checkpoints, with a check of every chunk's checksum; `writing` describes their layout on disk."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.checkpoint import manifest
from utils.checkpoint.folder import Hold, complete_steps, pointed
from utils.checkpoint.kept_files import TOUCHED_FILE, read_checked
from utils.checkpoint.manifest import CheckpointError, DamagedError
from utils.checkpoint.touched_form import TouchedTable, table_and_kind, touched_tables
from utils.checkpoint.zarr_store import IN_FLIGHT, brief, file_of, open_array
from utils.config.options import BEST, LATEST

if TYPE_CHECKING:
    from utils.distributed import World


def newest(path: str | Path) -> "Checkpoint | None":
    """Open the newest complete checkpoint of a folder; None where there is none yet."""
    steps = complete_steps(Path(path))
    return Checkpoint(steps[0]) if steps else None


class Checkpoint:
    """A checkpoint opened for reading. The run that writes it does not remove it until this object is released or deleted.

    Args:
        path: a step's folder; the folder of the steps; or a file in it that names a step, `…/best`.
        choice: the step to take from a folder of steps: `LATEST`, the newest complete one, or `BEST`, the one named by the file `best`; where
            there is no such file, the newest.

    Raises:
        CheckpointError: there is none, its manifest cannot be read, or the size or checksum of a file is wrong.
    """

    def __init__(self, path: str | Path, choice: str = LATEST):
        self.folder, self._hold = _held(Path(path), choice)
        self.manifest = manifest.read(self.folder)
        try:
            self._arrays = {name: tuple(int(size) for size in described["shape"]) for name, described in self.manifest["arrays"].items()}
            if any(len(shape) == 0 or min(shape) < 1 for shape in self._arrays.values()):
                raise ValueError("an array has no shape")
            self.step = int(self.manifest["step"])  # the training steps done
            self._touched = touched_tables(self.folder, self.manifest)
            manifest.check_files(self.folder, self.manifest)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DamagedError(
                self.folder, f"{self.folder}/{manifest.NAME}: cannot be read ({manifest.brief_cause(error)}); the checkpoint is damaged"
            ) from None

    @property
    def gone(self) -> bool:
        """True where the checkpoint was removed, which can happen on a file system without locks."""
        return manifest.gone(self.folder)

    def release(self) -> None:
        """Allow the removal of the checkpoint; later reads may fail."""
        self._hold.release()

    @property
    def identity(self) -> str:
        """The identity of the checkpoint: the step's name and the checksum of its manifest."""
        return f"{self.folder.name} ({manifest.checksum(self.manifest)})"

    def names(self, prefix: str) -> list[str]:
        """Return the names of the arrays that start with `prefix`."""
        return [name for name in self._arrays if name.startswith(prefix)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array. Raises CheckpointError where there is none of that name."""
        if name not in self._arrays:
            raise CheckpointError(f"{self.folder}: holds no array {name}; it is of another model or damaged")
        return self._arrays[name]

    def read(self, name: str) -> np.ndarray:
        """Read a whole array.

        Raises:
            CheckpointError: see `read_rows`; or it holds variances of which one is negative or not finite, whose scores would be NaN.
        """
        values = np.concatenate([rows for _, rows in self.read_rows(name)]) if self.shape(name)[0] else np.empty(self.shape(name), np.float32)
        if name.endswith("/moving_variance") and not (right := np.isfinite(values) & (values >= 0)).all():
            raise DamagedError(
                self.folder, f"{self.folder}: {name} holds {values[~right][0]}, expected finite values of 0 or more; the checkpoint is damaged"
            )
        return values

    def read_rows(self, name: str, columns: tuple[int, int] | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield an array, or some of its columns, in blocks of rows: (first row, `[n, …]`); the next blocks are read in the background.

        Of a table of which the touched rows are stored, the blocks also hold all others, as they are before training.

        Raises:
            CheckpointError: the array is missing, its shape differs from the manifest's, or a chunk's or a bitmap's checksum is wrong.
        """
        shape, (of_table, kind) = self.shape(name), table_and_kind(name)
        table = self.touched_table(of_table)
        if table is None:
            return _blocks(self.folder, name, shape, columns)
        width = shape[1] if columns is None else columns[1] - columns[0]
        return table.dense(kind, width, columns, self.read_touched(name, columns))

    def touched_table(self, table: str | None) -> TouchedTable | None:
        """Return a table of which only the touched rows are stored; None where it is stored whole."""
        return self._touched.get(table)

    def read_touched(self, name: str, columns: tuple[int, int] | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the stored rows of a table of which only the touched rows are stored, in the order of its `numbers`: (first, `[k, columns]`).

        `first` counts the stored rows.

        Raises:
            ValueError: the array is stored whole.
            CheckpointError: as in `read_rows`.
        """
        shape, table = self.shape(name), self.touched_table(table_and_kind(name)[0])
        if table is None:
            raise ValueError(f"{name} is stored whole, not by its touched rows")
        return _blocks(self.folder, name, (table.count, *shape[1:]), columns) if table.count else iter(())

    def content(self, name: str) -> bytes:
        """Read a small file beside the arrays, see `kept_files.write_checked`. Raises CheckpointError where it is missing or damaged."""
        try:
            return read_checked(self.folder / name)
        except (ValueError, OSError) as error:
            raise manifest.fault(self.folder, self.folder / name, brief(error)) from None

    def check(self, name: str) -> None:
        """Read an array as it is stored, and compare its checksums and those of its table's bitmap. Raises CheckpointError as `read_rows`."""
        table = self.touched_table(table_and_kind(name)[0])
        if table is not None:
            table.check()
        for _ in self.read_rows(name) if table is None else self.read_touched(name):
            pass

    def verify(self, world: "World") -> None:
        """Read all arrays, distributed over the workers, and the files of the touched rows, and compare all checksums.

        Raises:
            UserError: an array is damaged; on every worker.
        """
        from utils.checkpoint.faults import together

        def mine() -> None:
            for name in self.names("")[world.rank :: world.size]:
                self.check(name)
            if world.first and TOUCHED_FILE in self.manifest["files"]:
                self.content(TOUCHED_FILE)

        together(mine, world, "checkpoint_verified", self.folder, "read")


def _blocks(folder: Path, name: str, shape: tuple[int, ...], columns: tuple[int, int] | None) -> Iterator[tuple[int, np.ndarray]]:
    """Yield a stored array of this shape, or some of its columns, in blocks: those of its chunks."""
    chosen = () if columns is None else (slice(*columns),)
    try:
        store = open_array(folder / file_of(name))
        if tuple(store.shape) != shape:
            raise ValueError(f"shape {list(store.shape)}, the manifest says {list(shape)}")
        rows = store.chunk_layout.read_chunk.shape[0]
        starts = iter(range(0, shape[0], rows))
        pending: deque = deque()
        while True:
            while len(pending) < IN_FLIGHT and (start := next(starts, None)) is not None:
                pending.append((start, store[(slice(start, min(start + rows, shape[0])), *chosen)].read()))
            if not pending:
                return
            start, future = pending.popleft()
            yield start, future.result()
    except (ValueError, OSError) as error:
        raise manifest.fault(folder, folder / file_of(name), brief(error)) from None


def _held(path: Path, choice: str) -> tuple[Path, Hold]:
    """Return the folder of the step that a path names, with a hold on it; search again where the step is removed before it is held."""
    while True:
        folder = _find(path, choice)
        try:
            hold = Hold(folder)
            if (folder / manifest.NAME).is_file():
                return folder, hold
        except FileNotFoundError:
            continue


def _find(path: Path, choice: str) -> Path:
    if (path / manifest.NAME).is_file():
        return path
    if path.is_file() and (named := pointed(path)) is not None:
        return named
    if path.name == LATEST and path.is_file() and (steps := complete_steps(path.parent)):
        return steps[0]  # `latest` is written just before its step gets its name, see `folder.publish`
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; expected a checkpoint (--save_checkpoint_path writes one)")
    steps = complete_steps(path)
    if not steps:
        raise CheckpointError(f"{path}: holds no checkpoint (no step-… folder with a manifest.json); --save_checkpoint_path writes one")
    return chosen_step(path, steps, choice)


def chosen_step(path: Path, steps: Sequence[Path], choice: str) -> Path:
    """Choose one of a folder's complete steps, newest first; `choice` as in `Checkpoint`."""
    return (pointed(path / BEST) if choice == BEST else None) or steps[0]


def passed_over(path: Path, taken: Path) -> Path | None:
    """Return the newest step of a folder where its best step was taken instead; None where the best is the newest, or the step was named."""
    steps = [] if (path / manifest.NAME).is_file() else complete_steps(path)
    return steps[0] if steps and pointed(path / BEST) == taken != steps[0] else None
