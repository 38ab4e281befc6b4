"""The gates of FinalMLP's streams."""

from collections.abc import Sequence

import tensorflow as tf

from model.native import NativeOperations


def gated(inputs: tf.Tensor, logits: Sequence[tf.Tensor], dtype: str, native: NativeOperations | None) -> list[tf.Tensor]:
    """Weigh each column by twice the sigmoid of a gate's logit, once for each gate (Mao et al., arXiv:2304.00902).

    Args:
        inputs: `[b, C]` float32.
        logits: the outputs of the gates, `[b, C]` float32 each.
        dtype: the dtype of the results, `[b, C]` for each gate.
        native: the C++ operations; None for TensorFlow's own.
    """
    if native is not None and logits:
        return native.vectors.gated(inputs, logits, dtype)
    return [tf.cast(_weighed(inputs, one), dtype) for one in logits]


def _weighed(inputs: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the inputs weighed for one gate, `[b, C]` float32.

    Twice the sigmoid of x is 1 + tanh(x / 2). TensorFlow computes a tanh alike at every place of a tensor; the sigmoids of the last few elements of
    a tensor have other last bits, and a worker's tensor ends where another number of workers has the middle of one. The gradient is given in single
    operations for the same reason.
    """

    @tf.custom_gradient
    def weighed(inputs, logits):
        tangents = tf.tanh(0.5 * logits)
        weights = 1.0 + tangents

        def gradient(upstream):
            return upstream * weights, upstream * inputs * (0.5 * (1.0 - tf.square(tangents)))

        return inputs * weights, gradient

    return weighed(inputs, logits)
