"""Batches on the device, read and copied ahead."""

from collections.abc import Iterable, Iterator

from dataloading.batches import Batch, prefetched
from model.compilation import on_gpu
from model.embedding.lazy_rows import LazyTables
from training.device_batch import TensorBatch, to_device


def on_device(batches: Iterable[Batch], lazy: LazyTables | None = None) -> Iterator[TensorBatch]:
    """Yield batches on the device, so that no step waits for them. With a GPU two threads share the reading and the copying.

    The rows that training batches name in `lazy` tables are drawn ahead, too.
    """
    if lazy is None:
        return prefetched(prefetched(batches) if on_gpu() else batches, to_device)
    lazy.begin()
    return prefetched(batches, lambda batch: to_device(batch, lazy.planned(batch.ids)))


def to_score(batches: Iterable[Batch], lazy: LazyTables | None = None) -> Iterator[TensorBatch]:
    """Yield batches on the device that are only scored. The rows that do not exist in `lazy` tables are drawn when a batch is asked for."""
    if lazy is None:
        yield from on_device(batches)
        return
    for batch in prefetched(batches):
        yield to_device(batch, lazy.found(batch.ids))
