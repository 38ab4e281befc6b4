"""Dictionaries made on Spark: partial counts of all features are added up and sorted in the order of the ids, on the disk.

Up to some ten million partial counts, one task for each feature does this in memory, since Spark SQL takes longer to start. More are left to Spark
SQL, whose shuffle spills to the disk: no feature has to fit the memory of an executor, or of the driver.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from preproc.shared.polars_engine import batches
from preproc.shared.vocabulary_file import write_vocabulary
from preproc.spark.engine import SparkEngine
from preproc.spark.merged_counts import MERGED, Merging, merge

_SQL = {pl.UInt32: "BIGINT", pl.String: "BINARY"}  # texts as bytes, which sort as in Polars, whatever collation is set
_MOST_COUNTED = 2**32 - 1
_TEXT_SIZE = 4  # estimated size of a text, in numbers
_PARTITION_ROWS = 2_000_000
TASK_COUNTS = 32 << 20  # the most counts of all features that tasks add up: every task reads them all, 16 bytes each before compression
_SPECIAL = re.compile(r"([\[\]{}*?\\])")


class Dictionaries:
    """The dictionaries of several features.

    Args:
        engine: running Spark engine.
        counts: pattern, below the engine's folder, of Parquet files of partial counts: `feature` (its index), `value`, `count`.
        rows: number of rows of these files together.
        thresholds: for each feature, the least number of occurrences of a new value.
        known: for each feature whose dictionary is extended, the values that have ids already: a frame of `value`, `id` from 1 on, `count`. They
            keep their ids, whatever their count.
        kind: type of the values, UInt32 or String; in the files of counts the numbers are Int64.
        most: largest number of values of each feature, None for all; known values stay, however many there are.
    """

    def __init__(
        self,
        engine: SparkEngine,
        counts: str,
        rows: int,
        thresholds: Sequence[int],
        known: Mapping[int, pl.LazyFrame] | None = None,
        kind: type[pl.DataType] = pl.UInt32,
        most: Sequence[int | None] | None = None,
    ):
        self._engine, self._thresholds, self._kind = engine, thresholds, kind
        self._most = most or [None] * len(thresholds)
        self._known = engine.folder / "known" if known else None
        self._parts: list[list[Path]] = []  # files of each feature
        if known:
            rows += _write_known(self._known, known, kind)
        if rows <= TASK_COUNTS // (1 if kind == pl.UInt32 else _TEXT_SIZE):
            self._merge(counts)
        else:
            ordered = engine.folder / "ordered"
            engine.run(lambda: self._order(counts, ordered, max(engine.parallelism, -(-rows // _PARTITION_ROWS))), "dictionaries")
            self._parts = [sorted(ordered.glob("part-*.parquet"))] * len(thresholds)

    def _merge(self, counts: str) -> None:
        files = sorted(self._engine.folder.glob(counts))
        known = [self._known and _known_file(self._known, place) for place in range(len(self._thresholds))]
        items = [Merging(place, files, known[place], threshold, self._most[place]) for place, threshold in enumerate(self._thresholds)]
        _, error = self._engine.map("dictionaries", merge, items, "feature")
        if error is not None:
            raise error
        self._parts = [[self._engine.task_folder("dictionaries", place) / MERGED] for place in range(len(items))]

    def _order(self, counts: str, ordered: Path, partitions: int) -> None:
        from pyspark.sql import functions as sql

        known = self._known is not None
        session = self._engine.sql
        if not session.sparkContext.getConf().contains("spark.sql.shuffle.partitions"):
            session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        # Each file by its name, not by a pattern: Hadoop's globs fail where a folder has a colon in its name.
        paths = [f"file://{_plain(path)}" for path in sorted(self._engine.folder.glob(counts))] + ([f"file://{_plain(self._known)}"] if known else [])
        schema = f"feature INT, value {_SQL[self._kind]}, count BIGINT" + (", id BIGINT" if known else "")
        found = session.read.schema(schema).parquet(*paths)
        sums = [sql.sum("count").alias("count"), *([sql.max("id").alias("id")] if known else [])]
        least = sql.array(*map(sql.lit, self._thresholds))[sql.col("feature")]
        kept = sql.col("count") >= least
        found = found.groupBy("feature", "value").agg(*sums).filter(kept | sql.col("id").isNotNull() if known else kept)
        order = [sql.col("id").asc_nulls_last()] if known else []
        found.orderBy("feature", *order, sql.col("count").desc(), "value").write.option("maxRecordsPerFile", 0).parquet(f"file://{ordered}")

    def write(self, feature: int, path: Path) -> int:
        """Write the vocabulary of a feature, given by its index. Return the number of its values."""
        scan = pl.scan_parquet(self._parts[feature], glob=False)
        scan = scan.filter(pl.col("feature") == feature) if "feature" in scan.collect_schema() else scan
        rows = scan.select(pl.len()).collect(engine="streaming").item()
        if self._most[feature] is not None and rows > self._most[feature]:
            held = 0 if self._known is None else pl.scan_parquet(_known_file(self._known, feature), glob=False).select(pl.len()).collect().item()
            rows = max(self._most[feature], held)
            scan = scan.head(rows)
        schema = pl.Schema({"value": self._kind, "id": pl.Int32, "count": pl.UInt32})
        write_vocabulary(path, self._frames(scan), rows, schema)
        return rows

    def _frames(self, scan: pl.LazyFrame) -> Iterator[pl.DataFrame]:
        first = 1
        for batch in batches(scan.select("value", "count")):
            count = pl.col("count").clip(upper_bound=_MOST_COUNTED).cast(pl.UInt32)
            ids = pl.int_range(first, first + batch.height, dtype=pl.Int32, eager=True).alias("id")
            yield batch.select(pl.col("value").cast(self._kind), ids, count)
            first += batch.height


def _known_file(folder: Path, feature: int) -> Path:
    return folder / f"{feature:06d}.parquet"


def _plain(path: Path) -> str:
    """Escape a name for Spark, which reads file names as patterns."""
    return _SPECIAL.sub(r"\\\1", str(path))


def _write_known(folder: Path, known: Mapping[int, pl.LazyFrame], kind: type[pl.DataType]) -> int:
    """Write known vocabularies in the form of partial counts, with the ids. Return the number of their rows."""
    folder.mkdir()
    for feature, frame in known.items():
        place = pl.lit(feature, pl.Int32).alias("feature")
        value = pl.col("value").cast(pl.Int64 if kind == pl.UInt32 else kind)
        frame.select(place, value, pl.col("count", "id").cast(pl.Int64)).sink_parquet(_known_file(folder, feature), compression="snappy")
    return sum(frame.select(pl.len()).collect().item() for frame in known.values())
