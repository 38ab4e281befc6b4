"""Scoring of a trained model: every row of a split exactly once."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from model.compilation import compiled
from model.sharded_model import ShardedModel
from training.device_batch import HostBatch, StepInputs, TensorBatch
from utils.distributed import World

AfterBatch = Callable[[TensorBatch, np.ndarray], None]  # called with a batch and this worker's logits [b], padding included


class SplitScores(NamedTuple):
    """The logits and labels of every real sample of a split, in file order."""

    logits: np.ndarray  # [n] float32
    labels: np.ndarray  # [n] uint8
    groups: np.ndarray | None = None  # [n] int32 or int64; None where they were not requested
    weights: np.ndarray | None = None  # [n] float32; None in a split without weights


class Evaluator:
    """Computes logits batch by batch.

    Args:
        model: the model, built.
        xla: the value of `--xla`, see `compilation.compiled`; the model must have been built with the same value.

    Attributes:
        model: the model.
        world: its workers.
    """

    def __init__(self, model: ShardedModel, xla: bool | str = False):
        self._model = self.model = model
        self.world = model.embedding.world
        # `partial`: TensorFlow counts a function's traces by its code, and would attribute the traces of several models to one function.
        self._dense = tf.function(partial(self._after_lookup), autograph=False, jit_compile=compiled(xla).dense or None)
        self._logits = tf.function(partial(self._forward), autograph=False)

    def _after_lookup(self, numerical: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
        return self._model.scored(numerical, vectors)

    def _forward(self, batch: StepInputs) -> tf.Tensor:
        batch = batch.unpacked()
        return self._dense(batch.numerical, self._model.embedding(batch.ids, batch.local_ids))

    def logits(self, batch: TensorBatch) -> np.ndarray:
        """Return this worker's logits `[b]` of a batch, padding included, on the host: the device has finished when this returns."""
        return self._logits(batch.inputs).numpy()

    def graph(self, inputs: StepInputs) -> tf.Graph:
        """Return the scoring graph for inputs of these shapes, without running it."""
        return self._logits.get_concrete_function(StepInputs(*(tf.TensorSpec.from_tensor(tensor) for tensor in inputs))).graph

    def score(
        self,
        batches: Iterable[TensorBatch],
        num_samples: int,
        seen: Callable[[int], None] = lambda count: None,
        *,
        groups: bool = False,
        after: AfterBatch | None = None,
    ) -> SplitScores | None:
        """Score every real sample of a split; return the scores in file order on the first worker, None on the others.

        Args:
            batches: the split's batches, in file order.
            num_samples: n.
            seen: called after each batch with the number of its real samples on all workers.
            groups: whether to collect the samples' groups, which the dataset must then have.
            after: called after each batch, see `AfterBatch`.

        Raises:
            ValueError: the batches do not hold n samples.
        """
        scores = Scores(self.world)
        for batch in batches:
            real = batch.host.num_samples
            logits = self.logits(batch)
            scores.add(logits, batch.host, groups)
            seen(real)
            if after:
                after(batch, logits)
        merged = scores.merged()
        if merged is not None and len(merged.logits) != num_samples:
            raise ValueError(f"the batches hold {len(merged.logits)} samples, the split {num_samples}")
        return merged


class Scores:
    """A collection of every worker's scores for its own slices of the batches, merged in the order of the batches."""

    def __init__(self, world: World):
        self._world = world
        self._logits: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._groups: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        self._real: list[int] = []

    def add(self, logits: np.ndarray, batch: HostBatch, groups: bool = False) -> None:
        """Add this worker's logits `[b]` for its slice of a global batch, with the samples' groups where `groups` says so, in all batches or none."""
        self._logits.append(logits)
        self._labels.append(batch.labels)
        if groups:
            self._groups.append(batch.groups)
        if batch.total_weight is not None:
            self._weights.append(batch.weights)
        self._real.append(batch.num_samples)

    def merged(self) -> SplitScores | None:
        """Return all real samples on the first worker, None on the others. Every worker must call this."""
        columns = {"logits": self._logits, "labels": self._labels, "groups": self._groups, "weights": self._weights}
        gathered = {name: self._gathered(np.concatenate(values), name) for name, values in columns.items() if values}
        return SplitScores(**gathered) if self._world.first else None

    def _gathered(self, mine: np.ndarray, name: str) -> np.ndarray:
        everything = self._world.gather_to_first(mine, f"scores_{name}")
        if not self._world.first:
            return everything
        # The gathered values are ordered by worker, then by batch. Rows are ordered by batch, then by worker.
        ends = np.cumsum([len(slices) for slices in self._labels])
        by_batch = zip(*(np.split(own, ends[:-1]) for own in np.split(everything, self._world.size)), strict=True)
        return np.concatenate([np.concatenate(slices)[:real] for slices, real in zip(by_batch, self._real, strict=True)])
