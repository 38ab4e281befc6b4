"""Dropout whose masks do not depend on the sharing of a batch among workers.

A sample's mask depends on the seed, the layer, the step and the sample's number in the global batch.
"""

from typing import NamedTuple

import tensorflow as tf

from model.layers.dense import layer_seed
from model.native_layers import Mask

_PHILOX, _WORDS = 1, 4  # TensorFlow's id of the Philox generator, and the 32-bit numbers that one of its counts gives


class Place(NamedTuple):
    """The position of consecutive samples in the training run: int64 scalars."""

    step: tf.Tensor
    first: tf.Tensor  # number of the first sample in the global batch


class Dropout:
    """Inverted dropout (Srivastava et al., 2014): drops hidden units and scales the others by 1/(1-rate), so scoring needs no correction.

    Args:
        rate: share of the units that are dropped, 0 or more and below 1.
        seed: the seed of the run.
    """

    def __init__(self, rate: float, seed: int):
        self.rate, self._seed = rate, seed
        self._scale, self._threshold = 1 / (1 - rate), min(round(rate * 2**32), 2**32 - 1)

    def at(self, place: Place) -> "DropoutAt":
        """Bind the dropout to a place; the result is what `Mlp.forward` takes."""
        return DropoutAt(self, place)

    def mask(self, layer: str, place: Place) -> Mask:
        """Return the mask for the C++ operations, which generate the same bits as `kept`."""
        return Mask(self._key(layer), self._threshold, self._scale, *place)

    def _key(self, layer: str) -> int:
        return layer_seed(self._seed, f"{layer}/dropout")

    def __call__(self, values: tf.Tensor, layer: str, place: Place) -> tf.Tensor:
        """Apply dropout to a layer's outputs, `[b, units]`, in training step `place.step`."""
        return tf.where(self.kept(layer, place, values.shape), values * tf.cast(self._scale, values.dtype), tf.zeros([], values.dtype))

    def kept(self, layer: str, place: Place, shape: tf.TensorShape) -> tf.Tensor:
        """Return the mask of the units that are kept, `[b, units]` bool.

        A Philox generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) continues at the count where the preceding samples
        ended.
        """
        samples, units = shape
        counts = -(-units // _WORDS)  # counts of the generator for one sample
        counter = tf.cast(tf.stack([place.first * counts, place.step]), tf.uint64)
        key = tf.constant([self._key(layer)], tf.uint64)
        bits = tf.raw_ops.StatelessRandomUniformFullIntV2(shape=[samples, counts * _WORDS], key=key, counter=counter, alg=_PHILOX, dtype=tf.uint32)
        return bits[:, :units] >= tf.constant(self._threshold, tf.uint32)


class DropoutAt(NamedTuple):
    """Dropout bound to the samples of a place; called with a layer's outputs and name."""

    dropout: Dropout
    place: Place

    def __call__(self, values: tf.Tensor, layer: str) -> tf.Tensor:
        """Apply dropout to a layer's outputs, `[b, units]`."""
        return self.dropout(values, layer, self.place)

    def mask(self, layer: str) -> Mask:
        """Return a layer's mask for the C++ operations."""
        return self.dropout.mask(layer, self.place)
