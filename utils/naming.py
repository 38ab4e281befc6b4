"""Errors of the operating system that name their file: those of an open file's `write`, and of libraries' own writers, do not."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NUMBER = re.compile(r"\(os error (\d+)\)").search  # as Polars ends its errors


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in an error of writing or reading it, inside this block, that names no file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
    except Exception as error:
        number = _NUMBER(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
