"""A table in memory of which checkpoints store the rows that may differ from their initial values: `--checkpoint_rows touched`."""

from collections.abc import Mapping, Sequence

import numpy as np

from model.embedding.initializers import origin_of
from model.embedding.table import Table
from utils.initial_rows import Origin, Untouched


class PartialTable:
    """The initial values of a table's rows, and the rows that a run began with other values of; a worker holds one or more shards of the table.

    Args:
        table: the table.
        seed: the seed of the rows of a new table.

    Attributes:
        table: as given.
        origins: the generators of the rows that no batch has named, from the first to the last row.
        differs: a bit for each row, `[ceil(V / 8)]` uint8, the first one the highest of its byte: 1 where the run began with another value.
        starts: what each slot of an untouched row holds.
    """

    def __init__(self, table: Table, seed: int):
        self.table = table
        self.origins: tuple[Origin, ...] = (origin_of(table, seed),)
        self.differs = np.zeros(-(-table.rows // 8), np.uint8)
        self.starts: Mapping[str, float] = {}

    def begin_with(self, origins: Sequence[Origin], bits: np.ndarray) -> None:
        """Take over the generators of all rows, and which of the first rows differ from them, `[ceil(k / 8)]` uint8."""
        self.origins = tuple(origins)
        self.differs[: len(bits)] |= bits

    def whole_rows(self) -> Untouched:
        """Return the untouched rows of all columns."""
        return Untouched(self.origins)
