"""Batches on the device. The host keeps its own copy, so it reads nothing back."""

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from model.compilation import on_gpu


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
    """The tensors of a batch: numerical `[b, M]`, ids `[F_r, B]`, local_ids `[F_l, b]`, labels and weights `[b]` float32."""

    numerical: tf.Tensor
    ids: tf.Tensor
    local_ids: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


class TensorBatch(NamedTuple):
    """A batch on the device, with its copy on the host."""

    inputs: StepInputs
    host: HostBatch

    @property
    def weight(self) -> float:
        """The sum of the samples' weights, which is their number where each counts once."""
        return self.host.num_samples if self.host.total_weight is None else self.host.total_weight


def to_device(batch: HostBatch) -> TensorBatch:
    """Copy a batch to the device. The prefetching thread calls this, so no step waits for the copy.

    For a GPU ids are int64, because TensorFlow keeps int32 tensors in host memory there, and numericals are copied in their own dtype. On a CPU
    numericals become float32 here: oneDNN complains about float16 inputs, and M columns take little memory.
    """
    ids = np.int64 if on_gpu() else np.int32
    numerical = batch.numerical if on_gpu() else batch.numerical.astype(np.float32)
    parts = numerical, batch.ids.astype(ids, copy=False), batch.local_ids.astype(ids, copy=False), batch.labels.astype(np.float32), batch.weights
    return TensorBatch(StepInputs(*map(tf.convert_to_tensor, parts)), batch)
