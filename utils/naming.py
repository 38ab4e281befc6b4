"""Completion of write errors with the file's name, which those of an open file's `write` and of Polars' writers lack."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.errors import UserError

_NUMBER = re.compile(r"\(os error (\d+)\)").search  # the end of most of Polars' errors
_FULL_BYTES = 1 << 20


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to a write error raised inside this block that names no file.

    Raises:
        OSError: the system's error, with the path.
        UserError: a Polars error without the system's error number.
    """
    try:
        yield
    except Exception as error:
        number = _NUMBER(str(error))
        if isinstance(error, OSError) and (error.errno is not None or number is None):
            if error.errno is None or error.filename is not None:
                raise
            raise _os_error(error.errno, path) from None
        if not isinstance(error, OSError) and not type(error).__module__.startswith("polars"):  # Polars raises OSError without a number, too
            raise
        if number or _full(path.parent):  # the footer of a Parquet file fails with "transport error"
            raise _os_error(int(number[1]) if number else errno.ENOSPC, path) from None
        raise UserError(f"{path}: cannot be written: {' '.join(str(error).split())}") from None


def _os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _full(folder: Path) -> bool:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize < _FULL_BYTES
