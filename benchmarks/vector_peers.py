"""Stock Keras models of the architectures without a bottom MLP: DeepFM and FinalMLP. This module imports TensorFlow: call `prepare_tensorflow` first.

They do the same work as the project's step on the same batches, like `benchmarks.peers.keras_peer`: plain SGD for all weights.
"""

import keras
from keras import ops

from benchmarks.peers import Feed, hidden, keras_actions, looked_up_by_keras
from benchmarks.rounds import Action
from benchmarks.workload import Workload
from utils.config.options import FM


class _Vectors(keras.layers.Layer):
    """A vector for each numerical feature, times its value: `[B, M] -> [B, M, D]`."""

    def __init__(self, dim: int):
        super().__init__(dtype="float32")
        self._dim = dim

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[1], self._dim), initializer="random_normal")

    def call(self, values):
        return ops.expand_dims(values, 2) * self.kernel


class _Bilinear(keras.layers.Layer):
    """The sum over H heads of x_h W_h z_h: two of `[B, d]` -> `[B, 1]`."""

    def __init__(self, heads: int, dtype: str):
        super().__init__(dtype=dtype)
        self._heads = heads

    def build(self, shapes):
        pieces = [shape[1] // self._heads for shape in shapes]
        self.kernel = self.add_weight(shape=(self._heads, *pieces), initializer="glorot_normal")

    def call(self, both):
        left, right = (ops.reshape(values, (-1, self._heads, values.shape[1] // self._heads)) for values in both)
        products = ops.matmul(ops.transpose(left, (1, 0, 2)), self.kernel)
        return ops.sum(products * ops.transpose(right, (1, 0, 2)), axis=(0, 2))[:, None]


def keras_vector_peer(work: Workload, dtype: str, feed: Feed) -> dict[bool, Action]:
    """Return the actions of a model of stock layers, trained by `train_on_batch`, by whether XLA compiles it."""
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    numerical, ids = keras.Input((work.num_numerical,)), keras.Input((work.id_rows[-1].stop,), dtype="int32")
    vectors = looked_up_by_keras(work, ids, work.dim)
    fields = ops.concatenate([_Vectors(work.dim)(numerical), ops.stack(vectors, axis=1)], axis=1)
    joined = ops.reshape(fields, (-1, fields.shape[1] * work.dim))
    logits = _deepfm(work, policy, fields, joined, numerical, ids) if work.interaction.kind == FM else _finalmlp(work, policy, joined, vectors)
    return keras_actions(feed, numerical, ids, logits)


def _deepfm(work: Workload, policy: str, fields, joined, numerical, ids):
    last = joined
    for units in work.config.model.top_mlp_dims[:-1]:
        last = hidden(work, units, policy, last)
    products = 0.5 * ops.sum(ops.square(ops.sum(fields, axis=1)) - ops.sum(ops.square(fields), axis=1), axis=1, keepdims=True)
    weights = ops.sum(ops.concatenate(looked_up_by_keras(work, ids, 1), axis=1), axis=1, keepdims=True)
    deep, linear = (keras.layers.Dense(1, dtype="float32")(values) for values in (last, numerical))
    return keras.layers.Add(dtype="float32")([deep, products, weights, linear])


def _finalmlp(work: Workload, policy: str, joined, vectors: list):
    model, outputs = work.config.model, []
    names = [feature.name for feature in work.spec().categorical]
    for gated_by, dims in ((model.gate1_features, model.stream1_dims), (model.gate2_features, model.stream2_dims)):
        gate = ops.concatenate([vectors[names.index(name)] for name in gated_by], axis=1)
        for units in model.gate_dims:
            gate = keras.layers.Dense(units, activation="relu", dtype=policy)(gate)
        last = joined * (2.0 * ops.sigmoid(keras.layers.Dense(joined.shape[1], dtype="float32")(gate)))
        for units in dims:
            last = hidden(work, units, policy, last)
        outputs.append(last)
    linear = keras.layers.Dense(1, dtype="float32")(ops.concatenate(outputs, axis=1))
    return keras.layers.Add(dtype="float32")([linear, _Bilinear(model.num_heads, policy)(outputs)])
