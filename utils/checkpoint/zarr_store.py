"""Arrays on disk: zarr version 3 with a CRC-32C at the end of every chunk, written and read by TensorStore."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from utils.checkpoint.zarr_metadata import CODECS, DTYPE, check_metadata
from utils.errors import UserError
from utils.forks import TENSORSTORE, check_threads

CHECKSUM_BYTES = 4  # at the end of every chunk
IN_FLIGHT = 8  # chunks written or read at a time: it limits the memory to 256 MiB and keeps the disk busy


class PathError(UserError):
    """A path that TensorStore does not accept."""


def file_of(name: str) -> str:
    """Return the relative path of an array: its name, with every part escaped as a file name."""
    return "/".join(quote(part, safe="").replace(".", "%2E") for part in name.split("/"))


def open_array(folder: Path):
    """Open a TensorStore array. Raises ValueError where it is missing or damaged, PathError where TensorStore does not accept its path."""
    check_metadata(folder)
    return _open(folder).result()


def native_path(folder: Path) -> str:
    """Return the path in TensorStore's form: absolute, without `..` and links. Raises PathError where it is not UTF-8."""
    path = os.path.realpath(folder)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PathError(f"{os.fsencode(path)!r}: the path is not UTF-8, which checkpoints need; rename the folder") from None
    return path


def _open(folder: Path, **more: Any):
    check_threads(TENSORSTORE)
    import tensorstore  # imported here: it takes a tenth of a second, and --help does not need it

    # By default a chunk of zeros is not written and a missing chunk reads as zeros, so that a lost file would go unnoticed.
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": native_path(folder)},
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
        **more,
    }
    return tensorstore.open(spec)


def create_array(folder: Path, shape: Sequence[int], chunk: Sequence[int]):
    """Start to create an empty float32 array and return the future, whose result raises ValueError where it cannot be written."""
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
    metadata = {"shape": list(shape), "data_type": DTYPE, "chunk_grid": grid, "codecs": CODECS}
    return _open(folder, metadata=metadata, create=True, open=False)


def chunk_files(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[str]:
    """Yield the files of an array's chunks, relative to its folder."""
    for place in itertools.product(*(range(-(-size // step)) for size, step in zip(shape, chunk, strict=True))):
        yield "/".join(["c", *map(str, place)])


def write_rows(store, start: int, values: np.ndarray, columns: tuple[int, int] | None):
    """Start to write rows from `start` on and return the future, whose result raises ValueError on failure. `values` must not change any more."""
    place = (slice(start, start + len(values)), *(() if columns is None else (slice(*columns),)))
    return store[place].write(values, can_reference_source_data_indefinitely=True)


def brief(error: Exception) -> str:
    """Shorten a TensorStore error: the system's message for an error of the system, else the text without the specification it appends."""
    text = " ".join(str(error).split())
    if of_system := re.search(r"\[OS error (\d+)", text):
        return os.strerror(int(of_system[1]))
    if "Digest mismatch" in text:
        return "its data do not match their checksum"
    return text.partition(" [source locations")[0][:300]
