"""A DLRM as usually written in Keras: stock layers, one table a feature. This module imports Keras: call `prepare_tensorflow` first."""

from typing import NamedTuple

import keras
import numpy as np

NUM_TABLES, NUM_NUMERICAL = 26, 13


class KerasDlrm(NamedTuple):
    """The model from numericals `[B, M]` and ids `[B, F]` to `{"probability": [B, 1]}`, and its layers in order."""

    model: keras.Model
    bottom: list[keras.layers.Dense]
    tables: list[keras.layers.Embedding]
    top: list[keras.layers.Dense]


def keras_dlrm(rows: int, dim: int, ids: str = "int64") -> KerasDlrm:
    """Build a model with random weights; `ids` is the dtype of the ids."""
    numerical = keras.Input((NUM_NUMERICAL,), name="numerical")
    categorical = keras.Input((NUM_TABLES,), dtype=ids, name="categorical")
    bottom = [keras.layers.Dense(units, "relu") for units in (512, 256, dim)]
    tables = [keras.layers.Embedding(rows, dim) for _ in range(NUM_TABLES)]
    top = [*(keras.layers.Dense(units, "relu") for units in (1024, 1024, 512, 256)), keras.layers.Dense(1, "sigmoid")]
    first = _through(bottom, numerical)
    stacked = keras.ops.stack([first, *(table(categorical[:, place]) for place, table in enumerate(tables))], axis=1)
    products = keras.ops.matmul(stacked, keras.ops.transpose(stacked, (0, 2, 1)))
    row, column = np.tril_indices(NUM_TABLES + 1, -1)
    pairs = keras.ops.take(keras.ops.reshape(products, (-1, (NUM_TABLES + 1) ** 2)), row * (NUM_TABLES + 1) + column, axis=1)
    last = _through(top, keras.ops.concatenate([first, pairs], axis=1))
    return KerasDlrm(keras.Model([numerical, categorical], {"probability": last}), bottom, tables, top)


def _through(layers: list[keras.layers.Dense], values):
    for layer in layers:
        values = layer(values)
    return values
