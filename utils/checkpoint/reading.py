"""Checkpoints opened for reading, every chunk's checksum compared; `writing` tells how they lie on the disk."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.checkpoint import manifest
from utils.checkpoint.folder import Hold, complete_steps, pointed
from utils.checkpoint.manifest import CheckpointError, DamagedError
from utils.checkpoint.zarr_store import IN_FLIGHT, brief, file_of, open_array
from utils.config.options import BEST, LATEST

if TYPE_CHECKING:
    from utils.distributed import World


def newest(path: str | Path) -> "Checkpoint | None":
    """The newest complete checkpoint of a folder; None where there is none yet."""
    steps = complete_steps(Path(path))
    return Checkpoint(steps[0]) if steps else None


class Checkpoint:
    """A checkpoint opened for reading, which the run that writes there does not remove until this is released or forgotten.

    Args:
        path: a step's folder; the folder that holds the steps; or a file in it that names a step, `…/best`.
        choice: what a folder of steps stands for: `LATEST`, the newest complete one, or `BEST`, the one that its file `best` names, where it does.

    Raises:
        CheckpointError: there is none, its manifest cannot be read, or a file has not the size or the checksum it should have.
    """

    def __init__(self, path: str | Path, choice: str = LATEST):
        self.folder, self._hold = _held(Path(path), choice)
        self.manifest = manifest.read(self.folder)
        try:
            self._arrays = {name: tuple(int(size) for size in described["shape"]) for name, described in self.manifest["arrays"].items()}
            if any(len(shape) == 0 or min(shape) < 1 for shape in self._arrays.values()):
                raise ValueError("an array has no shape")
            self.step = int(self.manifest["step"])  # the training steps done
            manifest.check_files(self.folder, self.manifest)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DamagedError(
                self.folder, f"{self.folder}/{manifest.NAME}: cannot be read ({manifest.brief_cause(error)}); the checkpoint is damaged"
            ) from None

    @property
    def gone(self) -> bool:
        """Whether it is no more: a file system may have no locks."""
        return not (self.folder / manifest.NAME).is_file()

    def release(self) -> None:
        """Let it be removed; what is read of it later may be missing."""
        self._hold.release()

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
                while len(pending) < IN_FLIGHT and (start := next(starts, None)) is not None:
                    pending.append((start, store[(slice(start, min(start + rows, shape[0])), *chosen)].read()))
                if not pending:
                    return
                start, future = pending.popleft()
                yield start, future.result()
        except (ValueError, OSError) as error:
            if self.gone:
                raise CheckpointError(
                    f"{self.folder}: was removed while it was read, by the run that keeps its newest steps there; start again with the newest"
                ) from None
            raise DamagedError(self.folder, f"{self.folder}/{file_of(name)}: {brief(error)}; the checkpoint is damaged") from None

    def verify(self, world: "World") -> None:
        """Read everything, the workers side by side, and compare all checksums.

        Raises:
            UserError: something is damaged; on every worker.
        """
        from utils.checkpoint.faults import together

        def mine() -> None:
            for name in self.names("")[world.rank :: world.size]:
                for _ in self.read_rows(name):
                    pass

        together(mine, world, "checkpoint_verified")


def _held(path: Path, choice: str) -> tuple[Path, Hold]:
    """The folder of the step that a path says, held; the next one where it is removed by a moment before that."""
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
        return steps[0]  # what it names does not have that name yet, see `folder.publish`
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; expected a checkpoint (--save_checkpoint_path writes one)")
    steps = complete_steps(path)
    if not steps:
        raise CheckpointError(f"{path}: holds no checkpoint (no step-… folder with a manifest.json); --save_checkpoint_path writes one")
    return chosen_step(path, steps, choice)


def chosen_step(path: Path, steps: Sequence[Path], choice: str) -> Path:
    """The one of a folder's complete steps, newest first, that the folder stands for; `choice` as in `Checkpoint`."""
    return (pointed(path / BEST) if choice == BEST else None) or steps[0]


def passed_over(path: Path, taken: Path) -> Path | None:
    """The newest step of a folder of which another one, its best, was taken; None where that is the newest, or was named."""
    steps = [] if (path / manifest.NAME).is_file() else complete_steps(path)
    return steps[0] if steps and pointed(path / BEST) == taken != steps[0] else None
