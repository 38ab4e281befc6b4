"""Transfer of a checkpoint's weights to a model that has grown: more rows in its tables, more features, or features in another order.

New weights are initialised so that the scores of old samples do not change: additional rows are drawn as in a new model; the dense weights that
read a new feature, or its products with other features, are zero; so is a new feature's table in a linear part.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from model.architectures import architecture_named
from model.architectures.architecture import BOTTOM, NUMERICALS, PAIRS, REST, SCALED
from model.embedding.table import WIDE, ZEROS, Table, wide_name
from model.layers.interaction import pair_indices
from model.shapes import pair_count
from training.features import ModelFeatures, check_lookups, check_served
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint


class Growth:
    """The mapping from a checkpoint's features to those of a grown model.

    Args:
        checkpoint: the checkpoint.
        before: the features of the checkpoint's model.
        now: the features of the grown model.

    Raises:
        CheckpointError: a feature of the checkpoint is missing, a table has become smaller, or the change is of another kind that is not supported.
    """

    def __init__(self, checkpoint: Checkpoint, before: ModelFeatures, now: ModelFeatures):
        known, names = (*before.categorical, *before.numerical), (*now.numerical, *now.categorical)
        for name in known:
            if name not in names:
                raise CheckpointError(f"{checkpoint.folder}: has feature {name}, which the dataset lacks; --allow_growth only adds features")
        for name, rows in before.categorical.items():
            if rows > now.categorical.get(name, rows):
                raise CheckpointError(
                    f"{checkpoint.folder}: the table of feature {name} has {rows} rows, the dataset {now.categorical[name]}; --allow_growth only "
                    "adds rows"
                )
        if changed := [name for name in known if (name in before.categorical) != (name in now.categorical)]:
            was, is_now = ("categorical", "numerical") if changed[0] in before.categorical else ("numerical", "categorical")
            raise CheckpointError(f"{checkpoint.folder}: feature {changed[0]} was {was} and is {is_now} in the dataset; expected the same kind")
        model = checkpoint.manifest.get("model")
        self._model = model if isinstance(model, Mapping) else {}
        self._architecture = architecture_named(self._model.get("interaction"), self._model.get("linear"))
        if now.numerical and not before.numerical:
            lacking = self._architecture.reads_numericals
            raise CheckpointError(f"{checkpoint.folder}: has no numerical features, so no {lacking} to add new ones ({now.numerical[0]}) to")
        check_lookups(checkpoint, before, now)
        check_served(checkpoint, before, now, list(before.categorical) + list(before.numerical))
        self._before, self._now = before, now
        for name in now.categorical if self._architecture.linear else ():
            if name not in before.categorical and now.table(name) in before.tables:
                raise CheckpointError(
                    f"{checkpoint.folder}: the new feature {name} is looked up in table {now.table(name)}, whose rows of the linear part would "
                    "change the scores of old samples; give it a table of its own for --allow_growth"
                )
        wide = {wide_name(name): rows for name, rows in before.tables.items()} if self._architecture.linear else {}
        self._rows = before.tables | wide
        self.new_features = tuple(name for name in names if name not in known)
        self.new_tables = tuple(name for name in now.tables if name not in before.tables)
        self.new_rows = {name: rows - before.tables[name] for name, rows in now.tables.items() if rows > before.tables.get(name, rows)}

    def is_new(self, table: str) -> bool:
        """Return whether the checkpoint has no table of this name."""
        return table not in self._rows

    def known_rows(self, table: str) -> int:
        """Return the number of rows of a table in the checkpoint; 0 for a new table."""
        return self._rows.get(table, 0)

    def started(self, tables: Iterable[Table]) -> tuple[Table, ...]:
        """Return the model's tables; new ones start at zero where their rows, or products of these, are terms of the score."""
        every = self._architecture.sums_products
        return tuple(replace(table, initializer=ZEROS) if (every or table.group == WIDE) and self.is_new(table.name) else table for table in tables)

    def dense(self, name: str, values: np.ndarray, bottom: int, widths: Sequence[int]) -> np.ndarray:
        """Convert a dense weight of the checkpoint for the grown model; weights that read no features are returned unchanged.

        Args:
            name: the name of the weight's array in the checkpoint.
            values: the weight in the checkpoint.
            bottom: columns of the bottom MLP's output; 0 without a bottom MLP.
            widths: D_f of the model's features.
        """
        read = self._architecture.reads(name.removeprefix("dense/"), self._model)
        if read is None:
            return values
        axes, blocks = read
        for axis in axes:
            places, count = [], 0
            for block in blocks:
                rest = values.shape[axis] - len(places)
                of_block, size = (range(rest), rest) if block == REST else self._block(block, bottom, widths[: len(self._now.categorical)])
                places += [count + place for place in of_block]
                count += size
            values = _grown(values, axis, places, count)
        return values

    def _block(self, block: str, bottom: int, widths: Sequence[int]) -> tuple[list[int], int]:
        """Return the new position of each element of an old block, and the size of the new block."""
        if block == NUMERICALS:
            return [self._now.numerical.index(known) for known in self._before.numerical], len(self._now.numerical)
        if block == SCALED:
            places = (self._now.numerical.index(known) for known in self._before.numerical)
            return [place * widths[0] + i for place in places for i in range(widths[0])], len(self._now.numerical) * widths[0]
        if block == BOTTOM:
            return list(range(bottom)), bottom
        return self._pairs(bottom > 0) if block == PAIRS else self._columns(widths)

    def _columns(self, widths: Sequence[int]) -> tuple[list[int], int]:
        """Map the columns of the vectors, which lie side by side; returns as in `_block`."""
        first = dict(zip(self._now.categorical, itertools.accumulate(widths, initial=0), strict=False))
        width = dict(zip(self._now.categorical, widths, strict=True))
        return [first[name] + i for name in self._before.categorical for i in range(width[name])], sum(widths)

    def _pairs(self, first: bool) -> tuple[list[int], int]:
        """Map the products of all pairs of vectors; `first`: the bottom MLP's output is the first vector. Returns as in `_block`."""
        order = list(self._now.categorical)
        places = [*range(first), *(first + order.index(name) for name in self._before.categorical)]
        count = first + len(order)
        _, number = pair_indices(count)
        row, column = np.tril_indices(len(places), -1)
        pairs = [int(number[places[i] * count + places[j]]) for i, j in zip(row, column, strict=True)]
        return pairs, pair_count(count)

    def __str__(self) -> str:
        rows = ", ".join(f"{name} +{count:,}" for name, count in self.new_rows.items()) or "none"
        return f"new features: {', '.join(self.new_features) or 'none'}; new rows: {rows}"


def _grown(values: np.ndarray, axis: int, places: Sequence[int], count: int) -> np.ndarray:
    """Return an array of zeros, of size `count` along `axis`, with the values at these places."""
    if values.shape[axis] != len(places):
        return values  # a later check of the shape reports the error
    grown = np.zeros([*values.shape[:axis], count, *values.shape[axis + 1 :]], values.dtype)
    grown[(slice(None),) * axis + (list(places),)] = values
    return grown
