"""Objects shared by the tasks of executors: their arrays are in one file, which each process maps, so that a machine holds them once."""

import mmap
import pickle
from pathlib import Path
from typing import Any

from utils.naming import naming

_ALIGNED_BYTES = 64
_held: dict[Path, Any] = {}  # cache of one: the next task of this process often uses the same object


def save_shared(value: Any, path: Path) -> None:
    """Write an object or a function, with all that it refers to, for `load_shared`; its NumPy arrays go to the file `PATH.arrays`."""
    from pyspark import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    content = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    places, arrays = [], _arrays(path)
    with naming(arrays), arrays.open("wb") as file:
        for buffer in buffers:
            file.write(bytes(-file.tell() % _ALIGNED_BYTES))
            start = file.tell()
            places.append((start, file.write(buffer.raw())))
    with naming(path):
        path.write_bytes(pickle.dumps((content, places)))


def load_shared(path: Path) -> Any:
    """Load an object that `save_shared` wrote. Its arrays are read-only; tasks of a process that load the same path share them."""
    if path not in _held:
        _held.clear()
        content, places = pickle.loads(path.read_bytes())
        whole = memoryview(b"")
        if any(size for _, size in places):
            with _arrays(path).open("rb") as file:
                whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        _held[path] = pickle.loads(content, buffers=[whole[start : start + size] for start, size in places])
    return _held[path]


def _arrays(path: Path) -> Path:
    return path.with_name(f"{path.name}.arrays")
