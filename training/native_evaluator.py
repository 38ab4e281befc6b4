"""Scoring by the C++ scorer of a model in memory, which `--mode inference` measures where the scorer supports the model."""

import threading

import numpy as np

from model.architectures import architecture_of
from model.embedding.shard import LocalShard
from model.native_scorer import NativeScorer, StoredFeature, folded, native_scorer_library
from model.sharded_model import ShardedModel
from training.device_batch import TensorBatch
from training.evaluator import Evaluator
from utils.checkpoint.chunks import Chunks
from utils.config.options import ModelConfig
from utils.config.serving import FLOAT32


class NativeEvaluator(Evaluator):
    """The evaluator of a model in a single process, on a CPU. In float32 scores equal TensorFlow's to 1e-6; the last bits differ.

    Args:
        model: the model, built; its weights must not change while this object lives.
        config: the options of the model's layers.
        num_numerical: M.
        precision: as in `NativeScorer`.

    Raises:
        ValueError: a table is cut by columns, or the library is not built.
    """

    def __init__(self, model: ShardedModel, config: ModelConfig, num_numerical: int, precision: str = FLOAT32):
        super().__init__(model)
        weights = model.dense_weights() | model.statistics()
        readers = folded(lambda name: weights[name].numpy(), weights, config)
        tables = {local.shard.table: _LazyRows(local) if local.lazy else _Table(local) for local in model.embedding.shards}
        placement, library = model.embedding.placement, native_scorer_library()
        if library is None or len(tables) < len(model.embedding.shards):
            raise ValueError("NativeEvaluator: expected the scorer's library, and whole tables in memory")
        architecture, names = architecture_of(config), model.embedding.names
        layers = architecture.native_layers(config, lambda name: readers[name](), names, num_numerical)
        kinds = zip(placement.features, placement.table_of, strict=True)
        features = [StoredFeature(one.name, tables[table], one.hotness, one.pooling, one.weights) for one, table in kinds]
        self._scorer = NativeScorer(library, num_numerical, features, layers, architecture.native_shape(config), precision)

    def logits(self, batch: TensorBatch) -> np.ndarray:
        """Return the logits `[b]` of a batch, see `Evaluator.logits`."""
        return self.logits_of(batch.inputs.numerical.numpy(), batch.host.ids.T)

    def logits_of(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the logits `[b]` of plain arrays, see `NativeScorer.logits_of`."""
        return self._scorer.logits_of(numerical, ids)


class _Table:
    """A view of a variable's rows, without a copy."""

    def __init__(self, local: LocalShard):
        self._values = np.from_dlpack(local.weights.value())[local.first : local.first + local.shard.rows]
        self.shape = self._values.shape

    def chunks(self) -> Chunks:
        """Return the rows as a single chunk, see `Stored.chunks`."""
        return Chunks([self._values], FLOAT32)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows by their numbers, `[n] -> [n, D_f]`."""
        return self._values[numbers]


class _LazyRows:
    """The rows of a lazy table, those that do not exist included."""

    partial = True

    def __init__(self, local: LocalShard):
        self._table, self._weights, self._lock = local.lazy, local.lazy.memory(local.shard).arrays["weights"], threading.Lock()
        self.shape = local.shard.rows, local.shard.width

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows by their numbers, `[n] -> [n, D_f]`."""
        places = np.empty((1, len(numbers)), np.int32)
        with self._lock:  # rows that do not exist are drawn to the same places by every call
            self._table.find(np.ascontiguousarray(numbers[np.newaxis], np.int32), places)
            return self._weights.values[places[0]]
