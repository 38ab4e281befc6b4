"""The task that makes one feature's dictionary from partial counts, in an executor's memory; used if there are not too many counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from utils.naming import naming

MERGED = "merged.parquet"


@dataclass(frozen=True)
class Merging:
    """The partial counts of a feature.

    Attributes:
        feature: index of the feature.
        files: Parquet files of `feature`, `value`, `count`.
        known: file of `value`, `count` and `id` of the values that have ids already; None where there are none.
        threshold: least number of occurrences of a new value.
        most: largest number of values, None for all; known ones stay.
    """

    feature: int
    files: Sequence[Path]
    known: Path | None
    threshold: int
    most: int | None = None


def merge(item: Merging, folder: Path) -> None:
    """Write `value` and `count` in the order of the ids: known values first, then by falling count, equal counts by rising value."""
    counts = pl.scan_parquet(list(item.files), glob=False).filter(pl.col("feature") == item.feature)
    found = counts.select("value", "count", pl.lit(None, pl.Int64).alias("id"))
    if item.known is not None:
        found = pl.concat([found, pl.scan_parquet(item.known, glob=False).select("value", "count", "id")])
    summed = found.group_by("value").agg(pl.col("count").sum(), pl.col("id").max()).collect(engine="streaming")
    kept = summed.filter((pl.col("count") >= item.threshold) | pl.col("id").is_not_null())
    ordered = kept.sort("id", "count", "value", descending=[False, True, False], nulls_last=True)
    if item.most is not None:
        ordered = ordered.head(max(item.most, ordered["id"].is_not_null().sum()))
    with naming(folder / MERGED):
        ordered.select("value", "count").write_parquet(folder / MERGED, compression="snappy")
