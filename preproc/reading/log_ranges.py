"""A plain log in ranges of bytes, so that several processes read one log, and what they say of its lines."""

import itertools
import re
from pathlib import Path

from dataloading.features import DatasetError
from preproc.reading.compressed import is_compressed
from preproc.reading.stores import Source

_LINE = re.compile(r"line (\d+)(?=[:,] )")


def ranges(path: Source, range_bytes: int) -> list[tuple[int, int] | None]:
    """(start, stop) of parts near a size, in the file's order; None for the whole of a file that is small, compressed or in an object store."""
    if not isinstance(path, Path) or is_compressed(path):
        return [None]
    size = path.stat().st_size
    parts = max(1, round(size / range_bytes))
    bounds = [size * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(bounds)) if parts > 1 else [None]


def moved(text: str, lines: int) -> str:
    """What was said of a line of a range, with the line's number in the file: `lines` stand before the range."""
    return _LINE.sub(lambda found: f"line {int(found[1]) + lines}", text, count=1)


def moved_error(error: DatasetError, path: Source, lines: int, read_as: Source | None = None) -> DatasetError:
    """The same for an error, which begins with the file's name: that may hold anything. `read_as` is its name where it was read."""
    name, text = str(read_as or path), str(error)
    said = text.removeprefix(name)
    if not text.startswith(name) or said[:2] not in (": ", ", "):
        return error
    return type(error)(f"{path}{said[:2]}{moved(said[2:], lines) if said[2:].startswith('line ') else said[2:]}")
