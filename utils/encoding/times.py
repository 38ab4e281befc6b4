"""Parsing of ISO 8601 times, with or without an offset."""

import polars as pl

_OFFSET = r"[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?"
_FORMS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")


def iso_times(texts: pl.Expr) -> pl.Expr:
    """Parse texts such as `2024-03-10T02:30:00.5-08:00`, `2024-03-10 02:30` or `2024-03-10` to Datetime in microseconds of UTC; else null.

    A time without an offset is in UTC. Offsets are `Z`, `+05:30`, `+0530` or `+05`, after a time of day. Years are 1 to 9999.
    """
    plain = texts.str.replace("[Tt]", " ")
    offset = plain.str.extract(rf":[0-9.]+ ?({_OFFSET})$")
    local = plain.str.replace(rf"^(.*:[0-9.]+) ?(?:{_OFFSET})$", "$1")
    found = pl.coalesce(
        *(local.str.to_datetime(form, strict=False, time_unit="us") for form in _FORMS),
        plain.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")),
    )
    hours, minutes = offset.str.slice(1, 2).cast(pl.Int64, strict=False), offset.str.extract("([0-9]{2})$").cast(pl.Int64, strict=False)
    minutes = pl.when(offset.str.len_bytes() > 3).then(minutes).otherwise(0)
    sign = pl.when(offset.str.starts_with("-")).then(-1).otherwise(1)
    ahead = pl.duration(minutes=sign * (60 * hours + minutes), time_unit="us")
    utc = offset.is_null() | offset.str.to_uppercase().eq("Z")
    found = pl.when(utc).then(found).when((hours <= 23) & (minutes <= 59)).then(found - ahead)
    return pl.when(found.dt.year().is_between(1, 9999)).then(found)
