"""Concatenation of files."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from utils.naming import naming

_COPIED_BYTES = 1 << 24
_NOT_HERE = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM)


def append_file(source: Path, target: BinaryIO) -> None:
    """Append a file's bytes to an open file, which is positioned at its end.

    Where the file system supports it, the kernel copies the bytes, or shares them without a copy.
    """
    target.flush()
    with source.open("rb") as file:
        try:
            while os.copy_file_range(file.fileno(), target.fileno(), 1 << 30):
                pass
            return
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
        file.seek(os.lseek(file.fileno(), 0, os.SEEK_CUR))  # continue after the bytes that the kernel has copied
        while content := file.read(_COPIED_BYTES):
            target.write(content)


def join_files(parts: Sequence[Path], target: Path) -> None:
    """Join several files into one and remove them.

    The first is moved if it is on the same file system; the others are appended.
    """
    rest = list(parts)
    if rest:
        try:
            rest[0].rename(target)
            rest.pop(0)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    with naming(target), target.open("r+b" if target.exists() else "wb") as file:
        file.seek(0, os.SEEK_END)
        for part in rest:
            append_file(part, file)
            part.unlink()
