"""The gate of a stream of FinalMLP."""

import tensorflow as tf


def gated(inputs: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Weigh each column by twice the sigmoid of a gate's logit: `[b, C]` float32, `[b, C]` float32 -> `[b, C]` (Mao et al., arXiv:2304.00902).

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
