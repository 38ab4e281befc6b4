"""A checkpoint's weights in a model that has grown: more rows in its tables, more features, or the features in another order.

What is new starts so that the scores of what was there do not change: rows beyond the old ones are drawn as in a new
model, and the dense weights that read a new feature, or its products with the others, are zero.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from model.layers.interaction import pair_indices
from model.shapes import pair_count
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.options import DOT


class Growth:
    """How the features of a checkpoint stand in a model.

    Args:
        checkpoint: whose manifest names its features, see `state.saved_features`.
        before: rows of each of its tables by feature, in its order, and its numerical features.
        categorical: rows of each of the model's tables, in the model's order.
        numerical: the model's numerical features, in order.

    Raises:
        CheckpointError: a feature of the checkpoint is gone, or a table has become smaller.
    """

    def __init__(
        self, checkpoint: Checkpoint, before: tuple[Mapping[str, int], Sequence[str]], categorical: Mapping[str, int], numerical: Sequence[str]
    ):
        tables, known = before
        for name in (*tables, *known):
            if name not in categorical and name not in numerical:
                raise CheckpointError(f"{checkpoint.folder}: has feature {name}, which the dataset lacks; --allow_growth adds, it does not take away")
        for name, rows in tables.items():
            if name in categorical and rows > categorical[name]:
                raise CheckpointError(
                    f"{checkpoint.folder}: the table of feature {name} has {rows} rows, the dataset {categorical[name]}; --allow_growth adds rows, "
                    "it does not take away"
                )
        if any((name in tables) != (name in categorical) for name in (*tables, *known)):
            raise CheckpointError(f"{checkpoint.folder}: a feature that was numerical is now categorical, or the other way round")
        model = checkpoint.manifest.get("model")
        joined = model.get("interaction", DOT) if isinstance(model, Mapping) else DOT
        self.new_features = tuple(name for name in (*numerical, *categorical) if name not in tables and name not in known)
        if self.new_features and joined != DOT:
            raise CheckpointError(
                f"{checkpoint.folder}: has --interaction {joined}, which new features ({', '.join(self.new_features[:3])}) cannot join yet; rows can"
            )
        self.new_rows = {name: rows - tables[name] for name, rows in categorical.items() if name in tables and rows > tables[name]}
        self._new_tables = frozenset(categorical) - frozenset(tables)
        self._numerical = [list(numerical).index(name) for name in known], len(numerical)
        self._vectors = [0, *(1 + list(categorical).index(name) for name in tables)], 1 + len(categorical)  # the bottom MLP's output first

    def is_new(self, feature: str) -> bool:
        """Whether a categorical feature has no table in the checkpoint."""
        return feature in self._new_tables

    def dense(self, name: str, values: np.ndarray, dim: int) -> np.ndarray:
        """A dense weight of the checkpoint for the grown model; those that read no features come back as they are."""
        if name == "dense/bottom_mlp/0/kernel":
            places, count = self._numerical
        elif name == "dense/top_mlp/0/kernel":
            places, count = self._interactions(dim)
        else:
            return values
        if len(values) != len(places):
            return values  # the shape says what is wrong, and is checked
        grown = np.zeros((count, values.shape[1]), values.dtype)
        grown[places] = values
        return grown

    def _interactions(self, dim: int) -> tuple[list[int], int]:
        """Where each input of the old top MLP stands among the new one's: the bottom output, then all pairs of vectors."""
        places, count = self._vectors
        _, number = pair_indices(count)
        row, column = np.tril_indices(len(places), -1)
        pairs = [int(number[places[i] * count + places[j]]) for i, j in zip(row, column, strict=True)]
        return [*range(dim), *(dim + pair for pair in pairs)], dim + pair_count(count)

    def __str__(self) -> str:
        rows = ", ".join(f"{name} +{count:,}" for name, count in self.new_rows.items()) or "none"
        return f"new features: {', '.join(self.new_features) or 'none'}; new rows: {rows}"
