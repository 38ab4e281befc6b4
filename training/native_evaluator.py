"""Scores of a model in memory by the C++ scorer: what `--mode inference` measures where it can stand for TensorFlow."""

import numpy as np

from model.architectures import architecture_of
from model.embedding.shard import LocalShard
from model.native_scorer import NativeScorer, StoredFeature, dense_layers, native_scorer_library
from model.sharded_model import ShardedModel
from training.device_batch import TensorBatch
from training.evaluator import Evaluator
from utils.checkpoint.chunks import Chunks
from utils.config.options import ModelConfig
from utils.config.serving import FLOAT32


class NativeEvaluator(Evaluator):
    """The evaluator of a model in a process alone, on a CPU, in float32. Scores are TensorFlow's to 1e-6; last bits differ.

    Args:
        model: built; its weights are not changed while this lives.
        config: its layers.
        num_numerical: M.

    Raises:
        ValueError: a table is split by columns, or the library is not there.
    """

    def __init__(self, model: ShardedModel, config: ModelConfig, num_numerical: int):
        super().__init__(model)
        weights = model.dense_weights()
        layers = dense_layers(lambda name: weights[name].numpy(), config, num_numerical)
        tables = {local.shard.table: _Table(local) for local in model.embedding.shards}
        placement, library = model.embedding.placement, native_scorer_library()
        if library is None or len(tables) < len(model.embedding.shards):
            raise ValueError("NativeEvaluator: expected the scorer's library and whole tables")
        kinds = zip(placement.features, placement.table_of, strict=True)
        features = [StoredFeature(one.name, tables[table], one.hotness, one.pooling) for one, table in kinds]
        self._scorer = NativeScorer(library, num_numerical, features, layers, architecture_of(config).native_shape(config))

    def logits(self, batch: TensorBatch) -> np.ndarray:
        """As `Evaluator`."""
        return self._scorer.logits_of(batch.inputs.numerical.numpy(), batch.host.ids.T)


class _Table:
    """A variable's rows, which are not copied."""

    def __init__(self, local: LocalShard):
        self._values = np.from_dlpack(local.weights.value())[local.first : local.first + local.shard.rows]
        self.shape = self._values.shape

    def chunks(self) -> Chunks:
        """As `Stored`."""
        return Chunks([self._values], FLOAT32)
