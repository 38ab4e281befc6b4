"""The manifest of a checkpoint: what is inside, how many bytes each file has, and checksums of the files and of itself."""

import errno
import json
import os
import stat
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from utils.checkpoint.durable import write_text
from utils.checkpoint.manifest_values import check_values
from utils.checkpoint.zarr_metadata import NAME as _METADATA
from utils.checkpoint.zarr_store import CHECKSUM_BYTES
from utils.errors import UserError

NAME = "manifest.json"
FORMAT = 3
READABLE = (2, 3)  # format 2 numbers the dense weights' slots, and does not name the model


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or of another model."""


class DamagedError(CheckpointError):
    """A checkpoint that is not as it was written."""

    def __init__(self, folder: Path, what: str):
        super().__init__(what)
        self.folder = folder


def write(folder: Path, content: Mapping[str, Any], expected: Iterable[str] = ()) -> None:
    """Write the manifest of a step's folder, whose other files are complete.

    Raises:
        CheckpointError: an expected file, named relative to the folder, is not there.
    """
    files = {str(path.relative_to(folder)): _stamp(path) for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NAME}
    for name in expected:
        if name not in files:
            raise CheckpointError(f"{folder / name}: no worker has written it; the checkpoint is not kept. Do all workers have the same folder?")
    whole = {**content, "format": FORMAT, "files": files}
    write_text(folder / NAME, json.dumps(whole | {"checksum": checksum(whole)}, indent=1))


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a step's folder.

    Raises:
        CheckpointError: it is missing, damaged or of another format.
    """
    path = folder / NAME
    try:
        manifest = json.loads(path.read_bytes())
        version, written = manifest["format"], manifest.pop("checksum", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(folder, f"{path}: cannot be read ({brief_cause(error)}); the checkpoint is damaged") from None
    if version not in READABLE:
        raise CheckpointError(f"{folder}: format {version}, this version reads formats {' and '.join(map(str, READABLE))}")
    if written != checksum(manifest):
        raise DamagedError(folder, f"{path}: its checksum is wrong; the checkpoint is damaged")
    try:
        check_values(manifest)
    except ValueError as error:
        raise DamagedError(folder, f"{path}: {error}; the checkpoint is damaged") from None
    return manifest


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Compare size and recorded checksum of every file with the manifest, without reading the data.

    Raises:
        CheckpointError: names the first file that differs.
    """
    for name, stamp in manifest["files"].items():
        path = folder / name
        try:
            found = _stamp(path)
        except OSError as error:
            raise DamagedError(folder, f"{path}: {error.strerror}; the checkpoint is damaged") from None
        if found[0] != stamp[0]:
            raise DamagedError(folder, f"{path}: {found[0]} bytes, the manifest says {stamp[0]}; the checkpoint is damaged")
        if found[1] != stamp[1]:
            raise DamagedError(folder, f"{path}: its checksum is not the manifest's; the checkpoint is damaged")


def brief_cause(error: Exception) -> str:
    """An exception's text in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _stamp(path: Path) -> list:
    """Size and checksum of a file: of a chunk the CRC-32C that ends it, which reading the chunk compares with its data."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # a named pipe would be waited for
        raise OSError(errno.EINVAL, "not a file")
    size = found.st_size
    if path.name == _METADATA:
        return [size, f"{zlib.crc32(path.read_bytes()):08x}"]
    with path.open("rb") as file:
        return [size, os.pread(file.fileno(), CHECKSUM_BYTES, max(size - CHECKSUM_BYTES, 0)).hex()]


def checksum(manifest: Mapping[str, Any]) -> str:
    """Of a manifest as `read` gives it."""
    return f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"
