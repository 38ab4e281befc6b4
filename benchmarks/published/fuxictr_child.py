"""FuxiCTR's models on CSV files, in a process of the peers' own Python. Nothing of this project's training is imported here.

`benchmarks.published.peers` starts it with a JSON object: data (folder of `train.csv.gz`, `valid.csv.gz` and `test.csv.gz`), model, seed, epochs,
threads. Its last line is a JSON object, the figures of the run.

FuxiCTR's wheel has layers and the training loop, not the models of its zoo, so each model is composed of its layers here. `BaseModel.fit` trains:
Adam on all parameters, the loss plus half of the regularizer times the sum of squares of all tables, gradients clipped to a norm of 10, a tenth of
the learning rate after an epoch whose valid AUC is not better, stop after two such in a row, test with the best epoch's weights.
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import CrossNetV2, FactorizationMachine, FeatureEmbedding, LogisticRegression, MLP_Block
from fuxictr.pytorch.models import BaseModel
from fuxictr.pytorch.torch_utils import seed_everything
from torch import nn

from benchmarks.published.settings import LABEL, PEER, SPLITS


class Network(BaseModel):
    """A model of FuxiCTR's layers, trained by its `BaseModel`, with a record of each epoch.

    Args:
        feature_map: FuxiCTR's description of the columns.
        kind: a key of `PEER`.
        folder: where the best epoch's weights are saved.
    """

    def __init__(self, feature_map: FeatureMap, kind: str, folder: str):
        settings = PEER[kind]
        super().__init__(
            feature_map,
            monitor="AUC",
            early_stop_patience=settings["early_stop_patience"],
            embedding_regularizer=settings["regularizer"],
            verbose=0,
            model_root=folder,
            metrics=["AUC", "logloss"],
        )
        hidden, width = settings["hidden_units"], settings["embedding_dim"] * feature_map.num_fields
        self.kind, self.epochs, self.begun = kind, [], time.perf_counter()
        self.embedding_layer = FeatureEmbedding(feature_map, settings["embedding_dim"])
        facts = {"dropout_rates": settings["dropout"], "batch_norm": settings["batch_norm"]}
        if kind == "finalmlp":
            self.streams = nn.ModuleList([Stream(feature_map, settings, place, width) for place in range(2)])
            self.fusion = Fusion([stream[-1] for stream in hidden], settings["heads"])
        elif kind != "fm":
            self.mlp = MLP_Block(width, list(hidden), output_dim=None if kind == "dcnv2" else 1, **facts)
        if kind in ("fm", "deepfm"):
            self.fm = FactorizationMachine(feature_map)
        if kind == "dcnv2":
            self.cross = CrossNetV2(width, settings["cross_layers"])
            self.last = nn.Linear(width + hidden[-1], 1)
        if kind == "wide_and_deep":
            self.wide = LogisticRegression(feature_map, use_bias=False)
        self.compile(settings["optimizer"], "binary_crossentropy", settings["learning_rate"])
        self.reset_parameters()

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the probabilities of a batch."""
        features = self.get_inputs(inputs)
        fields = self.embedding_layer(features)
        vectors = fields.flatten(start_dim=1)
        if self.kind == "finalmlp":
            return {"y_pred": self.output_activation(self.fusion(*(stream(features, vectors) for stream in self.streams)))}
        logits = 0 if self.kind == "fm" else self.mlp(vectors)
        if self.kind in ("fm", "deepfm"):
            logits = logits + self.fm(features, fields)
        if self.kind == "dcnv2":
            logits = self.last(torch.cat([self.cross(vectors), logits], dim=-1))
        if self.kind == "wide_and_deep":
            logits = logits + self.wide(features)
        return {"y_pred": self.output_activation(logits)}

    def checkpoint_and_earlystop(self, logs: dict[str, float], min_delta: float = 1e-6) -> None:
        """Save the weights, reduce the learning rate or stop, as FuxiCTR decides; then record the epoch."""
        super().checkpoint_and_earlystop(logs, min_delta)
        self.epochs.append({"auc": logs["AUC"], "seconds": time.perf_counter() - self.begun})


class Stream(nn.Module):
    """A stream of FinalMLP: an MLP of all vectors, weighed by a gate, which reads tables of its own, as in the authors' code.

    Args:
        feature_map: FuxiCTR's description of the columns.
        settings: FinalMLP's in `PEER`.
        place: 0 or 1, the stream.
        width: columns of all vectors.
    """

    def __init__(self, feature_map: FeatureMap, settings: dict[str, Any], place: int, width: int):
        super().__init__()
        dim, names = settings["embedding_dim"], settings["gated_by"][place]
        self.context = FeatureEmbedding(feature_map, dim, required_feature_columns=names)
        gate = {"hidden_activations": "ReLU", "output_activation": "Sigmoid", "batch_norm": False}
        self.gate = MLP_Block(dim * len(names), hidden_units=settings["gate_units"], output_dim=width, **gate)
        facts = {"dropout_rates": settings["dropout"], "batch_norm": settings["batch_norm"]}
        self.mlp = MLP_Block(width, hidden_units=settings["hidden_units"][place], hidden_activations="ReLU", output_dim=None, **facts)

    def forward(self, features: dict[str, torch.Tensor], vectors: torch.Tensor) -> torch.Tensor:
        """Return the stream's output."""
        return self.mlp(vectors * self.gate(self.context(features).flatten(start_dim=1)) * 2)


class Fusion(nn.Module):
    """FinalMLP's fusion of two vectors: two linear layers of one unit, and the products of all pairs of elements in each head.

    Args:
        widths: of the vectors.
        heads: pieces that each vector is cut into.
    """

    def __init__(self, widths: list[int], heads: int):
        super().__init__()
        self.linear = nn.ModuleList([nn.Linear(width, 1) for width in widths])
        self.pieces = [(heads, width // heads) for width in widths]
        products = heads * self.pieces[0][1] * self.pieces[1][1]
        self.kernels = nn.Parameter(torch.randn(heads, self.pieces[0][1], self.pieces[1][1]) * math.sqrt(2 / (products + 1)))

    def forward(self, *vectors: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        left, right = (vector.unflatten(1, pieces) for vector, pieces in zip(vectors, self.pieces, strict=True))
        linear = sum(layer(vector) for layer, vector in zip(self.linear, vectors, strict=True))
        return linear + torch.einsum("bhi,hij,bhj->b", left, self.kernels, right).unsqueeze(1)


class Batches:
    """Batches of a split from tensors in memory, for FuxiCTR's own loader joins single rows in Python.

    Args:
        columns: the tensors by name.
        size: the size of a batch.
        shuffle: whether each pass has a new order.
    """

    def __init__(self, columns: dict[str, torch.Tensor], size: int, shuffle: bool):
        self._columns, self._size, self._shuffle = columns, size, shuffle
        self._rows = len(columns[LABEL])

    def __len__(self) -> int:
        return math.ceil(self._rows / self._size)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = torch.randperm(self._rows) if self._shuffle else torch.arange(self._rows)
        for rows in order.split(self._size):
            yield {name: values[rows] for name, values in self._columns.items()}


def encoded(data: Path) -> tuple[FeatureMap, dict[str, dict[str, torch.Tensor]]]:
    """Return the columns of the splits as ids, and their description. Id 0 pads, the last id of a column is for values that `train` does not have."""
    frames = {split: polars.read_csv(data / f"{split}.csv.gz", infer_schema_length=None) for split in SPLITS}
    features = FeatureMap("published", str(data))
    features.labels = [LABEL]
    splits: dict[str, dict[str, torch.Tensor]] = {split: {} for split in SPLITS}
    for name in frames["train"].columns:
        if name == LABEL:
            continue
        known = np.unique(frames["train"][name].to_numpy())
        for split in SPLITS:
            values = frames[split][name].to_numpy()
            places = np.searchsorted(known, values).clip(max=len(known) - 1)
            splits[split][name] = torch.from_numpy(np.where(known[places] == values, places + 1, len(known) + 1))
        features.features[name] = {"source": "", "type": "categorical", "padding_idx": 0, "vocab_size": len(known) + 2}
    features.num_fields = features.get_num_fields()
    features.set_column_index()
    for split in SPLITS:
        splits[split][LABEL] = torch.from_numpy(frames[split][LABEL].to_numpy())
    return features, splits


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Train and test a model. The seconds are those of the epochs with their evaluations, from the first batch on."""
    torch.set_num_threads(task["threads"])
    features, splits = encoded(Path(task["data"]))
    size = PEER[task["model"]]["batch_size"]
    batches = {split: Batches(columns, size, split == "train") for split, columns in splits.items()}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, features.dataset_id).mkdir()
        seed_everything(task["seed"])
        network = Network(features, task["model"], folder)
        network.begun = time.perf_counter()
        network.fit(batches["train"], epochs=task["epochs"], validation_data=batches["valid"])
        tested = network.evaluate(batches["test"])
    parameters = sum(values.numel() for values in network.parameters())
    return {"auc": tested["AUC"], "log_loss": tested["logloss"], "epochs": network.epochs, "parameters": parameters}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
