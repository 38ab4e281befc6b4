"""Random raw files for the preprocessing benchmarks: a click log in Criteo's format, and a table of texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.workload import t15_rows
from dataloading.synthetic.power_law import ids_from_uniforms
from preproc.criteo.clicklog import CATEGORICAL, LABEL, NUMERICAL

MOST_VALUES = 1_000_000  # maximum of distinct values in a column; the terabyte of logs has more, in far more rows
MISSING = 0.03  # share of missing values in each field except the label
ALPHA = 1.2  # exponent of the values' power law
TABLE_COLUMNS = tuple(f"column_{i}" for i in range(20))
_ROWS_AT_ONCE = 1 << 17
_ODD = 2654435761  # multiplication by an odd number modulo 2^32 maps different numbers to different ones


def write_log(path: Path, rows: int, seed: int) -> None:
    """Write a log of 13 integers and 26 hashes of 8 digits a line; every field except the label is missing at times."""
    texts = [_texts(min(values, MOST_VALUES), "{:08x}".format, place) for place, values in enumerate(t15_rows())]
    with path.open("wb") as file:
        for count, random in _blocks(rows, seed):
            columns: dict[str, pl.Series] = {LABEL: pl.Series((random.random(count) < 0.03).astype(np.uint8))}
            for name in NUMERICAL:
                columns[name] = _hidden(pl.Series(np.floor(random.exponential(3, count) ** 3).astype(np.int64)), random)
            for name, values in zip(CATEGORICAL, texts, strict=True):
                columns[name] = _hidden(_drawn(values, count, random), random)
            pl.DataFrame(columns).write_csv(file, separator="\t", include_header=False)


def write_table(path: Path, rows: int, seed: int) -> None:
    """Write a CSV file with a header, a label of 0 and 1, and 20 columns of texts with 4 to 100,000 distinct values."""
    sizes = np.geomspace(4, 100_000, len(TABLE_COLUMNS)).astype(int)
    texts = [_texts(size, f"{name}-{{}}".format, place) for place, (name, size) in enumerate(zip(TABLE_COLUMNS, sizes, strict=True))]
    with path.open("wb") as file:
        for block, (count, random) in enumerate(_blocks(rows, seed)):
            columns: dict[str, pl.Series] = {LABEL: pl.Series((random.random(count) < 0.2).astype(np.uint8))}
            for name, values in zip(TABLE_COLUMNS, texts, strict=True):
                columns[name] = _hidden(_drawn(values, count, random), random)
            pl.DataFrame(columns).write_csv(file, include_header=block == 0)


def _blocks(rows: int, seed: int) -> Iterator[tuple[int, np.random.Generator]]:
    for start in range(0, rows, _ROWS_AT_ONCE):
        yield min(_ROWS_AT_ONCE, rows - start), np.random.default_rng([seed, start])


def _texts(count: int, form, place: int) -> pl.Series:
    return pl.Series([form((number * _ODD + place) % 2**32) for number in range(count)])


def _drawn(values: pl.Series, count: int, random: np.random.Generator) -> pl.Series:
    return values.gather(ids_from_uniforms(random.random(count), len(values), ALPHA).astype(np.int64))


def _hidden(values: pl.Series, random: np.random.Generator) -> pl.Series:
    return values.set(pl.Series(random.random(len(values)) < MISSING), None)


def names_of(kind: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the integer and the categorical columns of a kind of file, `log` or `table`."""
    return (NUMERICAL, CATEGORICAL) if kind == "log" else ((), TABLE_COLUMNS)
