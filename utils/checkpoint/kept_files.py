"""Files beside a checkpoint's arrays: those that every checkpoint of a run keeps (copied for the first one, then hard-linked), and small own ones."""

import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from utils.checkpoint.zarr_store import CHECKSUM_BYTES

TOUCHED_FILE = "touched.bin"  # the rows of each table that a training batch has had, one bit a row; see `training.touched`


class KeptFiles:
    """The files to keep. They are opened before the run starts, so that exactly the files checked then are kept.

    Args:
        files: the open files, by their names in a step's folder.
    """

    def __init__(self, files: Mapping[str, BinaryIO]):
        self._files, self._last = files, None

    def put(self, folder: Path) -> None:
        """Put the files into a step's folder. Raises OSError."""
        for name, file in self._files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not self._linked(name, target):
                file.seek(0)
                with target.open("wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())

    def are_in(self, folder: Path) -> None:
        """Record the final folder of the step that the files were put into last; the next step links to it."""
        self._last = folder

    def _linked(self, name: str, target: Path) -> bool:
        """Link to the previous step's file; return False where it is gone or the file system has no links."""
        try:
            os.link(self._last / name, target)
        except (OSError, TypeError):
            return False
        return True


NO_FILES = KeptFiles({})


def write_checked(path: Path, content: bytes | np.ndarray) -> None:
    """Write a file, and its folder, with the CRC-32 of its content at the end, as the manifest records the end of a file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.write(zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little"))


def read_checked(path: Path) -> bytes:
    """Read a file that `write_checked` wrote. Raises OSError, or ValueError where the checksum is wrong."""
    content = path.read_bytes()
    content, written = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if written != zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little"):
        raise ValueError("its checksum is wrong")
    return content
