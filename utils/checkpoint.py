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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from utils.errors import UserError

FORMAT = 1
_CHUNK_BYTES = 32 << 20
_IN_FLIGHT = 4  # chunks being written at a time: bounds the memory to 128 MiB, keeps the disk busy


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or of another model."""


class ArraySource:
    """An array to be saved: its shape and a function that gives rows start to stop, so that no table is copied whole."""

    def __init__(self, shape: tuple[int, ...], read: Callable[[int, int], np.ndarray]):
        self.shape, self.read = tuple(shape), read


def save(path: str | Path, step: int, arrays: Mapping[str, ArraySource], facts: Mapping[str, Any]) -> Path:
    """Write a checkpoint of float32 arrays and make it the newest of `path`; returns the step's folder.

    Args:
        path: folder that holds all steps; made where missing.
        step: training steps done.
        arrays: by name, `dense/bottom_mlp/0/kernel` or `tables/cat_0/weights` for instance.
        facts: anything JSON can say, kept in the manifest.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    name = f"step-{step:08d}"
    folder = path / f".{name}.writing"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        for array, source in arrays.items():
            _write(folder / _file(array), source)
        manifest = {
            "format": FORMAT,
            "step": step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "arrays": {array: {"shape": list(source.shape), "dtype": "float32"} for array, source in arrays.items()},
            **facts,
        }
        _write_durably(folder / "manifest.json", json.dumps(manifest, indent=1))
        target, old = path / name, path / f".{name}.old"
        if target.exists():
            target.rename(old)
        folder.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    partial = path / ".latest.writing"
    _write_durably(partial, name + "\n")
    partial.rename(path / "latest")
    return path / name


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
            version = self.manifest["format"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{self.folder}/manifest.json: cannot be read ({error}); the checkpoint is damaged") from None
        if version != FORMAT:
            raise CheckpointError(f"{self.folder}: format {version}, this version reads format {FORMAT}")

    @property
    def step(self) -> int:
        """Training steps done when it was written."""
        return self.manifest["step"]

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

    def read_rows(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """An array by blocks of rows: (first row, `[n, …]`), the next blocks being read meanwhile.

        Raises:
            CheckpointError: the array is missing, of another shape than the manifest says, or a chunk's checksum is wrong.
        """
        shape = self.shape(name)
        try:
            store = _open(self.folder / _file(name))
            if tuple(store.shape) != shape:
                raise ValueError(f"shape {list(store.shape)}, the manifest says {list(shape)}")
            rows = store.chunk_layout.read_chunk.shape[0]
            starts = iter(range(0, shape[0], rows))
            pending: deque = deque()
            while True:
                while len(pending) < _IN_FLIGHT and (start := next(starts, None)) is not None:
                    pending.append((start, store[start : min(start + rows, shape[0])].read()))
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
    try:
        newest = path / (path / "latest").read_text().strip()
        if newest.parent == path and (newest / "manifest.json").is_file():
            return newest
    except (OSError, UnicodeDecodeError):
        pass
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


def _write(folder: Path, source: ArraySource) -> None:
    shape = source.shape
    row_bytes = 4 * int(np.prod(shape[1:], dtype=np.int64))
    rows = max(min(_CHUNK_BYTES // row_bytes, shape[0]), 1)
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [rows, *shape[1:]]}}
    metadata = {"shape": list(shape), "data_type": "float32", "chunk_grid": grid, "codecs": codecs}
    store = _open(folder, metadata=metadata, create=True, open=False)
    pending: deque = deque()
    for start in range(0, shape[0], rows):
        stop = min(start + rows, shape[0])
        pending.append(store[start:stop].write(source.read(start, stop)))
        if len(pending) >= _IN_FLIGHT:
            _finish(pending.popleft(), folder)
    while pending:
        _finish(pending.popleft(), folder)


def _finish(future, folder: Path) -> None:
    try:
        future.result()
    except ValueError as error:  # TensorStore's word for a full disk, too
        raise CheckpointError(f"{folder}: could not be written: {_brief(error)}") from None


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _brief(error: Exception) -> str:
    """TensorStore's message without the specification it appends."""
    return " ".join(str(error).split())[:300]
