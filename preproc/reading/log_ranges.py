"""Byte ranges of a plain log, so that several processes can read one log, and line numbers in their messages."""

import itertools
import re
from pathlib import Path

from dataloading.features import DatasetError
from preproc.reading.compressed import is_compressed
from preproc.reading.stores import Source

_LINE = re.compile(r"line (\d+)(?=[:,] )")


def ranges(path: Source, range_bytes: int) -> list[tuple[int, int] | None]:
    """Return (start, stop) of parts of about `range_bytes`, in file order; [None] for a file that is small, compressed or in an object store."""
    if not isinstance(path, Path) or is_compressed(path):
        return [None]
    size = path.stat().st_size
    parts = max(1, round(size / range_bytes))
    bounds = [size * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(bounds)) if parts > 1 else [None]


def moved(text: str, lines: int) -> str:
    """Turn a line number within a range, in a message, into one within the file; `lines` precede the range."""
    return _LINE.sub(lambda found: f"line {int(found[1]) + lines}", text, count=1)


def moved_error(error: DatasetError, path: Source, lines: int, read_as: Source | None = None) -> DatasetError:
    """Return the error with its line number moved as by `moved`.

    The message begins with the file's name, which may hold any text. `read_as` is the name that the reader used, if it is not `path`.
    """
    name, text = str(read_as or path), str(error)
    said = text.removeprefix(name)
    if not text.startswith(name) or said[:2] not in (": ", ", "):
        return error
    return type(error)(f"{path}{said[:2]}{moved(said[2:], lines) if said[2:].startswith('line ') else said[2:]}")
