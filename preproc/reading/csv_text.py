"""Parsing of CSV text whose rows are lines, by Polars."""

import io
from collections.abc import Collection, Sequence

import polars as pl

from preproc.reading.text_blocks import count
from utils.csv_rows import QUOTE

_ONES = "\x1f\x1e\x1d\x1c\x01\x02\x03\x04"  # while a block is parsed, one that it lacks takes the place of a separator that is not one byte
# zlib, gzip, zstd: first bytes that Polars takes for compressed data; and those that it drops, a byte order mark
_MEANT = (b"x", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf")


def parsed_rows(
    text: bytes, num_rows: int, separator: str, quotes: bool, columns: Sequence[str], names: Sequence[str], coded: Collection[str] = ()
) -> pl.DataFrame | None:
    """Parse rows of one line each; return None where any row is bad.

    Args:
        text: the rows. Of values in quotes it holds only well-formed ones; see `utils.csv_rows`.
        num_rows: the number of lines.
        separator: the text between values.
        quotes: whether values may stand in quotes.
        columns: the names of all columns.
        names: the columns that are returned.
        coded: columns that may be returned as categories, which are local to the block.
    """
    given = separator
    if len(separator) > 1 or not separator.isascii():
        separator = next((one for one in _ONES if one.encode() not in text), "")
        if not separator:
            return None
        text = text.replace(given.encode(), separator.encode())
    quoted, guarded = quotes and QUOTE.encode() in text, text.startswith(_MEANT)
    # Polars silently pads a line of too few values. So separators are counted or, where they may be quoted, a mark ends each line.
    marked, end = quoted or guarded, ":" if separator == "." else "."
    if marked:
        text = ((b"\n" if guarded else b"") + text).replace(b"\n", f"{separator}{end}\n".encode())
        text = separator.encode() * (len(columns) - 1) + text if guarded else text  # the guard: a row of empty values
    elif count(text, ord(separator)) != num_rows * (len(columns) - 1):
        return None
    kinds = {name: pl.String() for name in columns}
    if not marked:  # the parser of categories knows no quotes
        kinds |= {name: pl.Categorical(pl.Categories.random()) for name in coded if name in kinds}
    try:
        frame = pl.read_csv(
            io.BytesIO(text),
            has_header=False,
            separator=separator,
            quote_char=QUOTE if quoted else None,
            schema={f"{i}": kind for i, kind in enumerate(kinds.values())} | ({"end": pl.String()} if marked else {}),
            empty_string_is_null=False,
        )
    except pl.exceptions.PolarsError:
        return None
    frame = frame[1:] if guarded else frame
    if frame.height != num_rows or (marked and not (frame["end"] == end).all()):
        return None
    frame = frame.select(pl.col(str(columns.index(name))).alias(name) for name in names)
    if quoted and separator != given:  # separators inside quotes
        frame = frame.with_columns(pl.all().str.replace_all(separator, given, literal=True))
    return frame
