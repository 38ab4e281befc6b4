"""Values as texts, plain or with a type mark as a prefix, which tells 33, 33.0 and "33" apart until the column's kind is known.

Values of CSV files, JSON lines and text columns have no mark; if one begins with the first character of a mark, that is doubled. Marks are used in
intermediate data only; vocabularies hold none.
"""

import polars as pl

MARK = "\x00"
OF_INTEGER, OF_FLOAT, OF_FLOAT32, OF_DECIMAL, OF_BOOLEAN, OF_DATE, OF_DATETIME = (MARK + letter for letter in "ifgmbdt")
TYPES = {
    OF_INTEGER: "whole numbers",
    OF_FLOAT: "floats of 64 bits",
    OF_FLOAT32: "floats of 32 bits",
    OF_DECIMAL: "decimal numbers",
    OF_BOOLEAN: "booleans",
    OF_DATE: "dates",
    OF_DATETIME: "times",
}
NUMBERS = frozenset({OF_INTEGER, OF_FLOAT, OF_FLOAT32, OF_DECIMAL})
TIMES = frozenset({OF_DATE, OF_DATETIME})
BLANKS = " \t\n\r\v\f"  # around texts; those of ASCII, which TensorFlow's operations strip, too
_WHOLE = 2**53  # float64 represents every whole number below it exactly


def text(value: pl.Expr, dtype: pl.DataType, column: str) -> pl.Expr:
    """Convert values to texts, null where one is missing or empty; whole numbers have no decimal point, whatever their type.

    Raises:
        ValueError: the type cannot be converted to texts.
    """
    if dtype == pl.String:
        return pl.when(value != "").then(value)
    if dtype in (pl.Categorical, pl.Enum):
        return text(value.cast(pl.String), pl.String(), column)
    if dtype.is_float():
        whole = (value == value.round()) & (value.abs() < _WHOLE)
        return pl.when(whole).then(value.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(value.fill_nan(None).cast(pl.String))
    if dtype.is_integer() or dtype.is_decimal() or dtype.is_temporal() or dtype in (pl.Boolean, pl.Null):
        return value.cast(pl.String)
    raise ValueError(f"column {column} holds {dtype}, expected texts, numbers or booleans{'; use kind: list for lists' if dtype == pl.List else ''}")


def marked(value: pl.Expr, dtype: pl.DataType, column: str) -> pl.Expr:
    """Convert values to texts with a type mark; texts themselves get no mark, see `escaped`. Null where a value is missing or empty.

    Raises:
        ValueError: the type cannot be converted to texts.
    """
    if dtype.is_float():
        wide = dtype == pl.Float64
        number = (value if wide else value.cast(pl.Float32)).fill_nan(None)
        return pl.lit(OF_FLOAT if wide else OF_FLOAT32) + number.cast(pl.String)
    if dtype.is_integer() or dtype.is_decimal() or dtype == pl.Boolean:
        return pl.lit(OF_BOOLEAN if dtype == pl.Boolean else OF_INTEGER if dtype.is_integer() else OF_DECIMAL) + value.cast(pl.String)
    if dtype == pl.Date:
        return pl.lit(OF_DATE) + value.cast(pl.String)
    if dtype == pl.Datetime:
        value = value.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if getattr(dtype, "time_zone", None) else value
        return pl.lit(OF_DATETIME) + value.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%d %H:%M:%S%.6f")
    found = text(value, dtype, column)
    return escaped(found) if dtype in (pl.String, pl.Categorical, pl.Enum) else found


def escaped(texts: pl.Expr) -> pl.Expr:
    """Double the first character of texts that could be taken for marked ones."""
    return pl.when(texts.str.starts_with(MARK)).then(MARK + texts).otherwise(texts)


def split_mark(text: str) -> tuple[str, str]:
    """Split a text into its type mark, empty where there is none, and the rest."""
    if text.startswith(MARK * 2):
        return "", text[1:]
    mark = text[:2] if text[:2] in TYPES else ""
    return mark, text[len(mark) :]
