"""The forward pass in TensorFlow's own operations, for a SavedModel: slow and obvious compared with the trainer's."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from dataloading.id_weights import expected_weights
from model.embedding.table import MEAN, Feature
from model.layers.interaction import pair_indices
from serving.description import ServedModel
from utils.config.serving import BFLOAT16, FLOAT16, INT8

_CLIP, _HASH = "clip", "hash"
_TABLE_DTYPES = {BFLOAT16: tf.bfloat16, FLOAT16: tf.float16, INT8: tf.uint8}


class Graph(tf.Module):
    """A module that owns every weight once. Its tables have one row of zeros: `saved_model` puts their rows into the files.

    Args:
        model: description of the model.
    """

    def __init__(self, model: ServedModel):
        super().__init__(name="scorer")
        self.facts = model
        stored = _TABLE_DTYPES.get(model.precision, tf.float32)
        self.tables = [_growing(table.dim, stored, f"tables_{place}") for place, table in enumerate(model.tables)]
        self.scales = [_growing(2, tf.float32, f"scales_{place}") for place, _ in enumerate(model.tables)] if model.precision == INT8 else []
        dtype = tf.as_dtype(model.compute_dtype)
        self.cross = [[None if v is None else _weight(v, dtype, "v"), *_layer(u, bias, dtype, "u")] for v, u, bias in model.crosses()]
        self.heads = [_weight(kernel, dtype, "head") for kernel in model.heads()]
        self.mlps = {
            part: [
                _layer(*weights, tf.float32 if model.gives_logits(part, place) else dtype, part) for place, weights in enumerate(model.stack(part))
            ]
            for part in model.stacks
        }
        self.intercepts = {name: _weight(values, tf.float32, name.replace("/", "_")) for name, values in model.intercepts.items()}
        self.vectors = {name: _weight(values, tf.float32, name) for name, values in model.vectors.items()}

    def probabilities(self, numerical: tf.Tensor | None, categorical: tf.Tensor, id_weights: tf.Tensor | None = None) -> tf.Tensor:
        """Compute probabilities `[B, 1]` float32.

        Args:
            numerical: `[B, M]` float32; None where M is 0. Columns of features for training only may hold anything.
            categorical: `[B, K]` int64, as well.
            id_weights: `[B, W]` float32; None where W is 0.

        Raises:
            InvalidArgumentError: raised when the graph runs: an id is out of range, a numerical or a weight is not finite, or a weight of a mean is
                negative.
        """
        facts = self.facts
        dtype = tf.as_dtype(facts.compute_dtype)
        numerical, categorical = _as_served(numerical, facts.served_numerical), _as_served(categorical, facts.served_ids)
        vectors = []
        for place, feature, (first, stop), (begin, end) in zip(facts.table_of, facts.features, facts.id_columns, facts.weight_columns, strict=True):
            weights = id_weights[:, begin:end] if feature.weights else None
            vectors.append(tf.cast(self._looked_up(feature, place, categorical[:, first:stop], weights), dtype))
        rounded = None if numerical is None else self._rounded(numerical)
        return tf.sigmoid(facts.architecture.logits(_Operations(self, rounded, vectors)))

    def _rounded(self, numerical: tf.Tensor) -> tf.Tensor:
        """Round numericals to the dataset's dtype, and return them as float32."""
        held = tf.cast(tf.cast(numerical, self.facts.numerical_dtype), tf.float32)
        message = f"numericals: a value is not a finite {self.facts.numerical_dtype}, the dataset's dtype"
        finite = tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(held)), [message])
        with tf.control_dependencies([finite]):
            return tf.identity(held)

    def _looked_up(self, feature: Feature, place: int, ids: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        """Look up ids `[B, h]`, with weights `[B, h]` if they have any -> `[B, D]` float32."""
        ids = self._in_range(feature, self.facts.tables[place].rows, ids)
        if not feature.is_list:
            return self._rows(place, ids[:, 0])
        if weights is not None:
            weights = _sound_weights(feature, ids, weights)
            ids = tf.where(weights == 0, tf.constant(-1, tf.int64), ids)
        there = tf.where(ids >= 0)  # [n, 2]: sample and position in its list
        samples, flat = there[:, 0], tf.gather_nd(ids, there)
        count = tf.shape(ids, out_type=tf.int64)[0]
        if weights is not None:
            rows = self._rows(place, flat) * tf.gather_nd(weights, there)[:, tf.newaxis]
            total = tf.math.unsorted_segment_sum(rows, samples, count)
        elif self.facts.precision in _TABLE_DTYPES:
            total = tf.math.unsorted_segment_sum(self._rows(place, flat), samples, count)
        else:  # sums the rows without a copy of them in memory
            total = tf.raw_ops.SparseSegmentSumWithNumSegments(
                data=self.tables[place].read_value(), indices=flat, segment_ids=samples, num_segments=count
            )
        if feature.pooling == MEAN and weights is None:
            total /= tf.cast(tf.maximum(tf.math.count_nonzero(ids >= 0, axis=1, keepdims=True), 1), tf.float32)
        elif feature.pooling == MEAN:
            sums = tf.reduce_sum(weights, axis=1, keepdims=True)
            total /= tf.where(sums == 0, tf.ones_like(sums), sums)
        return total

    def _rows(self, place: int, ids: tf.Tensor) -> tf.Tensor:
        """Gather rows of a table, `[n]` -> `[n, D]` float32."""
        rows = tf.cast(tf.gather(self.tables[place], ids), tf.float32)
        if self.scales:
            scales = tf.gather(self.scales[place], ids)
            rows = rows * scales[:, :1] + scales[:, 1:]
        return tf.ensure_shape(rows, [None, self.facts.tables[place].dim])

    def _in_range(self, feature: Feature, rows: int, ids: tf.Tensor) -> tf.Tensor:
        least = -1 if feature.is_list else 0
        how = self.facts.out_of_range
        if how in (_CLIP, _HASH):
            fitting = tf.clip_by_value(ids, tf.constant(0, tf.int64), rows - 1) if how == _CLIP else tf.math.floormod(ids, rows)
            return fitting if least == 0 else tf.where(ids == -1, ids, fitting)
        outside = tf.logical_or(ids < least, ids >= rows)
        first = tf.boolean_mask(ids, outside)[:1]
        sound = tf.debugging.Assert(tf.logical_not(tf.reduce_any(outside)), [f"feature {feature.name}: id", first, f"is not in [0, {rows})"])
        with tf.control_dependencies([sound]):
            return tf.identity(ids)


class _Operations:
    """Operations of an exported graph on the weights of a `Graph`; see `model.architectures.architecture.Operations`."""

    def __init__(self, graph: Graph, numerical: tf.Tensor | None, vectors: Sequence[tf.Tensor]):
        self._graph, self.numerical, self.vectors = graph, numerical, vectors
        self.options, self.names = graph.facts.options, [feature.name for feature in graph.facts.features]
        self._dtype = tf.as_dtype(graph.facts.compute_dtype)

    def mlp(self, name: str, inputs: tf.Tensor, beside: tf.Tensor | None = None) -> tf.Tensor:
        layers = self._graph.mlps[name]
        for place, weights in enumerate(layers):
            if beside is not None and place == len(layers) - 1:
                inputs = self.concatenated([beside, inputs])
            inputs = _dense(inputs, *weights, relu=not self._graph.facts.gives_logits(name, place))
        return inputs

    def cross(self, inputs: tf.Tensor) -> tf.Tensor:
        last = inputs
        for v, u, bias in self._graph.cross:
            last = inputs * _dense(last if v is None else tf.matmul(last, v), u, bias, relu=False) + last
        return last

    def products(self, vectors: Sequence[tf.Tensor]) -> tf.Tensor:
        stacked = tf.stack(self._cast(vectors), axis=1)
        pairs = tf.constant(pair_indices(len(vectors))[0])
        return tf.gather(tf.reshape(tf.matmul(stacked, stacked, transpose_b=True), [-1, len(vectors) ** 2]), pairs, axis=1)

    def has(self, name: str) -> bool:
        return bool(self._graph.mlps.get(name))

    def scaled(self, name: str) -> list[tf.Tensor]:
        return [self.numerical[:, place : place + 1] * vector for place, vector in enumerate(tf.unstack(self._graph.vectors[name]))]

    def shifted(self, logits: tf.Tensor, name: str) -> tf.Tensor:
        return logits + self._graph.intercepts[name]

    def pair_sum(self, vectors: Sequence[tf.Tensor]) -> tf.Tensor:
        wide = [tf.cast(vector, tf.float32) for vector in vectors]
        return 0.5 * tf.reduce_sum(tf.square(tf.add_n(wide)) - tf.add_n([tf.square(vector) for vector in wide]), axis=1, keepdims=True)

    def gated(self, inputs: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(inputs, tf.float32) * (2.0 * tf.sigmoid(logits))

    def bilinear(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        heads = self._graph.heads
        pieces = zip(tf.split(left, len(heads), axis=1), tf.split(right, len(heads), axis=1), heads, strict=True)
        products = [tf.matmul(tf.cast(x, w.dtype), w) * tf.cast(z, w.dtype) for x, z, w in pieces]
        return tf.reduce_sum(tf.cast(tf.concat(products, axis=1), tf.float32), axis=1, keepdims=True)

    def concatenated(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.concat(self._cast(parts), axis=1)

    def summed(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.add_n([tf.cast(part, tf.float32) for part in parts])

    def _cast(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.cast(part, self._dtype) for part in parts]


def _as_served(values: tf.Tensor | None, served: tuple[np.ndarray, np.ndarray] | None) -> tf.Tensor | None:
    """Return `[B, K]` with constants in the columns of features for training only."""
    return values if served is None else tf.where(*served, values)


def _sound_weights(feature: Feature, ids: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return weights `[B, h]`, 0 where there is no id and for those that float32 holds with less precision. The graph fails where one is invalid."""
    weights = tf.where(ids < 0, tf.zeros_like(weights), weights)
    good = tf.math.is_finite(weights)
    good = tf.logical_and(good, weights >= 0) if feature.pooling == MEAN else good
    first = tf.boolean_mask(weights, tf.logical_not(good))[:1]
    message = [f"feature {feature.source}: weight", first, f"is not {expected_weights(feature.pooling)}"]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), message)]):
        return tf.where(tf.abs(weights) < np.finfo(np.float32).smallest_normal, tf.zeros_like(weights), weights)


def _growing(dim: int, dtype: tf.DType, name: str) -> tf.Variable:
    """Return a variable with any number of rows, of which it has one."""
    return tf.Variable(tf.zeros([1, dim], dtype), shape=[None, dim], trainable=False, name=name)


def _layer(kernel: np.ndarray, bias: np.ndarray, dtype: tf.DType, name: str) -> list[tf.Variable]:
    return [_weight(kernel, dtype, f"{name}_kernel"), _weight(bias, tf.float32, f"{name}_bias")]


def _weight(values: np.ndarray, dtype: tf.DType, name: str) -> tf.Variable:
    return tf.Variable(tf.cast(values, dtype), trainable=False, name=name)


def _dense(inputs: tf.Tensor, kernel: tf.Variable, bias: tf.Variable, relu: bool) -> tf.Tensor:
    """Compute a dense layer, `[B, in] -> [B, out]`, in the kernel's dtype."""
    products = tf.matmul(tf.cast(inputs, kernel.dtype), kernel)
    outputs = tf.nn.bias_add(products, tf.cast(bias, products.dtype))
    return tf.maximum(outputs, 0) if relu else outputs  # tf.nn.relu may be fused into the product, and then turns NaN into 0
