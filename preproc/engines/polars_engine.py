"""Dictionaries and ids of columns, streamed by Polars: memory grows with the distinct values of one column, not with the rows.

A column is a lazy frame of one column called `value`, in row order.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

VALUE = "value"
_BATCH_ROWS = 1 << 18


def counts(columns: Sequence[pl.LazyFrame]) -> pl.DataFrame:
    """How often each value stands in the columns (null is one, too): `value`, `count` UInt32, in no order."""
    frame = columns[0] if len(columns) == 1 else pl.concat(columns)
    return frame.group_by(VALUE).agg(pl.len().alias("count")).collect(engine="streaming")


def words(column: pl.LazyFrame) -> pl.LazyFrame:
    """The values of lists, one after another."""
    return column.filter(pl.col(VALUE).list.len() > 0).explode(VALUE)


def dictionary(columns: Sequence[pl.LazyFrame], threshold: int, max_ids: int | None) -> pl.DataFrame:
    """Ids from 1 by falling frequency, equal counts by rising value (by bytes); null gets none.

    Args:
        columns: of texts; those that share the dictionary.
        threshold: a value is kept when it occurs at least this often; 0 and 1 keep all.
        max_ids: how many are kept at most, the most frequent; None for all.

    Returns:
        `value` String, `id` Int32, `count` UInt32, in the order of the ids.
    """
    return _numbered(counts(columns), threshold, max_ids, 1)


def extended(old: pl.DataFrame, columns: Sequence[pl.LazyFrame], threshold: int, max_ids: int | None) -> pl.DataFrame:
    """An older dictionary with the values that it lacks behind its own, by falling frequency among them; its counts grow by those of the columns."""
    found = counts(columns)
    known = old.join(found.rename({"count": "more"}), on=VALUE, how="left", maintain_order="left")
    total = pl.col("count").cast(pl.UInt64) + pl.col("more").fill_null(0)
    total = known.select(VALUE, "id", pl.min_horizontal(total, pl.lit(2**32 - 1, pl.UInt64)).cast(pl.UInt32).alias("count"))
    room = None if max_ids is None else max(max_ids - old.height, 0)
    first = 1 if old.is_empty() else int(old["id"][-1]) + 1
    return pl.concat([total, _numbered(found.join(old, on=VALUE, how="anti"), threshold, room, first)])


def _numbered(found: pl.DataFrame, threshold: int, max_ids: int | None, first: int) -> pl.DataFrame:
    kept = found.filter(pl.col(VALUE).is_not_null() & (pl.col("count") >= threshold)).sort("count", VALUE, descending=[True, False])
    kept = kept if max_ids is None else kept.head(max_ids)
    return kept.with_row_index("id", offset=first).select(VALUE, pl.col("id").cast(pl.Int32), pl.col("count").cast(pl.UInt32))


def encoded(column: pl.LazyFrame, vocabulary: pl.DataFrame) -> Iterator[np.ndarray]:
    """Ids of a column of texts, in row order, batch by batch, Int32; 0 for what the dictionary lacks and for null."""
    # A join and not a lookup per batch: the streaming engine builds the hash table of the dictionary once.
    ids = column.join(vocabulary.lazy().select(VALUE, "id"), on=VALUE, how="left", maintain_order="left").select(pl.col("id").fill_null(0))
    for batch in batches(ids):
        yield batch["id"].to_numpy()


def batches(frame: pl.LazyFrame, rows: int = _BATCH_ROWS) -> Iterator[pl.DataFrame]:
    """A lazy frame's rows in their order, some at a time."""
    for batch in frame.collect_batches(chunk_size=rows, maintain_order=True, engine="streaming"):
        if batch.height:
            yield batch
