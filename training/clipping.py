"""Clipping of a step's gradients by their norm over all weights."""

from collections.abc import Sequence

import tensorflow as tf

from utils.distributed import World

_BITS = 36


class Clipping:
    """Limits the norm of all gradients together: those of dense weights and tables, with the terms of the regularisation.

    Where the norm is above the limit, every gradient is multiplied by limit / norm (Pascanu et al., arXiv:1211.5063, algorithm 1), as by PyTorch's
    `clip_grad_norm_`. A row's gradient is summed over its places in the batch before it is squared.

    The norm has the same bits for any number of workers, threads and shards: each square is rounded to a multiple of limit² / 2^36, and float64 holds
    sums of such multiples exactly, up to norms of 362 times the limit. A greater norm is correct to 1e-15.

    Args:
        limit: the greatest norm.
        world: this worker and the collectives.
    """

    def __init__(self, limit: float, world: World):
        self._scale, self._world = 2.0**_BITS / (limit * limit), world

    def squares(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum of the squares of gradients in units of limit² / 2^36, float64."""
        return tf.add_n([tf.reduce_sum(self._rounded(gradient)) for gradient in gradients]) if gradients else tf.zeros([], tf.float64)

    def _rounded(self, gradients: tf.Tensor) -> tf.Tensor:
        units = tf.minimum(tf.square(tf.cast(gradients, tf.float64)) * self._scale, 2.0**62)
        return tf.cast(tf.cast(units + 0.5, tf.int64), tf.float64)  # not tf.round, for which a GPU has no kernel here

    def divisor(self, known: Sequence[tf.Tensor], of_shards: Sequence[tf.Tensor], samples: tf.Tensor) -> tf.Tensor:
        """Return the number that divides all gradients: norm / limit, or 1 if that is less; float32, the same on every worker.

        Args:
            known: the gradients that all workers know.
            of_shards: those of the rows of this worker's shards.
            samples: the number of real samples in the batch, by which the exchange depends on the step: TensorFlow would exchange a constant once.
        """
        own = self.squares(of_shards) + tf.cast(tf.minimum(samples, 0.0), tf.float64)
        total = self.squares(known) + self._world.sum(own[tf.newaxis], "gradient_norm")[0]
        norm = tf.sqrt(tf.maximum(total, 0.0)) / 2.0 ** (_BITS / 2)
        return tf.cast(tf.maximum(norm, 1.0), tf.float32)
