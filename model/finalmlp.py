"""FinalMLP as a composition of its layers."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.batch_norm import BatchNorm
from model.layers.bilinear import Bilinear
from model.layers.dense import Drop, LayerWeights
from model.layers.gate import gated
from model.layers.mlp import Mlp
from model.layers.scaled_vectors import ScaledVectors
from model.sharded_model import ShardedModel


class Stream(NamedTuple):
    """A stream: an MLP of hidden layers alone, and the MLP of its gate with the positions of the features that the gate reads; None for no gate."""

    mlp: Mlp
    gate: Mlp | None
    gate_features: Sequence[int]

    @property
    def parts(self) -> list[Mlp]:
        """The gate, if there is one, and the MLP."""
        return [*([] if self.gate is None else [self.gate]), self.mlp]


class Fusion(NamedTuple):
    """The fusion of both streams' outputs: a layer of one unit, which reads both side by side, and a bilinear layer."""

    linear: Mlp
    bilinear: Bilinear


class FinalMlp(ShardedModel):
    """FinalMLP (Mao et al., arXiv:2304.00902): two streams, each gated by some features, and a multi-head bilinear fusion.

    Every feature has a vector of D columns; those of a numerical feature are multiplied by its value. With e all vectors side by side and c_s those
    of the features of gate s: o_s = MLP_s(2 sigmoid(gate_s(c_s)) * e), logit = b + w [o_1, o_2] + sum over the heads of o_1h W_h o_2h.
    A gate reads the vectors that the streams read, as in the paper's text; its authors' code gives gates tables of their own.

    Args:
        embedding: the embedding of the ids' vectors.
        vectors: the numerical features' vectors; None without numerical features.
        streams: both streams.
        fusion: the fusion of their outputs.
    """

    command = "finalmlp.py"

    def __init__(self, embedding: DistributedEmbedding, vectors: ScaledVectors | None, streams: Sequence[Stream], fusion: Fusion):
        super().__init__(name="finalmlp")
        self.embedding, self.scaled_vectors, self._streams, self._fusion = embedding, vectors, tuple(streams), fusion

    def build_weights(self, num_numerical: int) -> None:
        """Create all weights for M numerical features, and allocate the tables."""
        self.embedding.build()
        dim = self.embedding.widths[0]
        if self.scaled_vectors is not None:
            with keras.name_scope(self.scaled_vectors.name):
                self.scaled_vectors.build((None, num_numerical))
        for stream in self._streams:
            for part in stream.parts:
                with keras.name_scope(part.name):
                    part.build((None, len(stream.gate_features) * dim if part is stream.gate else (num_numerical + len(self.embedding.widths)) * dim))
        left, right = (stream.mlp.stack[-1].units for stream in self._streams)
        with keras.name_scope(self._fusion.linear.name):
            self._fusion.linear.build((None, left + right))
        with keras.name_scope(self._fusion.bilinear.name):
            self._fusion.bilinear.build_weights(left, right)
        self.built = True

    def dense(
        self,
        numerical: tf.Tensor,
        embeddings: tf.Tensor,
        weights: Sequence[LayerWeights],
        slices: int | None = None,
        drop: Drop | None = None,
        norm: BatchNorm | None = None,
    ) -> tf.Tensor:
        """Return logits `[b]` float32 for numerical `[b, M]` and the output of `embedding`; `slices`, `drop` and `norm` as in `Mlp.forward`."""
        dim, left = self.embedding.widths[0], list(weights)

        def next_of(part: Mlp | ScaledVectors | Bilinear) -> list[LayerWeights]:
            count = len(part.dense_weights()) if not isinstance(part, Mlp) else len(part.stack)
            taken = left[:count]
            del left[:count]
            return taken

        fields = tf.cast(tf.reshape(embeddings, [-1, len(self.embedding.widths), dim]), tf.float32)
        of_features = tf.unstack(fields, axis=1)
        if self.scaled_vectors is not None:
            fields = tf.concat([self.scaled_vectors.forward(numerical, next_of(self.scaled_vectors), slices), fields], axis=1)
        joined, outputs = tf.reshape(fields, [-1, fields.shape[1] * dim]), []
        for stream in self._streams:
            inputs = joined
            if stream.gate is not None:
                context = tf.concat([of_features[place] for place in stream.gate_features], axis=1)
                inputs = gated(joined, stream.gate.forward(tf.cast(context, stream.gate.compute_dtype), next_of(stream.gate), slices))
            inputs = tf.cast(inputs, stream.mlp.compute_dtype)
            outputs.append(stream.mlp.forward(inputs, next_of(stream.mlp), slices, drop, norm=norm))
        linear, bilinear = self._fusion
        logits = linear.forward(tf.cast(tf.concat(outputs, axis=1), tf.float32), next_of(linear), slices)[:, 0]
        return logits + bilinear.forward(*outputs, next_of(bilinear), slices)

    @property
    def dense_parts(self) -> list[ScaledVectors | Mlp | Bilinear]:
        """The numerical features' vectors, for each stream its gate and its MLP, and both layers of the fusion; those that there are."""
        first = [] if self.scaled_vectors is None else [self.scaled_vectors]
        return [*first, *(part for stream in self._streams for part in stream.parts), *self._fusion]
