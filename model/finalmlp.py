"""FinalMLP as a composition of its layers."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from model.embedding.distributed import DistributedEmbedding
from model.layers.batch_norm import BatchNorm
from model.layers.bilinear import Bilinear
from model.layers.dense import Drop, LayerWeights
from model.layers.fields import ScaledVectors, Wanted, fields
from model.layers.gate import gated
from model.layers.mlp import Mlp
from model.native import NativeOperations
from model.sharded_model import ShardedModel

_WIDEST_FUSED = 128  # columns of a head up to which the fusion is one C++ pass; wider heads are products worth a library's


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

    def forward(
        self, outputs: Sequence[tf.Tensor], linear: LayerWeights, heads: Sequence[LayerWeights], slices: int | None, native: NativeOperations | None
    ) -> tf.Tensor:
        """Compute `[b, d_1]`, `[b, d_2]` -> `[b]` float32 with the given weights of both layers."""
        if native is not None and max(heads[0].kernel.shape) <= _WIDEST_FUSED:
            return native.vectors.fused(*outputs, linear.kernel, linear.bias, [head.kernel for head in heads], slices or 1)
        logits = self.linear.forward(tf.cast(tf.concat(outputs, axis=1), tf.float32), [linear], slices)[:, 0]
        return logits + self.bilinear.forward(*outputs, heads, slices)


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
        native: the C++ operations; None for TensorFlow's own.
    """

    command = "finalmlp.py"

    def __init__(
        self,
        embedding: DistributedEmbedding,
        vectors: ScaledVectors | None,
        streams: Sequence[Stream],
        fusion: Fusion,
        native: NativeOperations | None = None,
    ):
        super().__init__(name="finalmlp")
        self._native = native
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
        left = list(weights)

        def next_of(part: Mlp | ScaledVectors | Bilinear) -> list[LayerWeights]:
            count = len(part.dense_weights()) if not isinstance(part, Mlp) else len(part.stack)
            taken = left[:count]
            del left[:count]
            return taken

        of_vectors = [] if self.scaled_vectors is None else next_of(self.scaled_vectors)
        of_streams = [[next_of(part) for part in stream.parts] for stream in self._streams]
        found = fields(self._wanted(), numerical, self.scaled_vectors, of_vectors, tf.reshape(embeddings, [-1, sum(self.embedding.widths)]), slices)
        dtype = self._streams[0].mlp.compute_dtype
        with_gate = [number for number, stream in enumerate(self._streams) if stream.gate is not None]
        contexts = self._contexts(found.picked) if with_gate else []
        of_gates = [
            self._streams[number].gate.forward(context, of_streams[number][0], slices) for number, context in zip(with_gate, contexts, strict=True)
        ]
        inputs = dict(zip(with_gate, gated(found.joined, of_gates, dtype, self._native), strict=True))
        outputs = [
            stream.mlp.forward(inputs.get(number, tf.cast(found.joined, dtype)), of_streams[number][-1], slices, drop, norm=norm)
            for number, stream in enumerate(self._streams)
        ]
        (of_linear,), of_heads = next_of(self._fusion.linear), next_of(self._fusion.bilinear)
        return self._fusion.forward(outputs, of_linear, of_heads, slices, self._native)

    def _wanted(self) -> Wanted:
        picks = [place for stream in self._streams for place in stream.gate_features]
        return Wanted(len(self.embedding.widths), self.embedding.widths[0], joined="float32", picks=picks, native=self._native)

    def _contexts(self, picked: tf.Tensor) -> list[tf.Tensor]:
        """Cut the vectors that the gates read into those of each gate."""
        widths = [len(stream.gate_features) * self.embedding.widths[0] for stream in self._streams if stream.gate is not None]
        return tf.split(picked, widths, axis=1)

    @property
    def dense_parts(self) -> list[ScaledVectors | Mlp | Bilinear]:
        """The numerical features' vectors, for each stream its gate and its MLP, and both layers of the fusion; those that there are."""
        first = [] if self.scaled_vectors is None else [self.scaled_vectors]
        return [*first, *(part for stream in self._streams for part in stream.parts), *self._fusion]
