"""Lines of a log file: `DLLL ` and a JSON object; lines that a killed process cut, and foreign lines, are counted and left out."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from report.log.shapes import fitting, is_whole
from utils.console import Console
from utils.errors import UserError

_MARK = b"DLLL {"
_MB, _LONG_MB = 1_000_000, 50
_MAX_LINE = 1 << 26  # bytes; the longest line, about a run with thousands of tables, has some MiB
_HEAD = re.compile(rb'"step":\s*(?:"(\w+)"|\[\s*(?:(\d+)\s*(?:,\s*(\d+)\s*)?)?\])')
_DECODER = json.JSONDecoder(parse_constant=lambda constant: None)  # NaN and infinity, which JSON does not have
_HEAD_BYTES = 400  # the step stands before the data, within these bytes


class Head(NamedTuple):
    """The beginning of a line: its step, without its data.

    Attributes:
        name: a text as step, "RUN" for instance; empty for training steps.
        numbers: the numbers of a step: epoch and step, a step alone, none for final figures.
    """

    name: str
    numbers: tuple[int, ...]


class Line(NamedTuple):
    """A line of data.

    Attributes:
        name: a text as step, "RUN" for instance; empty for training steps.
        numbers: the numbers of a step.
        seconds: its timestamp, in seconds since 1970.
        data: the figures.
    """

    name: str
    numbers: tuple[int, ...]
    seconds: float
    data: Mapping[str, Any]


class RawLine(NamedTuple):
    """A line as it stands in the file.

    Attributes:
        offset: its first byte in the file.
        text: the JSON object.
        whole: False where the line before it was cut and stands on the same line.
    """

    offset: int
    text: bytes
    whole: bool


def raw_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[RawLine]:
    """Yield the lines of a log between two bytes, without parsing them; a long file shows its progress on a terminal.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            total = ((file.seek(0, os.SEEK_END) if end is None else end) - start) // _MB
            file.seek(start)
            if total < _LONG_MB:
                yield from _raw(file, start, end)
                return
            with Console("report").progress(total, f"reading {path.name}", "MB") as progress:
                done = 0
                for line in _raw(file, start, end):
                    yield line
                    if (line.offset - start) // _MB > done:
                        progress.advance(1)
                        done += 1
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected a log of a run") from None


def _raw(file: BinaryIO, offset: int, end: int | None) -> Iterator[RawLine]:
    while (end is None or offset < end) and (line := file.readline(_MAX_LINE)):
        first = line.find(_MARK)
        if first >= 0:
            last = line.rfind(_MARK)
            if last > first and line.find(b"}}", first, last) < 0:  # the next process wrote behind a line that was cut
                yield RawLine(offset + last, line[last + 5 :], False)
            else:
                yield RawLine(offset + first, line[first + 5 :], True)
        offset += len(line)


def head_of(text: bytes) -> Head | None:
    """Return the step of a line without parsing its data; None for metadata and for lines without a step."""
    found = _HEAD.search(text, 0, _HEAD_BYTES)
    if found is None:
        line = parsed(text)  # other writers may put the data first
        return Head(line.name, line.numbers) if line else None
    name, first, second = found.groups()
    return Head(name.decode() if name else "", tuple(int(number) for number in (first, second) if number is not None))


def parsed(text: bytes) -> Line | None:
    """Parse a line; None where it is cut, is no object, or has no data."""
    try:
        content = _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("data"), dict) or "step" not in content:
        return None
    step = content["step"]
    name, numbers = (step, ()) if isinstance(step, str) else ("", (step,) if is_whole(step) else step)
    if not isinstance(numbers, (list, tuple)) or len(numbers) > 2 or not all(is_whole(number) for number in numbers):
        return None
    try:
        seconds = float(content.get("timestamp", 0))
    except (TypeError, ValueError):
        seconds = 0.0
    return Line(name, tuple(numbers), seconds, fitting(name, content["data"]) if name else content["data"])
