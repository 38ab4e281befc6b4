"""Batches on the device. The host keeps its own copy, so it reads nothing back."""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from model.compilation import on_gpu
from model.embedding.lazy_rows import Placed


class HostBatch(Protocol):
    """A batch from the reader, see `dataloading.batches.Batch`.

    Shapes `[b, M]`, `[F_r, B]`, `[F_l, b]`, `[b]`, `[b]`; groups `[b]` or None. `total_weight` is None where `weights` is 1 for every real sample.
    """

    numerical: np.ndarray
    ids: np.ndarray
    local_ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    num_samples: int
    out_of_range: int
    groups: np.ndarray | None
    total_weight: float | None


class StepInputs(NamedTuple):
    """The tensors of a batch: numerical `[b, M]`, ids `[K_r, B]`, local_ids `[K_l, b]`, labels and weights `[b]` float32.

    On a GPU ids travel as the bits of float32 numbers, because TensorFlow keeps int32 tensors in host memory there; whatever reads them takes those
    of `unpacked`.
    """

    numerical: tf.Tensor
    ids: tf.Tensor
    local_ids: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor

    def unpacked(self) -> "StepInputs":
        """Return the inputs with the ids as `DistributedEmbedding` takes them; for use inside a `tf.function`."""
        if not on_gpu():
            return self
        ids, local_ids = (tf.cast(tf.bitcast(bits, tf.int32), tf.int64) for bits in (self.ids, self.local_ids))
        return self._replace(ids=ids, local_ids=local_ids)


class TensorBatch(NamedTuple):
    """A batch on the device, with its copy on the host. `placed` has the ids of lazy tables as places, as `inputs.ids` has them."""

    inputs: StepInputs
    host: HostBatch
    placed: Placed | None = None

    @property
    def full(self) -> bool:
        """True where the batch's rows exceed the memory of lazy tables."""
        return self.placed is not None and self.placed.full

    def begin_step(self) -> None:
        """Make the rows that a training batch has named first part of lazy tables."""
        if self.placed is not None:
            self.placed.commit()

    @property
    def rows(self) -> np.ndarray:
        """The ids as the tables are looked up by them, `[K_r, B]`."""
        return self.host.ids if self.placed is None else self.placed.ids

    @property
    def weight(self) -> float:
        """The sum of the samples' weights, which is their number where each counts once."""
        return self.host.num_samples if self.host.total_weight is None else self.host.total_weight


def to_device(batch: HostBatch, placed: Placed | None = None) -> TensorBatch:
    """Copy a batch to the device, with the ids of lazy tables as places where there are any.

    For a GPU numericals are copied in their own dtype. On a CPU they become float32 here: oneDNN complains about float16 inputs, and M columns take
    little memory.
    """
    numerical = batch.numerical if on_gpu() else batch.numerical.astype(np.float32)
    ids, local_ids = (some.view(np.float32) if on_gpu() else some for some in (batch.ids if placed is None else placed.ids, batch.local_ids))
    parts = numerical, ids, local_ids, batch.labels.astype(np.float32), batch.weights
    return TensorBatch(StepInputs(*map(tf.convert_to_tensor, parts)), batch, placed)
