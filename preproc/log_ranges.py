"""A plain log in ranges of whole lines, each read as a file of its own, so that several processes read one log."""

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dataloading.contract import DatasetError
from preproc.compressed import is_compressed

_WINDOW_BYTES = 1 << 16
_SEARCHED_BYTES = 4 << 20  # beyond a cut's place; without a line's end in there the rest is one range
# Blank lines are dropped at a file's end and nowhere else: a range neither begins nor ends with one. A line that begins as
# a compressed file does would be taken for one.
_CUT = re.compile(rb"[^\r\n]\r?\n(?=[^\r\n\x1f\x28])")
_LINE = re.compile(r"line (\d+)(?=: )")


@dataclass(frozen=True)
class FileRange:
    """Some bytes of a file, from `start` up to `stop`, opened like the file; `name` is what the user calls it."""

    path: Path
    name: str
    start: int
    stop: int

    def __str__(self) -> str:
        return self.name

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """The bytes as a file that can be read and sought."""
        return io.BufferedReader(_Part(self.path, self.start, self.stop))


class _Part(io.RawIOBase):
    def __init__(self, path: Path, start: int, stop: int):
        self._file, self._start, self._stop = path.open("rb", buffering=0), start, stop
        self._file.seek(start)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: self._start, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._stop}[whence]
        return self._file.seek(base + offset) - self._start

    def readinto(self, buffer) -> int:
        view = memoryview(buffer)[: max(0, self._stop - self._file.tell())]
        return self._file.readinto(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def ranges(path: Path, range_bytes: int) -> list[FileRange]:
    """The file in its order, in ranges near `range_bytes`; the whole of a compressed one, which cannot be read from its middle."""
    with path.open("rb") as file:
        size, cuts, step = os.fstat(file.fileno()).st_size, [0], max(range_bytes, 64)
        if not is_compressed(path):
            while cuts[-1] + 1.5 * step < size and (cut := _cut(file, cuts[-1] + step, size)) is not None:
                cuts.append(cut)
    return [FileRange(path.absolute(), str(path), start, stop) for start, stop in zip(cuts, [*cuts[1:], size], strict=True)]


def _cut(file, place: int, size: int) -> int | None:
    """The first cut at or after a place, None where there is none near it."""
    for start in range(place, min(size, place + _SEARCHED_BYTES), _WINDOW_BYTES):
        file.seek(max(0, start - 3))
        if found := _CUT.search(file.read(_WINDOW_BYTES + 6)):
            return max(0, start - 3) + found.end()
    return None


def moved(text: str, lines: int) -> str:
    """What was said of a line of a range, with the line's number in the file: `lines` stand before the range."""
    return _LINE.sub(lambda found: f"line {int(found[1]) + lines}", text, count=1)


def moved_error(error: DatasetError, path: Path, lines: int) -> DatasetError:
    """The same for an error, which begins with the file's name: that may hold anything."""
    prefix, text = f"{path}: ", str(error)
    return type(error)(prefix + moved(text.removeprefix(prefix), lines)) if text.startswith(prefix + "line ") else error
