"""Batches on the device, read and copied ahead."""

from collections.abc import Iterable, Iterator

from dataloading.batches import Batch, prefetched
from model.compilation import on_gpu
from training.device_batch import TensorBatch, to_device


def on_device(batches: Iterable[Batch]) -> Iterator[TensorBatch]:
    """Yield batches on the device, so that no step waits for them. With a GPU two threads share the reading and the copying."""
    return prefetched(prefetched(batches) if on_gpu() else batches, to_device)
