"""Sampling of the negatives of the training split of `preproc.table`, whose rows may have weights; see `preproc.shared.negatives`."""

from collections.abc import Callable
from pathlib import Path

import polars as pl

from preproc.shared import polars_engine as engine
from preproc.shared.negatives import KeptRows, choose_rows, drawn
from preproc.table.staging import LABEL, WEIGHT, StagedRows


def sampled(rate: float, seed: int, rows: StagedRows, weighted: bool, folder: Path, warn: Callable[[str], None]) -> KeptRows:
    """Choose the rows of the training split that are kept.

    Args:
        rate: the probability with which each negative is kept, above 0 and below 1.
        seed: of the draw.
        rows: the rows of the split, at least one.
        weighted: whether they have weights.
        folder: where a file of one byte a row is written.
        warn: called with a line where all rows have one label before or after.

    Raises:
        DatasetError: no row is kept.
    """
    zero = [(pl.col(WEIGHT).cast(pl.Float32) == 0).alias(WEIGHT)] if weighted else []
    blocks = (
        (batch[LABEL].to_numpy().astype(bool), batch[WEIGHT].to_numpy() if weighted else None) for batch in engine.batches(rows.scan(LABEL, *zero))
    )
    return choose_rows(rate, seed, blocks, folder, warn)


__all__ = ["KeptRows", "drawn", "sampled"]
