"""Dictionaries and ids of columns by Polars: memory grows with the distinct values of one column, not with the rows."""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from preproc.text_places import TextPlaces

VALUE = "value"
_BATCH_ROWS = 1 << 18


def counts(column: pl.LazyFrame) -> pl.DataFrame:
    """How often each value of a column called `value` stands in it (null is one, too): `value`, `count` UInt32, in no order."""
    return column.group_by(VALUE).agg(pl.len().alias("count")).collect(engine="streaming")


def text_counts(blocks: Iterable[tuple[np.ndarray, pl.Series]]) -> pl.DataFrame:
    """How often each text stands in a column, those that are missing left out.

    Args:
        blocks: of the column: places `[n]` in texts, and the texts, each once in its block.

    Returns:
        `value` String and `count` Int64, in no order.
    """
    table = TextPlaces()
    total = np.zeros(1, np.int64)
    for codes, texts in blocks:
        times = np.bincount(codes, minlength=len(texts))
        seen = (times > 0) & texts.is_not_null().to_numpy()
        places = table.of(texts.filter(pl.Series(seen))).to_numpy()
        most = int(places.max(initial=0))
        if most >= len(total):
            total = np.concatenate([total, np.zeros(max(most + 1 - len(total), len(total)), np.int64)])
        total[places] += times[seen]
    return pl.DataFrame({VALUE: table.texts, "count": total[: len(table.texts)]})


def dictionary(found: pl.DataFrame, threshold: int, max_ids: int | None) -> pl.DataFrame:
    """Ids from 1 by falling frequency, equal counts by rising value (by bytes); null gets none.

    Args:
        found: `value` String, each once, and `count`.
        threshold: a value is kept when it occurs at least this often; 0 and 1 keep all.
        max_ids: how many are kept at most, the most frequent; None for all.

    Returns:
        `value` String, `id` Int32, `count` UInt32, in the order of the ids.
    """
    return _numbered(found, threshold, max_ids, 1)


def extended(old: pl.DataFrame, found: pl.DataFrame, threshold: int, max_ids: int | None) -> pl.DataFrame:
    """An older dictionary with the values that it lacks behind its own, by falling frequency among them; its counts grow by those found."""
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


class TextIds:
    """The ids of a dictionary's texts, for block after block: a hash table that is built once. It keeps the texts that it is asked for, too.

    Args:
        vocabulary: `value` String, each once, and `id`.
    """

    def __init__(self, vocabulary: pl.DataFrame):
        self._table = TextPlaces()
        places = self._table.of(vocabulary[VALUE]).to_numpy()
        self._ids = np.zeros(vocabulary.height + 1, np.int32)  # the last: of texts that the dictionary lacks
        self._ids[places] = vocabulary["id"].to_numpy()

    def of(self, texts: pl.Series) -> np.ndarray:
        """Ids `[n]` int32; 0 for what the dictionary lacks and for null."""
        last = len(self._ids) - 1
        places = self._table.of(texts).fill_null(last).to_numpy()
        return self._ids[np.minimum(places, last)]


def batches(frame: pl.LazyFrame, rows: int = _BATCH_ROWS) -> Iterator[pl.DataFrame]:
    """A lazy frame's rows in their order, some at a time."""
    for batch in frame.collect_batches(chunk_size=rows, maintain_order=True, engine="streaming"):
        if batch.height:
            yield batch
