"""Checkpoints: one TensorStore array a table and a weight, whole tables by feature name, whatever the number of workers.

    PATH/latest                      name of the newest step
    PATH/step-00000060/manifest.json what is inside, and the model's configuration; written last
    PATH/step-00000060/dense/…       weights of the dense layers
    PATH/step-00000060/tables/…      one array `[V, D]` for each categorical feature

Arrays are zarr version 3 with a CRC-32C of every chunk, so that a flipped bit is an error and not a wrong prediction. A
step's folder appears under its name only when it is whole.
"""

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from utils.distributed import World
from utils.errors import UserError

FORMAT = 1
_CHUNK_BYTES = 32 << 20
_IN_FLIGHT = 4  # chunks being written at a time: bounds the memory to 128 MiB, keeps the disk busy


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or of another model."""


@dataclass(frozen=True)
class Part:
    """A part of an array that this worker writes: all rows of the columns first to last (all columns where `columns` is None).

    `read` gives rows start to stop, so that no table is copied whole.
    """

    array: str
    read: Callable[[int, int], np.ndarray]
    columns: tuple[int, int] | None = None


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


def save(
    path: str | Path,
    step: int,
    arrays: Mapping[str, Array],
    parts: Iterable[Part],
    facts: Mapping[str, Any],
    world: World,
    *,
    keep: int | None = None,
    best: bool = False,
) -> Path:
    """Write a checkpoint of float32 arrays, all workers side by side, and make it the newest of `path`; returns the step's folder.

    Args:
        path: folder that holds all steps; made where missing.
        step: training steps done.
        arrays: by name, `dense/bottom_mlp/0/kernel` or `tables/cat_0/weights` for instance; the same on every worker.
        parts: what this worker writes; the workers' parts together cover every array once.
        facts: anything JSON can say, kept in the manifest.
        world: the workers.
        keep: how many of the newest steps to keep, the best apart; None for all.
        best: this is the best so far: `best` points to it and it is kept until a better one comes.

    Raises:
        UserError: some worker could not write; nothing has changed then, and every worker knows.
    """
    path = Path(path)
    name = f"step-{step:08d}"
    folder = path / f".{name}.writing"

    def prepare() -> None:
        path.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for array, facts in arrays.items():
            _create(folder / _file(array), facts)

    def write() -> None:
        for part in parts:
            _write(folder / _file(part.array), arrays[part.array], part)

    def publish() -> None:
        manifest = {
            "format": FORMAT,
            "step": step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "arrays": {array: {"shape": list(facts.shape), "dtype": "float32"} for array, facts in arrays.items()},
            **facts,
        }
        _write_durably(folder / "manifest.json", json.dumps(manifest, indent=1))
        _replace(folder, path / name, path / f".{name}.old")
        for pointer in ("latest", "best") if best else ("latest",):
            partial = path / f".{pointer}.writing"
            _write_durably(partial, name + "\n")
            partial.rename(path / pointer)
        _prune(path, keep)

    try:
        _together(prepare if world.first else None, world, "checkpoint_prepared")
        _together(write, world, "checkpoint_written")
        _together(publish if world.first else None, world, "checkpoint_published")
    except BaseException:
        if world.first:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return path / name


def _together(action: Callable[[], None] | None, world: World, name: str) -> None:
    """Do something, then hear whether every worker managed to; raises UserError on all where one did not."""
    error = None
    try:
        if action:
            action()
    except UserError as problem:
        error = str(problem)
    except OSError as problem:
        error = f"{problem.filename or 'checkpoint'}: {problem.strerror or problem}"
    world.agree(error, name)


def _replace(folder: Path, target: Path, old: Path) -> None:
    """Rename `folder` to `target`; what stood there is set aside first and put back if that fails."""
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def newest(path: str | Path) -> "Checkpoint | None":
    """The newest complete checkpoint of a folder; None where there is none yet."""
    path = Path(path)
    if not path.is_dir() or not any((entry / "manifest.json").is_file() for entry in path.glob("step-*")):
        return None
    return Checkpoint(path)


def _prune(path: Path, keep: int | None) -> None:
    """Remove all steps but the newest `keep` and the one that `best` names; a step is hidden before its files go."""
    if keep is None:
        return
    best = _pointed(path / "best")
    for entry in sorted(path.glob("step-*"))[:-keep]:
        if entry != best:
            hidden = path / f".{entry.name}.removing"
            entry.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def _pointed(pointer: Path) -> Path | None:
    """The complete step that a pointer file names."""
    try:
        step = pointer.parent / pointer.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return step if step.parent == pointer.parent and (step / "manifest.json").is_file() else None


class Checkpoint:
    """A checkpoint opened for reading.

    Args:
        path: a step's folder, or the folder that holds the steps: then the newest complete one.

    Raises:
        CheckpointError: there is none, or its manifest cannot be read.
    """

    def __init__(self, path: str | Path):
        self.folder = _find(Path(path))
        try:
            self.manifest = json.loads((self.folder / "manifest.json").read_bytes())
            self._arrays = {name: tuple(facts["shape"]) for name, facts in self.manifest["arrays"].items()}
            version, self.step = self.manifest["format"], int(self.manifest["step"])  # the training steps done
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{self.folder}/manifest.json: cannot be read ({error}); the checkpoint is damaged") from None
        if version != FORMAT:
            raise CheckpointError(f"{self.folder}: format {version}, this version reads format {FORMAT}")

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
            store = _open(self.folder / _file(name))
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
            raise CheckpointError(f"{self.folder}/{_file(name)}: damaged: {_brief(error)}") from None


def _find(path: Path) -> Path:
    if (path / "manifest.json").is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; expected a checkpoint (--save_checkpoint_path writes one)")
    pointed = _pointed(path / "latest")
    if pointed is not None:
        return pointed
    steps = sorted(entry for entry in path.glob("step-*") if (entry / "manifest.json").is_file())
    if not steps:
        raise CheckpointError(f"{path}: holds no checkpoint (no step-… folder with a manifest.json); --save_checkpoint_path writes one")
    return steps[-1]


def _file(name: str) -> str:
    """Where an array lies: its name with every part safe as a file name."""
    return "/".join(quote(part, safe="").replace(".", "%2E") for part in name.split("/"))


def _open(folder: Path, **more: Any):
    import tensorstore  # takes a tenth of a second, and --help needs none of it

    # By default a chunk of zeros is not written and a missing chunk reads as zeros: then a lost file would go unnoticed.
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(folder.absolute())},
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
        **more,
    }
    return tensorstore.open(spec).result()


def _create(folder: Path, array: Array) -> None:
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    grid = {"name": "regular", "configuration": {"chunk_shape": list(array.chunk)}}
    metadata = {"shape": list(array.shape), "data_type": "float32", "chunk_grid": grid, "codecs": codecs}
    try:
        _open(folder, metadata=metadata, create=True, open=False)
    except ValueError as error:  # TensorStore's word for a full disk, too
        raise CheckpointError(f"{folder}: could not be written: {_brief(error)}") from None


def _write(folder: Path, array: Array, part: Part) -> None:
    chosen = () if part.columns is None else (slice(*part.columns),)
    rows = array.chunk[0]
    pending: deque = deque()
    try:
        store = _open(folder)
        for start in range(0, array.shape[0], rows):
            stop = min(start + rows, array.shape[0])
            values = part.read(start, stop)
            if not np.isfinite(values).all():
                raise CheckpointError(
                    f"{part.array}: holds weights that are not finite; nothing is saved. Try a lower --learning_rate or --loss_scale"
                )
            pending.append(store[(slice(start, stop), *chosen)].write(values))
            if len(pending) >= _IN_FLIGHT:
                pending.popleft().result()
        while pending:
            pending.popleft().result()
    except ValueError as error:
        raise CheckpointError(f"{folder}: could not be written: {_brief(error)}") from None


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _brief(error: Exception) -> str:
    """TensorStore's message without the specification it appends."""
    return " ".join(str(error).split())[:300]
