"""Parsing of ISO 8601 times, with or without an offset."""

import polars as pl

_OFFSET = r"[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?"
_FORMS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")


def iso_times(texts: pl.Expr) -> pl.Expr:
    """Parse texts such as `2024-03-10T02:30:00.5-08:00`, `2024-03-10 02:30` or `2024-03-10` to Datetime in microseconds of UTC; else null.

    A time without an offset is in UTC. Offsets are `Z`, `+05:30`, `+0530` or `+05`, after a time of day. Years are 1 to 9999.
    """
    return texts.map_batches(_parsed, return_dtype=pl.Datetime("us"), is_elementwise=True)


def _parsed(texts: pl.Series) -> pl.Series:
    # Not one expression: Polars copies what an expression names twice, so its plan took 5 ms. And most columns have no offsets to look for.
    plain = texts.to_frame("text").select(pl.col("text").str.replace("[Tt]", " "))
    times = plain.select(_local(pl.col("text")).alias("time"))
    if times["time"].null_count() > texts.null_count():
        times = times.select(pl.coalesce("time", _with_offset(plain)))
    return times.select(pl.when(pl.col("time").dt.year().is_between(1, 9999)).then("time")).to_series().alias(texts.name)


def _local(texts: pl.Expr) -> pl.Expr:
    times = (texts.str.to_datetime(form, strict=False, time_unit="us") for form in _FORMS)
    return pl.coalesce(*times, texts.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")))


def _with_offset(plain: pl.DataFrame) -> pl.Series:
    text, offset, hours, minutes = (pl.col(name) for name in ("text", "offset", "hours", "minutes"))
    parts = plain.select(
        _local(text.str.replace(rf"^(.*:[0-9.]+) ?(?:{_OFFSET})$", "$1")).alias("time"), text.str.extract(rf":[0-9.]+ ?({_OFFSET})$").alias("offset")
    ).with_columns(
        offset.str.slice(1, 2).cast(pl.Int64, strict=False).alias("hours"),
        pl.when(offset.str.len_bytes() > 3).then(offset.str.extract("([0-9]{2})$").cast(pl.Int64, strict=False)).otherwise(0).alias("minutes"),
    )
    sign = pl.when(offset.str.starts_with("-")).then(-1).otherwise(1)
    utc = pl.col("time") - pl.duration(minutes=sign * (60 * hours + minutes), time_unit="us")
    return parts.select(
        pl.when(offset.str.to_uppercase().eq("Z")).then("time").when((hours <= 23) & (minutes <= 59)).then(utc).alias("time")
    ).to_series()
