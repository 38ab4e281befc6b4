"""A trained model as plain facts and arrays: what the exported forms are made of."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.architectures.architecture import Architecture
from model.embedding.table import Feature, Table
from utils.checkpoint.packed import TableFiles, table_files

CROSS = "cross"
NUMERICAL, CATEGORICAL, PROBABILITY = "numerical", "categorical", "probability"  # names of tensors
CHECKPOINT = "checkpoint"  # in a version's folder for Triton's Python backend: what `dlrm.load` takes


@dataclass(frozen=True)
class ServedModel:
    """A model to be exported.

    Attributes:
        numerical: names of the numerical features, M of them.
        numerical_dtype: to which they are rounded, as the dataset's were.
        features: the categorical ones, in the model's order; of Wide & Deep the deep ones and then, of the same sources, the wide ones.
        tables: those they are looked up in.
        architecture: of the model.
        dense: every dense weight, float32, by its name in the checkpoint (`bottom_mlp/0/kernel`).
        out_of_range: what becomes of ids beyond their table: `error`, `clip` or `hash`.
        precision: of the tables' files.
        compute_dtype: of the products.
        folder: that holds the tables, one file each, as `packed.table_files` names them.
    """

    numerical: tuple[str, ...]
    numerical_dtype: str
    features: tuple[Feature, ...]
    tables: tuple[Table, ...]
    architecture: Architecture
    dense: Mapping[str, np.ndarray]
    out_of_range: str
    precision: str
    compute_dtype: str
    folder: Path

    @property
    def ids(self) -> int:
        """Ids a sample over all sources: K, the sum of h."""
        return sum(self._hotness.values())

    @property
    def _hotness(self) -> dict[str, int]:
        """h of each source, in the order of the ids."""
        return {feature.source: feature.hotness for feature in self.features}

    @property
    def id_columns(self) -> list[tuple[int, int]]:
        """The first and last+1 column of each feature's ids among the K."""
        sources = self._hotness
        ends = dict(zip(sources, itertools.accumulate(sources.values()), strict=True))
        return [(ends[feature.source] - feature.hotness, ends[feature.source]) for feature in self.features]

    @property
    def stacks(self) -> tuple[str, ...]:
        """Names of the MLPs, in the order of their weights."""
        return tuple(dict.fromkeys(name.split("/")[0] for name in self.dense if not name.startswith(f"{CROSS}/")))

    def gives_logits(self, part: str, layer: int) -> bool:
        """Whether a layer of an MLP gives logits: there is no ReLU after it, and its products are float32, for logits of 16 bits tie."""
        return part in self.architecture.logit_parts and f"{part}/{layer + 1}/kernel" not in self.dense

    @property
    def table_of(self) -> tuple[int, ...]:
        """The place of each feature's table in `tables`."""
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(places[feature.table] for feature in self.features)

    def files(self, table: Table) -> TableFiles:
        """Where a table lies."""
        return table_files(self.folder, table.name, self.precision)

    def stack(self, part: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Kernel `[in, out]` and bias `[out]` of each layer of an MLP."""
        found = []
        while f"{part}/{len(found)}/kernel" in self.dense:
            found.append((self.dense[f"{part}/{len(found)}/kernel"], self.dense[f"{part}/{len(found)}/bias"]))
        return found

    def crosses(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """V `[d, r]`, U `[r, d]` and bias `[d]` of each cross layer."""
        found = []
        while (name := f"{CROSS}/{len(found)}") + "/v/kernel" in self.dense:
            found.append(tuple(self.dense[f"{name}/{part}"] for part in ("v/kernel", "u/kernel", "u/bias")))
        return found
