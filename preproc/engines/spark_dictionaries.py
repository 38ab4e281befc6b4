"""Dictionaries by Spark SQL: counts of all features together, in the order of the ids, on the disk.

The shuffle is Spark's own, which goes to the disk where memory does not do: no feature has to fit an executor, and none the driver.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from preproc.engines.polars_engine import batches
from preproc.engines.spark_engine import SparkEngine
from preproc.vocabulary_file import write_vocabulary

SCHEMA = pl.Schema({"value": pl.UInt32, "id": pl.Int32, "count": pl.UInt32})
_COUNTED = "feature INT, value BIGINT, count BIGINT"
_PARTITION_ROWS = 2_000_000
_SPECIAL = re.compile(r"([\[\]{}*?\\])")


class Dictionaries:
    """The dictionaries of several features of 32-bit values.

    Args:
        engine: that counts.
        counts: a pattern below the engine's folder: of Parquet files of partial counts, `feature` (its place), `value`, `count`.
        rows: of these files together.
        thresholds: of each feature: how often a new value has to occur.
        known: values that have ids already, of each feature whose dictionary goes on: `value`, `id` from 1 on, `count`, as a frame. They keep their
            ids, whatever their count.
    """

    def __init__(self, engine: SparkEngine, counts: str, rows: int, thresholds: Sequence[int], known: Mapping[int, pl.LazyFrame] | None = None):
        self._engine, self._thresholds = engine, thresholds
        self._ordered = engine.folder / "ordered"
        patterns = [counts]
        if known:
            rows += _write_known(engine.folder / "known", known)
            patterns.append("known")
        partitions = max(engine.parallelism, -(-rows // _PARTITION_ROWS))
        engine.run(lambda: self._order(patterns, partitions, bool(known)), "dictionaries")
        self._parts = sorted(self._ordered.glob("part-*.parquet"))

    def _order(self, patterns: Sequence[str], partitions: int, known: bool) -> None:
        from pyspark.sql import functions as sql

        session = self._engine.sql
        if not session.sparkContext.getConf().contains("spark.sql.shuffle.partitions"):
            session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        paths = [f"file://{_plain(self._engine.folder)}/{pattern}" for pattern in patterns]
        found = session.read.schema(_COUNTED + (", id BIGINT" if known else "")).parquet(*paths)
        sums = [sql.sum("count").alias("count"), *([sql.max("id").alias("id")] if known else [])]
        least = sql.array(*map(sql.lit, self._thresholds))[sql.col("feature")]
        kept = sql.col("count") >= least
        found = found.groupBy("feature", "value").agg(*sums).filter(kept | sql.col("id").isNotNull() if known else kept)
        order = [sql.col("id").asc_nulls_last()] if known else []
        found.orderBy("feature", *order, sql.col("count").desc(), "value").write.parquet(f"file://{self._ordered}")

    def write(self, feature: int, path: Path) -> int:
        """Write a feature's vocabulary (by its place). Returns its values."""
        scan = pl.scan_parquet(self._parts, glob=False).filter(pl.col("feature") == feature)
        rows = scan.select(pl.len()).collect(engine="streaming").item()
        write_vocabulary(path, self._frames(scan), rows, SCHEMA)
        return rows

    def _frames(self, scan: pl.LazyFrame) -> Iterator[pl.DataFrame]:
        first = 1
        for batch in batches(scan.select("value", "count")):
            count = pl.col("count").cast(pl.UInt32)
            ids = pl.int_range(first, first + batch.height, dtype=pl.Int32, eager=True).alias("id")
            yield batch.select(pl.col("value").cast(pl.UInt32), ids, count)
            first += batch.height


def _plain(folder: Path) -> str:
    """A folder's name where patterns are read as well."""
    return _SPECIAL.sub(r"\\\1", str(folder))


def _write_known(folder: Path, known: Mapping[int, pl.LazyFrame]) -> int:
    """Write vocabularies in the form of partial counts, with the ids. Returns their rows."""
    folder.mkdir()
    for feature, frame in known.items():
        place = pl.lit(feature, pl.Int32).alias("feature")
        frame.select(place, pl.col("value", "count", "id").cast(pl.Int64)).sink_parquet(folder / f"{feature:06d}.parquet", compression="snappy")
    return sum(frame.select(pl.len()).collect().item() for frame in known.values())
