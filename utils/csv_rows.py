"""The rows of CSV text by RFC 4180, as Python's `csv.reader(strict=True)` reads them.

A quote is an ordinary character in a value that does not begin with one. In a value that does, quotes are doubled, and separators and line ends are
ordinary. Rows in which this needs care are rewritten, so that a fast parser can read all of them: with quotes around a value and doubled inside only.
"""

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

QUOTE = '"'
DOUBLE, BACKSLASH = "double", "backslash"  # how a quote is written inside a quoted value
MOST_LINES, MOST_BYTES = 1000, 64 << 20  # limits of one row; a quote that is not closed within them makes only its own line bad
_QUOTE, _NEWLINE, _RETURN, _BACKSLASH = b'"\n\r\\'
_STAND_INS = range(0xE000, 0xF900)  # Unicode's private characters
OPEN = "a quote is opened and not closed"

csv.field_size_limit(max(csv.field_size_limit(), MOST_BYTES))


def fields(line: str, separator: str, style: str = DOUBLE, strict: bool = True) -> list[str]:
    """Return the values of a row. Raises csv.Error where it is not well formed; `strict` False accepts text behind a quote, as in `"a" ,b`."""
    return next(_reader(iter([line]), separator, style, strict), [])


class Rows(NamedTuple):
    """The rows of a text, each on one line.

    Attributes:
        text: the rows. A line end inside a value is replaced by `stand_in`.
        starts: the line of the given text, from 0, at which each row begins.
        stand_in: a character that the given text lacks; empty where no value has a line end.
        bad: the rows, from 0, that are not well formed or have a wrong number of values; each is a line of the given text, unchanged.
        rest: the remaining lines, which need more text before it is known whether they are one row.
    """

    text: bytes
    starts: np.ndarray
    stand_in: bytes
    bad: tuple[int, ...]
    rest: bytes


@dataclass(frozen=True)
class CsvRows:
    """The splitting of text into rows.

    A line that is no row by itself may begin a row that spans lines. It does so if the lines that follow complete a row within 1,000 lines and
    64 MiB. Otherwise it is a bad row by itself. A stray quote thus costs only its own line, not all lines up to the next quote.

    Attributes:
        separator: the character between values.
        num_values: the number of values of a row.
        style: how a quote is written inside a quoted value: `DOUBLE`, or `BACKSLASH`, where a backslash makes the character after it ordinary,
            anywhere, and a quote may also be doubled (`csv.reader`'s `escapechar`).
        spans: whether rows may span lines.
    """

    separator: str
    num_values: int
    style: str = DOUBLE
    spans: bool = True

    def of(self, text: bytes, at_end: bool = True) -> Rows | None:
        """Return the rows of whole lines, of which the first begins a row; None where each line is a row that needs no care.

        Args:
            text: lines that end in LF.
            at_end: whether no more text follows.
        """
        if (sound := self._sound(text, at_end)) is not None:
            return sound or None
        found = self._careful(text)
        if found is None:
            return None
        lines, ends = found
        pieces, inner, bad, done, behind, stop = [], [], [], 0, 0, len(ends)
        stand_in = _stand_in(text).decode()
        for line in lines.tolist():
            if line < behind:
                continue
            start = int(ends[line - 1]) + 1 if line else 0
            values, count, fault = self._row(text, ends, line)
            if fault == OPEN and self.spans and not at_end and line + count == len(ends) and count < MOST_LINES and len(text) - start < MOST_BYTES:
                stop = line
                break
            if values is None or len(values) != self.num_values:
                bad.append(line)
                continue
            pieces += [text[done:start], _written(self.separator, values, stand_in)]
            done, behind = int(ends[line + count - 1]) + 1, line + count
            inner += range(line + 1, behind)
        cut = int(ends[stop - 1]) + 1 if stop else 0
        starts = np.setdiff1d(np.arange(stop), np.asarray(inner, np.int64), assume_unique=True)
        places = np.searchsorted(starts, bad).tolist()
        return Rows(b"".join([*pieces, text[done:cut]]), starts, stand_in.encode() if inner else b"", tuple(places), text[cut:])

    def _sound(self, text: bytes, at_end: bool) -> Rows | tuple[()] | None:
        """Return the rows of a text without anything that needs care, found without a look at each; () where each line is a row, None if unsure."""
        if _RETURN in text or (self.style == BACKSLASH and _BACKSLASH in text):
            return None
        if _QUOTE not in text:
            return ()
        data = np.frombuffer(text, np.uint8)
        ends, quotes = np.flatnonzero(data == _NEWLINE), np.flatnonzero(data == _QUOTE)
        if not (_beside(data, quotes[::2], -1, self.separator.encode()).all() and _beside(data, quotes[1::2], 1, self.separator.encode()).all()):
            return None
        inside = (np.searchsorted(quotes, ends) & 1).astype(bool)  # a value
        if not inside.any():
            return ()
        last = np.flatnonzero(~inside)  # line of each row
        starts, row_ends = np.concatenate([[0], last[:-1] + 1])[: len(last)], ends[last]
        stop = int(row_ends[-1]) + 1 if len(last) else 0
        longest = max((last - starts).max(initial=0) + 1, len(ends) - (int(last[-1]) + 1 if len(last) else 0))
        size = max(np.diff(row_ends, prepend=-1).max(initial=0), len(text) - stop)
        if not self.spans or (at_end and stop < len(text)) or longest >= MOST_LINES or size >= MOST_BYTES:
            return None
        separators = _separators(data, self.separator.encode())
        outside = separators[(np.searchsorted(quotes, separators) & 1 == 0) & (separators < stop)]
        if (np.bincount(np.searchsorted(row_ends, outside), minlength=len(last)) != self.num_values - 1).any():
            return None
        stand_in = _stand_in(text)
        inner = ends[inside]
        places = [-1, *inner[inner < stop].tolist(), stop]
        joined = stand_in.join(text[a + 1 : b] for a, b in itertools.pairwise(places))
        return Rows(joined, starts, stand_in if len(places) > 2 else b"", (), text[stop:])

    def miscounted(self, text: bytes) -> np.ndarray:
        """Return the rows, from 0, of well-formed rows of one line each that have a wrong number of values."""
        data = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        places = _separators(data, self.separator.encode())
        lines = np.searchsorted(ends, places)
        quotes = np.flatnonzero(data == _QUOTE)
        before = np.searchsorted(quotes, np.concatenate([[0], ends[:-1] + 1]))  # quotes before each line
        outside = (np.searchsorted(quotes, places) - before[lines]) % 2 == 0
        return np.flatnonzero(np.bincount(lines[outside], minlength=len(ends)) != self.num_values - 1)

    def may_span(self, text: bytes) -> bool:
        """Return True if a line opens a quote and does not close it."""
        found = self._careful(text)
        return found is not None and any(self._row(text, found[1], line, 1)[2] == OPEN for line in found[0].tolist())

    def fault(self, line: str) -> str | None:
        """Describe the error in a bad row of one line; None where only the number of values is wrong."""
        text = line.encode() + b"\n"
        values, _, fault = self._row(text, np.array([len(text) - 1]), 0)
        return fault if values is None else None

    def _careful(self, text: bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the lines that are not plainly rows, and the positions of all newlines; None where there are no such lines.

        A line is plainly a row if its quotes are, in turn, behind and before a separator, a line end or one another, and it has no other special
        character.
        """
        special = [byte for byte in (_RETURN, *([_BACKSLASH] if self.style == BACKSLASH else [])) if byte in text]
        if _QUOTE not in text and not special:
            return None
        data = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        quotes = np.flatnonzero(data == _QUOTE)
        lines = np.searchsorted(ends, quotes)
        first = np.searchsorted(lines, np.arange(len(ends) + 1))  # of each line, the place of its first quote
        opening = (np.arange(len(quotes)) - first[lines]) % 2 == 0
        fits = np.where(opening, _beside(data, quotes, -1, self.separator.encode()), _beside(data, quotes, 1, self.separator.encode()))
        wrong = [lines[~fits], np.flatnonzero(np.diff(first) % 2), *(np.searchsorted(ends, np.flatnonzero(data == byte)) for byte in special)]
        found = np.unique(np.concatenate(wrong))
        return (found, ends) if len(found) else None

    def _row(self, text: bytes, ends: np.ndarray, line: int, most: int = MOST_LINES) -> tuple[list[str] | None, int, str | None]:
        """Read the row that begins at a line. Return its values, or None; the number of lines that were read; and the fault."""
        start = int(ends[line - 1]) + 1 if line else 0
        ran_out = False

        def lines() -> Iterator[str]:
            nonlocal ran_out
            place = start
            for end in ends[line : line + (most if self.spans else 1)].tolist():
                if end >= start + MOST_BYTES:
                    break
                yield text[place : end + 1].decode(errors="surrogateescape")
                place = end + 1
            ran_out = True

        reader = _reader(lines(), self.separator, self.style)
        try:
            return next(reader) or [""], reader.line_num, None  # a line of blank ends is a row of one empty value
        except csv.Error as error:
            return None, reader.line_num, OPEN if ran_out else _described(error)


def _written(separator: str, values: list[str], stand_in: str) -> bytes:
    """Return a row on one line, ended by LF."""
    special = (QUOTE, separator, "\n", "\r")
    cells = (QUOTE + value.replace(QUOTE, QUOTE * 2) + QUOTE if any(map(value.__contains__, special)) else value for value in values)
    return (separator.join(cells).replace("\n", stand_in) + "\n").encode(errors="surrogateescape")


def _stand_in(text: bytes) -> bytes:
    """Return a private character that a text lacks."""
    return next(one for one in (chr(point).encode() for point in _STAND_INS) if one not in text)


def _beside(data: np.ndarray, places: np.ndarray, step: int, separator: bytes) -> np.ndarray:
    """Return whether the character before (step -1) or after (1) each place is a separator, a line end, a quote, or the text's begin."""
    allowed = np.zeros(256, bool)
    allowed[[_NEWLINE, _QUOTE, *(separator if len(separator) == 1 else b"")]] = True
    found = allowed[data[np.maximum(places + step, 0)]]
    if step < 0 and len(places) and places[0] == 0:
        found[0] = True
    if len(separator) == 1:
        return found
    start = places + 1 if step > 0 else places - len(separator)
    whole = (start >= 0) & (start + len(separator) <= len(data))
    for i, byte in enumerate(separator):
        whole &= data[np.clip(start + i, 0, len(data) - 1)] == byte
    return found | whole


def _separators(data: np.ndarray, separator: bytes) -> np.ndarray:
    """Return the places of all separators."""
    places = np.flatnonzero(data == separator[0])
    for i, byte in enumerate(separator[1:], 1):
        places = places[data[np.minimum(places + i, len(data) - 1)] == byte]
    return places


def _reader(lines: Iterator[str], separator: str, style: str, strict: bool = True) -> Iterator[list[str]]:
    return csv.reader(lines, delimiter=separator, quotechar=QUOTE, strict=strict, escapechar="\\" if style == BACKSLASH else None)


def _described(error: csv.Error) -> str:
    if "new-line" in str(error):
        return "a carriage return (CR) inside a value; expected quotes around the value"
    return "a quote inside a value that begins with one; expected it doubled"
