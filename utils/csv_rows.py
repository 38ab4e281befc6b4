"""The ends of rows of separated values, where quoted values may hold line ends (RFC 4180, section 2, rule 6)."""

import itertools
import re

import numpy as np

QUOTE = b'"'
MOST_LINES, MOST_BYTES = 1000, 64 << 20  # limits of one row; a quote that is not closed within them makes only its own line bad
_NEWLINE = 10
_STAND_INS = range(0xE000, 0xF900)  # Unicode's private characters
_OPEN = -1


class QuotedRows:
    """The splitting of text into rows.

    A line with an even number of quotes is a row. If it is well formed, its quotes are closed; if not, it is a bad row. A line with an odd number
    may begin a row that spans lines. It does so if the values that follow are well formed and complete a row within 1,000 lines and 64 MiB.
    Otherwise it is a bad row by itself. A stray quote thus costs only its own line, not all lines up to the next quote.

    Args:
        separator: the text between values.
        num_values: the number of values of a row.
    """

    def __init__(self, separator: str, num_values: int):
        self._separator, self._num_values = separator.encode(), num_values
        between = re.escape(self._separator)
        plain = rb'[^"\n%b]*' % between if len(self._separator) == 1 else rb'(?:(?!%b)[^"\n])*' % between
        self._plain = re.compile(plain)
        self._plain_values = re.compile(rb"(?:%b%b){0,%d}" % (plain, between, num_values - 1))
        self._quotes = re.compile(rb'"+')

    def odd_lines(self, text: bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the lines with an odd number of quotes, and the positions of all newlines; None where there are no such lines."""
        if QUOTE not in text:
            return None
        data = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        quotes = np.searchsorted(np.flatnonzero(data == QUOTE[0]), ends)  # the number of quotes before each newline
        odd = np.flatnonzero(np.diff(quotes, prepend=0) & 1)
        return (odd, ends) if len(odd) else None

    def joined(self, text: bytes, odd: np.ndarray, ends: np.ndarray, at_end: bool) -> tuple[bytes, np.ndarray, bytes, bytes]:
        """Join the lines of each row into one line.

        Args:
            text: whole lines; the first begins a row.
            odd: the lines with an odd number of quotes, from `odd_lines`.
            ends: the positions of newlines, from `odd_lines`.
            at_end: whether no more text follows.

        Returns:
            the rows, with newlines inside values replaced by `stand_in`; the line, from 0, at which each begins; `stand_in`; and the remaining
            lines, which need more text before it is known whether they are one row.
        """
        inner, stop, behind = [], len(ends), 0
        for line in odd.tolist():
            if line < behind:
                continue
            start = int(ends[line - 1]) + 1 if line else 0
            most = min(int(ends[min(line + MOST_LINES, len(ends)) - 1]) + 1, start + MOST_BYTES)
            end = self._end(text, start, most)
            if end == _OPEN and most == len(text) and not at_end:
                stop = line
                break
            if end > 0:
                behind = int(np.searchsorted(ends, end - 1)) + 1
                inner += range(line, behind - 1)
        cut = int(ends[stop - 1]) + 1 if stop else 0
        starts = np.setdiff1d(np.arange(stop), np.asarray(inner, np.int64) + 1, assume_unique=True)
        text, rest = text[:cut], text[cut:]
        if not inner:
            return text, starts, b"", rest
        stand_in = next(found for found in (chr(point).encode() for point in _STAND_INS) if found not in text)
        places = [-1, *ends[inner].tolist(), cut]
        return stand_in.join(text[a + 1 : b] for a, b in itertools.pairwise(places)), starts, stand_in, rest

    def _end(self, text: bytes, start: int, stop: int) -> int:
        """Return the end of the row that begins at `start`; `_OPEN` where `stop` is inside a quoted value, 0 where there is no row."""
        left = self._num_values - 1  # the separators to come
        while True:
            at = self._plain_values.match(text, start, stop).end()
            left -= text.count(self._separator, start, at)
            if left < 0:
                return 0
            at = self._closed(text, at, stop) if text.startswith(QUOTE, at, stop) else self._plain.match(text, at, stop).end()
            if at == _OPEN:
                return _OPEN
            if not text.startswith(self._separator if left else b"\n", at, stop):
                return 0
            if not left:
                return at + 1
            left -= 1
            start = at + len(self._separator)

    def _closed(self, text: bytes, start: int, stop: int) -> int:
        """Return the end of the quoted value that begins at `start`: after the first odd number of quotes; `_OPEN` without one."""
        return next((run.end() for run in self._quotes.finditer(text, start + 1, stop) if (run.end() - run.start()) % 2), _OPEN)
