"""Dropout whose masks do not depend on how a batch is shared: a sample's go by the seed, the layer, the step and its number in the global batch."""

from typing import NamedTuple

import tensorflow as tf

from model.layers.mlp import layer_seed
from model.native import Mask

_PHILOX, _WORDS = 1, 4  # the generator's number in TensorFlow, and the numbers of 32 bits that one count of it gives


class Place(NamedTuple):
    """Where some samples stand: int64 scalars."""

    step: tf.Tensor
    first: tf.Tensor  # number of the first one in the global batch


class Dropout:
    """Leaves out hidden units and scales up the others by 1/(1-rate), so that nothing is to be done when scoring (Srivastava et al., 2014).

    Args:
        rate: share of the units that are left out, 0 or more and below 1.
        seed: of the run.
    """

    def __init__(self, rate: float, seed: int):
        self.rate, self._seed = rate, seed
        self._scale, self._threshold = 1 / (1 - rate), min(round(rate * 2**32), 2**32 - 1)

    def at(self, place: Place) -> "DropoutAt":
        """As `Mlp.forward` takes it."""
        return DropoutAt(self, place)

    def mask(self, layer: str, place: Place) -> Mask:
        """For the C++ operations, which generate the bits of `kept`."""
        return Mask(self._key(layer), self._threshold, self._scale, *place)

    def _key(self, layer: str) -> int:
        return layer_seed(self._seed, f"{layer}/dropout")

    def __call__(self, values: tf.Tensor, layer: str, place: Place) -> tf.Tensor:
        """Of `[b, units]`, the outputs of a layer in training step `place.step`."""
        return tf.where(self.kept(layer, place, values.shape), values * tf.cast(self._scale, values.dtype), tf.zeros([], values.dtype))

    def kept(self, layer: str, place: Place, shape: tf.TensorShape) -> tf.Tensor:
        """Which units are kept, `[b, units]` bool.

        A Philox generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) counts on from where the samples before these ended.
        """
        samples, units = shape
        counts = -(-units // _WORDS)  # of a sample
        counter = tf.cast(tf.stack([place.first * counts, place.step]), tf.uint64)
        key = tf.constant([self._key(layer)], tf.uint64)
        bits = tf.raw_ops.StatelessRandomUniformFullIntV2(shape=[samples, counts * _WORDS], key=key, counter=counter, alg=_PHILOX, dtype=tf.uint32)
        return bits[:, :units] >= tf.constant(self._threshold, tf.uint32)


class DropoutAt(NamedTuple):
    """Dropout of the samples of a place, of layers by their names."""

    dropout: Dropout
    place: Place

    def __call__(self, values: tf.Tensor, layer: str) -> tf.Tensor:
        """Of `[b, units]`."""
        return self.dropout(values, layer, self.place)

    def mask(self, layer: str) -> Mask:
        """For the C++ operations."""
        return self.dropout.mask(layer, self.place)
