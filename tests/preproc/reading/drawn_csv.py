"""Drawn CSV texts with quotes of every kind, and what Python's `csv.reader(strict=True)` reads of them."""

import csv
import random

from utils.csv_rows import BACKSLASH, DOUBLE

_PIECES = {'"': 2, '""': 2, "\n": 1, "\r\n": 0.5, "\r": 0.15, "\\": 0.5, '\\"': 1, "": 3, " ": 2, "'": 0.5, "a": 8, "é": 1, "😀": 0.1}
_PIECES |= {'5"': 0.5, "x^": 0.3, "\ufeff": 0.1, "\ue000": 0.3, "\0": 0.1, "\x1f": 0.1}
SEPARATORS = (",", ",", "\t", ";", "|", "¦", " ", "\x01")


def drawn(seed: int, separator: str | None = None, columns: int | None = None) -> tuple[str, str, str]:
    """Draw a table of 1 to 4 columns, c0, c1, …; return its text, its separator and its style of quotes. With `columns`, a label y follows them."""
    rng = random.Random(seed)
    separator = separator or rng.choice(SEPARATORS)
    pieces = _PIECES | {separator: 2}

    def cell() -> str:
        value, how = "".join(rng.choices([*pieces], [*pieces.values()], k=rng.randint(0, 6))), rng.random()
        if how < 0.45:
            return '"' + value.replace('"', '""') + '"'
        if how < 0.6:
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return value if how > 0.93 else "".join(one for one in value if one not in f'"{separator}\n\r') or "v"

    width, end = columns or rng.randint(1, 4), rng.choice(["\n", "\n", "\r\n"])
    rows = [[f"c{i}" for i in range(width)], *([cell() for _ in range(width)] for _ in range(rng.randint(1, 8)))]
    if columns:
        rows = [[*row, rng.choice("01") if i else "y"] for i, row in enumerate(rows)]
    text = end.join(map(separator.join, rows)) + rng.choice([end, "", 2 * end])
    return rng.choice(["", "", "\ufeff"]) + text, separator, rng.choice([DOUBLE, DOUBLE, BACKSLASH])


def by_csv(text: str, separator: str, style: str) -> tuple[list[tuple[str, ...]], int | None]:
    """Return the rows that `csv.reader` reads up to the first that is bad, and that row's first line, from 1; None without one.

    Line ends are LF for it, as Python's text files have them. A blank line is a row of one column.
    """
    lines = iter(line + "\n" for line in text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n").split("\n"))
    reader = csv.reader(lines, delimiter=separator, strict=True, escapechar="\\" if style == BACKSLASH else None)
    width, found = len(next(reader)), []
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return found, None
        except csv.Error:
            return found, line
        row = row or [""]
        if len(row) != width:
            return found, line
        found.append(tuple(row))


def every_row(text: str, separator: str, style: str) -> list[tuple[str, ...]]:
    """Return the rows that `by_csv` reads where it begins anew behind each bad line."""
    header, *lines = text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n").split("\n")
    found: list[tuple[str, ...]] = []
    while lines:
        rows, bad = by_csv("\n".join([header, *lines]), separator, style)
        found += rows
        lines = [] if bad is None else lines[bad - 1 :]
    return found
