"""Dictionaries and ids of columns, computed with Polars: memory grows with the distinct values of one column, not with the rows."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

VALUE = "value"
T = TypeVar("T")
_BATCH_ROWS = 1 << 18


def counts(column: pl.LazyFrame) -> pl.DataFrame:
    """Count each value of a column called `value`, null included: `value`, `count` UInt32, in no order."""
    return column.group_by(VALUE).agg(pl.len().alias("count")).collect(engine="streaming")


def text_counts(blocks: Iterable[tuple[np.ndarray, pl.Series]]) -> pl.DataFrame:
    """Count each text of a column; missing texts are left out.

    Args:
        blocks: of the column: codes `[n]`, which are indices into texts, and the texts, unique within a block.

    Returns:
        `value` String and `count` Int64, in no order.
    """

    def counted() -> Iterator[pl.DataFrame]:
        for codes, texts in blocks:
            times = pl.Series("count", np.bincount(codes, minlength=len(texts)), pl.Int64)
            yield pl.DataFrame([texts.alias(VALUE), times])

    frame = _stream(counted(), {VALUE: pl.String, "count": pl.Int64})
    found = frame.group_by(VALUE).agg(pl.col("count").sum()).collect(engine="streaming")
    return found.filter((pl.col("count") > 0) & pl.col(VALUE).is_not_null())  # not in the query, which would leave the filter to the stream


def _stream(frames: Iterator[pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.LazyFrame:
    """Return frames as one lazy frame, which can be read once. A filter on it is lost: Polars hands it to the source, which ignores it."""
    return register_io_source(lambda *_: frames, schema=schema)


def dictionary(found: pl.DataFrame, threshold: int, max_ids: int | None) -> pl.DataFrame:
    """Assign ids from 1 by falling frequency, equal counts by rising value (by bytes); null gets none.

    Args:
        found: `value` String, unique, and `count`.
        threshold: a value is kept if it occurs at least this often; 0 and 1 keep all.
        max_ids: the most values that are kept, the most frequent first; None for all.

    Returns:
        `value` String, `id` Int32, `count` UInt32, in the order of the ids.
    """
    return _numbered(found, threshold, max_ids, 1)


def extended(old: pl.DataFrame, found: pl.DataFrame, threshold: int, max_ids: int | None) -> pl.DataFrame:
    """Extend an older dictionary: new values go behind its own, by falling frequency among them, and its counts grow by those found."""
    known = old.join(found.rename({"count": "more"}), on=VALUE, how="left", maintain_order="left")
    total = pl.col("count").cast(pl.UInt64) + pl.col("more").fill_null(0).cast(pl.UInt64)
    total = known.select(VALUE, "id", pl.min_horizontal(total, pl.lit(2**32 - 1, pl.UInt64)).cast(pl.UInt32).alias("count"))
    room = None if max_ids is None else max(max_ids - old.height, 0)
    first = 1 if old.is_empty() else int(old["id"][-1]) + 1
    return pl.concat([total, _numbered(found.join(old, on=VALUE, how="anti"), threshold, room, first)])


def _numbered(found: pl.DataFrame, threshold: int, max_ids: int | None, first: int) -> pl.DataFrame:
    kept = found.filter(pl.col(VALUE).is_not_null() & (pl.col("count") >= threshold)).sort("count", VALUE, descending=[True, False])
    kept = kept if max_ids is None else kept.head(max_ids)
    return kept.with_row_index("id", offset=first).select(VALUE, pl.col("id").cast(pl.Int32), pl.col("count").cast(pl.UInt32))


def text_ids(blocks: Iterable[tuple[T, pl.Series]], vocabulary: pl.DataFrame) -> Iterator[tuple[T, np.ndarray]]:
    """Yield the ids of texts by a dictionary, block by block.

    Args:
        blocks: any object that identifies the block, and its texts `[n]`.
        vocabulary: `value` String, unique, and `id`.

    Yields:
        the object of each block, and its ids `[n]` int32; 0 for null and for texts that the dictionary lacks.
    """
    asked: deque[tuple[T, int]] = deque()

    def frames() -> Iterator[pl.DataFrame]:
        for block, texts in blocks:
            asked.append((block, len(texts)))
            yield texts.alias(VALUE).to_frame()

    # A join, not a lookup per block: the streaming engine builds the hash table of the dictionary only once.
    found = _stream(frames(), {VALUE: pl.String}).join(vocabulary.lazy().select(VALUE, "id"), on=VALUE, how="left", maintain_order="left")
    parts, waiting = [], 0
    for batch in found.select(pl.col("id").fill_null(0)).collect_batches(maintain_order=True, engine="streaming"):
        parts.append(batch["id"].to_numpy())
        waiting += batch.height
        while asked and asked[0][1] <= waiting:
            block, size = asked.popleft()
            ids = np.concatenate(parts)
            yield block, ids[:size]
            parts, waiting = [ids[size:]], waiting - size


def batches(frame: pl.LazyFrame, rows: int = _BATCH_ROWS) -> Iterator[pl.DataFrame]:
    """Yield a lazy frame's rows in order, in batches."""
    for batch in frame.collect_batches(chunk_size=rows, maintain_order=True, engine="streaming"):
        if batch.height:
            yield batch
