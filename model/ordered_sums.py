"""Sums over samples in an order that does not depend on the number of workers or threads: the split, the tree of additions, and the exchange.

The global batch is cut into S equal slices (`--gradient_slices`). A slice's result depends on its samples only. The slices' results are added by a
balanced binary tree, of which each of N workers computes a whole subtree where S/N is a power of two. So the sums are bit-identical for every such
N. With any other N, each worker sums its own samples as a whole.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from model.native import NativeOperations
from model.slices import keeps_order
from utils.distributed import World

_TOGETHER = 8  # number of small slices that are computed at once
_TOGETHER_BELOW = 128  # slices of fewer samples than this count as small; measured (docs/performance.md)


def pairwise_sum(values: Sequence):
    """Sum by a balanced binary tree, ((0+1)+(2+3))+…, of which each worker can compute a subtree.

    In a graph this requires `runtime.configure_tensorflow`, which keeps TensorFlow from rewriting the tree into one long sum.
    """
    values = list(values)
    while len(values) > 1:
        values = [values[i] + values[i + 1] if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def summed(parts: Sequence[tf.Tensor], native: NativeOperations | None) -> tf.Tensor:
    """Sum gradients as `pairwise_sum` does, in float32."""
    if native is not None and (len(parts) > 1 or parts[0].dtype != tf.float32):
        return native.sum_in_pairs(parts)
    return pairwise_sum([tf.cast(part, tf.float32) for part in parts])


def is_small(samples: int) -> bool:
    """Return whether a slice of so many samples counts as small; the way in which slices are computed depends on this alone."""
    return samples < _TOGETHER_BELOW


def parts(slices: int, samples: int) -> tuple[int, int | None]:
    """Split a worker's slices into parts that are computed one after another.

    Args:
        slices: the number of this worker's slices; 1 where the order of sums is not kept.
        samples: the number of this worker's samples.

    Returns:
        the number of parts, and the number of slices in each part, which `mlp.dense` computes together; None where each part is one slice, computed
        as a whole. The choice between the two depends only on the number of samples in a slice, because the result's bits depend on the choice.
    """
    if not is_small(samples // slices):
        return slices, None
    together = math.gcd(slices, _TOGETHER)  # a power of two, so each part's sum is a whole subtree of the tree of additions
    return slices // together, together


class OrderedSums:
    """The sums of a training step.

    Args:
        slices: S, the number of slices of the global batch.
        world: this worker and the collectives.
        native: the C++ operations that add the slices' gradients; None for TensorFlow's own operations.
    """

    def __init__(self, slices: int, world: World, native: NativeOperations | None):
        self._slices, self._world, self._native = slices, world, native

    def keeps_order(self, local_batch: int) -> bool:
        """Return whether the sums can be taken in the order that does not depend on N; `local_batch` is b."""
        return keeps_order(self._slices, local_batch * self._world.size, self._world.size)

    def count(self, local_batch: int) -> int:
        """Return the number of slices of this worker's samples; `local_batch` is b."""
        return self._slices // self._world.size if self.keeps_order(local_batch) else 1

    def slices(self, local_batch: int) -> int | None:
        """Return `count` where the order of sums is kept over several slices of the global batch; else None."""
        return self.count(local_batch) if self._slices > 1 and self.keeps_order(local_batch) else None

    def over_samples(self, compute: Callable[..., Sequence[tf.Tensor]], per_sample: Sequence[tf.Tensor]) -> tuple[Any, list, list[tf.Tensor]]:
        """Call `compute` part by part, and add the results.

        Args:
            compute: takes the tensors of a part's samples, and the number of its slices as `parts` returns it. Returns a sum over the samples, then a
                tensor with one entry for each sample, then further sums.
            per_sample: tensors of this worker's b samples.

        Returns:
            the total of the first results, the list of the second ones (one for each part), and the totals of the others.
        """
        local_batch = per_sample[0].shape[0]
        in_order = self.slices(local_batch)
        count, slices = parts(in_order, local_batch) if in_order else (1, None)
        by_part = zip(*(tf.split(values, count) for values in per_sample), strict=True)
        first, by_sample, *others = zip(*(compute(*part, slices) for part in by_part), strict=True)
        return pairwise_sum(first), list(by_sample), [summed(values, self._native) for values in others]

    def over_workers(self, tensors: Sequence[tf.Tensor], local_batch: int) -> list[tf.Tensor]:
        """Return the sums of float32 tensors over the workers, exchanged as one vector."""
        if self._world.size == 1:
            return list(tensors)
        shapes = [tensor.shape for tensor in tensors]
        flat, name = packed(tensors), "dense_gradients"
        flat = sum_in_order(flat, self._world, name) if self.keeps_order(local_batch) else self._world.sum(flat, name)
        return unpacked(flat, shapes)


def packed(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return all elements of the tensors, one after another, as a vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpacked(flat: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Return the tensors that `packed` joined, given their shapes."""
    cut = tf.split(flat, [math.prod(shape) for shape in shapes])
    return [tf.reshape(values, shape) for values, shape in zip(cut, shapes, strict=True)]


def sum_in_order(flat: tf.Tensor, world: World, name: str) -> tf.Tensor:
    """Sum a vector over the workers by a balanced binary tree in the order of ranks, independent of the network.

    An allreduce adds in an order of its own, so its last bits depend on N. Here every worker receives one part of all workers' vectors and sums it;
    an allgather distributes the sums. This moves as many bytes as a ring allreduce.
    """
    if world.size <= 2:  # a sum of two numbers has only one order
        return world.sum(flat, name)
    length = flat.shape[0]
    share = -(-length // world.size)
    padded = tf.pad(flat, [[0, share * world.size - length]])
    received = tf.reshape(world.alltoall(padded, [share] * world.size, f"{name}_parts"), [world.size, share])
    return world.all_gather(pairwise_sum(tf.unstack(received)), f"{name}_sums")[:length]
