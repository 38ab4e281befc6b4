"""Checks of an array's `zarr.json` before TensorStore reads it, which trusts it: a chunk of 2^60 rows would end the process."""

import json
import math
from pathlib import Path
from typing import Any

NAME = "zarr.json"
DTYPE = "float32"
CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
_MAX_CHUNK_BYTES = 256 << 20  # this application writes chunks of 32 MiB


def check_metadata(folder: Path) -> None:
    """Check that an array's `zarr.json` is of the form that this application writes.

    Raises:
        ValueError: it is missing or not JSON, the array is of another type, or its chunks do not fit its shape.
    """
    path = folder / NAME
    if not path.is_file():
        raise ValueError(f"{NAME} is missing")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise ValueError(f"{NAME} is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{NAME} describes no array")
    _expect(content.get("data_type"), DTYPE, "data_type")
    _expect(content.get("codecs"), CODECS, "codecs")
    _check_chunks(content.get("shape"), content.get("chunk_grid"))


def _check_chunks(shape: Any, grid: Any) -> None:
    configuration = grid.get("configuration") if isinstance(grid, dict) else None
    chunk = configuration.get("chunk_shape") if isinstance(configuration, dict) else None
    for name, sizes in (("shape", shape), ("chunk_shape", chunk)):
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 1 for size in sizes):
            raise ValueError(f"{NAME}: {name} is {_brief(sizes)}, expected whole numbers of at least 1")
    fits = len(chunk) == len(shape) and all(part <= whole for part, whole in zip(chunk, shape, strict=True))
    if not fits or 4 * math.prod(chunk) > _MAX_CHUNK_BYTES:
        raise ValueError(f"{NAME}: chunk_shape {_brief(chunk)} does not fit shape {_brief(shape)} and {_MAX_CHUNK_BYTES >> 20} MiB")


def _expect(found: Any, expected: Any, name: str) -> None:
    if found != expected:
        raise ValueError(f"{NAME}: {name} is {_brief(found)}, expected {_brief(expected)}")


def _brief(value: Any) -> str:
    return str(value)[:120]
