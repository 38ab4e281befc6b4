"""The forward pass in TensorFlow's own operations: what a SavedModel holds, slow and obvious beside the trainer's."""

import numpy as np
import tensorflow as tf

from model.embedding.table import MEAN, Feature
from model.layers.interaction import pair_indices
from serving.description import BOTTOM, TOP, WIDE, ServedModel
from utils.config.serving import BFLOAT16, FLOAT16, INT8

_CLIP, _HASH = "clip", "hash"
_TABLE_DTYPES = {BFLOAT16: tf.bfloat16, FLOAT16: tf.float16, INT8: tf.uint8}


class Graph(tf.Module):
    """Owns every weight once. The tables begin with one row of zeros: their real rows are put into the files that `saved_model` writes.

    Args:
        model: what it computes.
    """

    def __init__(self, model: ServedModel):
        super().__init__(name="scorer")
        self._facts = model
        stored = _TABLE_DTYPES.get(model.precision, tf.float32)
        self.tables = [_growing(table.dim, stored, f"tables_{place}") for place, table in enumerate(model.tables)]
        self.scales = [_growing(2, tf.float32, f"scales_{place}") for place, _ in enumerate(model.tables)] if model.precision == INT8 else []
        dtype = tf.as_dtype(model.compute_dtype)
        self.bottom = [_layer(kernel, bias, dtype, BOTTOM) for kernel, bias in model.stack(BOTTOM)]
        self.cross = [[_weight(v, dtype, "v"), *_layer(u, bias, dtype, "u")] for v, u, bias in model.crosses()]
        last = len(model.top) - 1  # its products are float32: logits of 16 bits tie with each other
        self.top = [_layer(*weights, tf.float32 if place == last else dtype, TOP) for place, weights in enumerate(model.top)]
        self.linear = [_layer(kernel, bias, tf.float32, WIDE) for kernel, bias in model.stack(WIDE)]

    def probabilities(self, numerical: tf.Tensor | None, categorical: tf.Tensor) -> tf.Tensor:
        """numerical `[B, M]` float32 (None where M is 0), categorical `[B, K]` int64 -> `[B, 1]` float32.

        Raises:
            InvalidArgumentError: while it runs, an id is out of range, or a numerical is not finite.
        """
        facts = self._facts
        dtype = tf.as_dtype(facts.compute_dtype)
        vectors = [
            tf.cast(self._looked_up(feature, place, categorical[:, first:stop]), dtype)
            for place, feature, (first, stop) in zip(facts.table_of, facts.features, facts.id_columns, strict=True)
        ]
        wide = [tf.cast(vector, tf.float32) for vector in vectors[facts.num_deep :]]
        last = None
        if numerical is not None:
            last = tf.cast(self._rounded(numerical), dtype)
            for weights in self.bottom:
                last = _dense(last, *weights, relu=True)
            wide += [_dense(self._rounded(numerical), *weights, relu=False) for weights in self.linear]
        last = self._joined(last, vectors[: facts.num_deep])
        for place, weights in enumerate(self.top):
            last = _dense(last, *weights, relu=place < len(self.top) - 1)
        return tf.sigmoid(tf.add_n([last, *wide]) if wide else last)

    def _rounded(self, numerical: tf.Tensor) -> tf.Tensor:
        """To what the dataset would hold of them, float32."""
        held = tf.cast(tf.cast(numerical, self._facts.numerical_dtype), tf.float32)
        message = f"numericals: a value is not a finite {self._facts.numerical_dtype}, which datasets hold"
        finite = tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(held)), [message])
        with tf.control_dependencies([finite]):
            return tf.identity(held)

    def _looked_up(self, feature: Feature, place: int, ids: tf.Tensor) -> tf.Tensor:
        """ids `[B, h]` -> `[B, D]` float32."""
        ids = self._in_range(feature, self._facts.tables[place].rows, ids)
        if feature.hotness == 1:
            return self._rows(place, ids[:, 0])
        there = tf.where(ids >= 0)  # [n, 2]: sample and place in its list
        samples, flat = there[:, 0], tf.gather_nd(ids, there)
        count = tf.shape(ids, out_type=tf.int64)[0]
        if self._facts.precision in _TABLE_DTYPES:
            total = tf.math.unsorted_segment_sum(self._rows(place, flat), samples, count)
        else:  # without the rows side by side in memory
            total = tf.raw_ops.SparseSegmentSumWithNumSegments(
                data=self.tables[place].read_value(), indices=flat, segment_ids=samples, num_segments=count
            )
        if feature.pooling == MEAN:
            total /= tf.cast(tf.maximum(tf.math.count_nonzero(ids >= 0, axis=1, keepdims=True), 1), tf.float32)
        return total

    def _rows(self, place: int, ids: tf.Tensor) -> tf.Tensor:
        """`[n]` -> `[n, D]` float32."""
        rows = tf.cast(tf.gather(self.tables[place], ids), tf.float32)
        if self.scales:
            scales = tf.gather(self.scales[place], ids)
            rows = rows * scales[:, :1] + scales[:, 1:]
        return tf.ensure_shape(rows, [None, self._facts.tables[place].dim])

    def _in_range(self, feature: Feature, rows: int, ids: tf.Tensor) -> tf.Tensor:
        least = -1 if feature.hotness > 1 else 0
        how = self._facts.out_of_range
        if how in (_CLIP, _HASH):
            fitting = tf.clip_by_value(ids, tf.constant(0, tf.int64), rows - 1) if how == _CLIP else tf.math.floormod(ids, rows)
            return fitting if least == 0 else tf.where(ids == -1, ids, fitting)
        outside = tf.logical_or(ids < least, ids >= rows)
        first = tf.boolean_mask(ids, outside)[:1]
        sound = tf.debugging.Assert(tf.logical_not(tf.reduce_any(outside)), [f"feature {feature.name}: id", first, f"is not in [0, {rows})"])
        with tf.control_dependencies([sound]):
            return tf.identity(ids)

    def _joined(self, bottom: tf.Tensor | None, vectors: list[tf.Tensor]) -> tf.Tensor:
        """bottom `[B, W]` and F vectors `[B, D_f]` -> what the top MLP is given."""
        if self._facts.interaction != "dot":
            first = last = tf.concat([*([] if bottom is None else [bottom]), *vectors], axis=1)
            for v, u, bias in self.cross:
                last = first * _dense(tf.matmul(last, v), u, bias, relu=False) + last
            return last
        parts = [*([] if bottom is None else [bottom]), *vectors]
        stacked = tf.stack(parts, axis=1)
        pairs = tf.constant(pair_indices(len(parts))[0])
        products = tf.matmul(stacked, stacked, transpose_b=True)
        dots = tf.gather(tf.reshape(products, [-1, len(parts) ** 2]), pairs, axis=1)
        return dots if bottom is None else tf.concat([bottom, dots], axis=1)


def _growing(dim: int, dtype: tf.DType, name: str) -> tf.Variable:
    """A variable of any number of rows."""
    return tf.Variable(tf.zeros([1, dim], dtype), shape=[None, dim], trainable=False, name=name)


def _layer(kernel: np.ndarray, bias: np.ndarray, dtype: tf.DType, name: str) -> list[tf.Variable]:
    return [_weight(kernel, dtype, f"{name}_kernel"), _weight(bias, tf.float32, f"{name}_bias")]


def _weight(values: np.ndarray, dtype: tf.DType, name: str) -> tf.Variable:
    return tf.Variable(tf.cast(values, dtype), trainable=False, name=name)


def _dense(inputs: tf.Tensor, kernel: tf.Variable, bias: tf.Variable, relu: bool) -> tf.Tensor:
    """`[B, in] -> [B, out]` in the kernel's dtype."""
    products = tf.matmul(tf.cast(inputs, kernel.dtype), kernel)
    outputs = tf.nn.bias_add(products, tf.cast(bias, products.dtype))
    return tf.maximum(outputs, 0) if relu else outputs  # tf.nn.relu may be fused into the product, which makes 0 of NaN
