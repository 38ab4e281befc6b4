"""Arrays on disk: zarr version 3 with a CRC-32C behind every chunk, written and read by TensorStore."""

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
IN_FLIGHT = 8  # chunks being written or read at a time: bounds the memory to 256 MiB, keeps the disk busy


class PathError(UserError):
    """A path that TensorStore takes for no file."""


def file_of(name: str) -> str:
    """Where an array lies: its name with every part safe as a file name."""
    return "/".join(quote(part, safe="").replace(".", "%2E") for part in name.split("/"))


def open_array(folder: Path):
    """A TensorStore array; raises ValueError where it is missing or damaged, PathError where its path cannot be one."""
    check_metadata(folder)
    return _open(folder).result()


def native_path(folder: Path) -> str:
    """The path as TensorStore wants it: absolute, without `..` and links, and UTF-8. Raises PathError."""
    path = os.path.realpath(folder)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PathError(f"{os.fsencode(path)!r}: the path is not UTF-8, and checkpoints can lie under no other; rename the folder") from None
    return path


def _open(folder: Path, **more: Any):
    check_threads(TENSORSTORE)
    import tensorstore  # takes a tenth of a second, and --help needs none of it

    # By default a chunk of zeros is not written and a missing chunk reads as zeros: then a lost file would go unnoticed.
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": native_path(folder)},
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
        **more,
    }
    return tensorstore.open(spec)


def create_array(folder: Path, shape: Sequence[int], chunk: Sequence[int]):
    """Begin to make an empty float32 array; the future's result raises ValueError where it cannot be written."""
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
    metadata = {"shape": list(shape), "data_type": DTYPE, "chunk_grid": grid, "codecs": CODECS}
    return _open(folder, metadata=metadata, create=True, open=False)


def chunk_files(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[str]:
    """The files of an array's chunks, in its folder."""
    for place in itertools.product(*(range(-(-size // step)) for size, step in zip(shape, chunk, strict=True))):
        yield "/".join(["c", *map(str, place)])


def write_rows(store, start: int, values: np.ndarray, columns: tuple[int, int] | None):
    """Begin to write rows from `start` on; the future's result raises ValueError where that fails. `values` must not change any more."""
    place = (slice(start, start + len(values)), *(() if columns is None else (slice(*columns),)))
    return store[place].write(values, can_reference_source_data_indefinitely=True)


def brief(error: Exception) -> str:
    """TensorStore's message without the specification it appends; the system's own words where it was the system."""
    text = " ".join(str(error).split())
    if of_system := re.search(r"\[OS error (\d+)", text):
        return os.strerror(int(of_system[1]))
    if "Digest mismatch" in text:
        return "its data do not fit their checksum"
    return text.partition(" [source locations")[0][:300]
