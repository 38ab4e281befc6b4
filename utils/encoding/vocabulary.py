"""Vocabularies: the id of each categorical value, and conversion of a column of values to ids.

One vocabulary is in memory at a time, so that memory grows with the distinct values of the largest feature only.
"""

import contextlib
from pathlib import Path

import numpy as np
import polars as pl

from utils.naming import naming

_BATCH_ROWS = 1 << 18  # rows of ids handed from Polars to the file at once


def build_vocabulary(values: pl.LazyFrame, threshold: int) -> pl.DataFrame:
    """Count a feature's values and assign ids from 1 by descending frequency, equal counts by ascending value.

    Args:
        values: one UInt32 column with null for missing values, streamed.
        threshold: a value is kept when it occurs at least this often; 0 and 1 keep all.

    Returns:
        the columns `value` UInt32, `id` Int32 and `count` UInt32, in the order of the ids; its length + 1 is the
        feature's cardinality, as id 0 stands for missing, rare and unseen values.
    """
    name = values.collect_schema().names()[0]
    counts = (
        values.select(pl.col(name).alias("value"))
        .drop_nulls()
        .group_by("value")
        .agg(pl.len().alias("count"))
        .filter(pl.col("count") >= threshold)
        .collect(engine="streaming")
    )
    ordered = counts.sort("count", "value", descending=[True, False])
    return ordered.with_row_index("id", offset=1).select("value", pl.col("id").cast(pl.Int32), "count")


def write_ids(values: pl.LazyFrame, vocabulary: pl.DataFrame, dtype: str, path: Path) -> None:
    """Write the ids of a column of values to a binary file, in row order; values that the vocabulary lacks get id 0.

    Args:
        values: one UInt32 column with null for missing values, streamed.
        vocabulary: the result of `build_vocabulary`.
        dtype: int8, int16 or int32.
        path: the file, which is replaced.
    """
    name = values.collect_schema().names()[0]
    # A join and not a lookup per block: the streaming engine builds the vocabulary's hash table once.
    ids = values.join(vocabulary.lazy().select("value", "id"), left_on=name, right_on="value", how="left", maintain_order="left")
    batches = ids.select(pl.col("id").fill_null(0)).collect_batches(chunk_size=_BATCH_ROWS, maintain_order=True, engine="streaming")
    file = path.open("wb")
    try:
        for batch in batches:
            with naming(path):
                file.write(batch["id"].to_numpy().astype(np.dtype(dtype), copy=False).data)
        with naming(path):
            file.close()
    finally:
        with contextlib.suppress(OSError):  # a full disk: the error being raised already says so
            file.close()
