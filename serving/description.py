"""A description of a trained model as plain facts and arrays, from which all exported formats are made."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.architectures.architecture import Architecture
from model.embedding.table import Feature, Table
from utils.checkpoint.packed import TableFiles, table_files
from utils.config.options import ModelConfig

CROSS, BILINEAR = "cross", "bilinear"  # layers that are no stacks of dense layers
NUMERICAL, CATEGORICAL, ID_WEIGHTS, PROBABILITY = "numerical", "categorical", "id_weights", "probability"  # names of tensors
CHECKPOINT = "checkpoint"  # in a version's folder for Triton's Python backend: the folder that `dlrm.load` reads


@dataclass(frozen=True)
class ServedModel:
    """A model to export.

    Attributes:
        numerical: names of the M numerical features.
        numerical_dtype: dtype of the dataset's numericals, to which inputs are rounded.
        features: categorical features, in the model's order; for Wide & Deep the deep ones, then the wide ones of the same sources.
        tables: tables of these features.
        architecture: architecture of the model.
        dense: every dense weight, float32, by its name in the checkpoint (`bottom_mlp/0/kernel`).
        out_of_range: treatment of ids beyond their table: `error`, `clip` or `hash`.
        precision: precision of the tables' files.
        compute_dtype: dtype of the matrix products.
        folder: folder of the tables' files, named as in `packed.table_files`.
        options: the options of the model's layers.
        served: the id or number of each feature for training only, whatever a request holds.
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
    options: ModelConfig
    served: Mapping[str, int | float]

    @property
    def served_numerical(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The numericals that are for training only, bool `[M]`, and their values, rounded to the dataset's dtype, float32 `[M]`; None for none."""
        only = np.array([name in self.served for name in self.numerical], bool)
        values = np.array([self.served.get(name, 0) for name in self.numerical], self.numerical_dtype)
        return (only, values.astype(np.float32)) if only.any() else None

    @property
    def served_ids(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The ids of features for training only, bool `[K]`, and their values, int64 `[K]`; None for none."""
        sources, hotness = list(self._hotness), list(self._hotness.values())
        only = np.repeat(np.array([name in self.served for name in sources], bool), hotness)
        return (only, np.repeat(np.array([self.served.get(name, 0) for name in sources], np.int64), hotness)) if only.any() else None

    @property
    def ids(self) -> int:
        """The number of ids a sample over all sources: K, the sum of h."""
        return sum(self._hotness.values())

    @property
    def id_weights(self) -> int:
        """The number of weights a sample over all sources whose ids have weights: W, the sum of h."""
        return sum(self._weighted.values())

    @property
    def _hotness(self) -> dict[str, int]:
        """The h of each source, in the order of the ids."""
        return {feature.source: feature.hotness for feature in self.features}

    @property
    def _weighted(self) -> dict[str, int]:
        """The number of weights of each source, in the order of the ids: h, or 0 where its ids have no weights."""
        return {feature.source: feature.hotness if feature.weights else 0 for feature in self.features}

    @property
    def id_columns(self) -> list[tuple[int, int]]:
        """The first column of each feature's ids among the K, and the column after the last."""
        return self._columns(self._hotness)

    @property
    def weight_columns(self) -> list[tuple[int, int]]:
        """The first column of each feature's weights among the W, and the column after the last; the same twice where its ids have no weights."""
        return self._columns(self._weighted)

    def _columns(self, counts: Mapping[str, int]) -> list[tuple[int, int]]:
        ends = dict(zip(counts, itertools.accumulate(counts.values()), strict=True))
        return [(ends[feature.source] - counts[feature.source], ends[feature.source]) for feature in self.features]

    @property
    def stacks(self) -> tuple[str, ...]:
        """The names of the MLPs, in the order of their weights."""
        return tuple(dict.fromkeys(name.split("/")[0] for name in self.dense if name.count("/") > 1 and name.split("/")[0] not in (CROSS, BILINEAR)))

    @property
    def vectors(self) -> dict[str, np.ndarray]:
        """The vectors of the numerical features `[M, D]`, by the name of their layer."""
        return {name.removesuffix("/kernel"): values for name, values in self.dense.items() if _is_single(name, "kernel")}

    @property
    def intercepts(self) -> dict[str, np.ndarray]:
        """The constants of the logits `[1]`, by name."""
        return {name: values for name, values in self.dense.items() if _is_single(name, "bias")}

    def gives_logits(self, part: str, layer: int) -> bool:
        """Return whether an MLP layer gives logits. Such a layer has no ReLU, and float32 products: logits of 16 bits would tie."""
        return part in self.architecture.logit_parts and f"{part}/{layer + 1}/kernel" not in self.dense

    @property
    def table_of(self) -> tuple[int, ...]:
        """The index of each feature's table in `tables`."""
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(places[feature.table] for feature in self.features)

    def files(self, table: Table) -> TableFiles:
        """Return the files of a table."""
        return table_files(self.folder, table.name, self.precision)

    def stack(self, part: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return kernel `[in, out]` and bias `[out]` of each layer of an MLP."""
        found = []
        while f"{part}/{len(found)}/kernel" in self.dense:
            found.append((self.dense[f"{part}/{len(found)}/kernel"], self.dense[f"{part}/{len(found)}/bias"]))
        return found

    def heads(self) -> list[np.ndarray]:
        """Return the kernel `[d_1 / H, d_2 / H]` of each head of the bilinear layer."""
        count = sum(name.startswith(f"{BILINEAR}/") for name in self.dense)
        return [self.dense[f"{BILINEAR}/{head}/kernel"] for head in range(count)]

    def crosses(self) -> list[tuple[np.ndarray | None, np.ndarray, np.ndarray]]:
        """Return V `[d, r]`, U `[r, d]` and bias `[d]` of each cross layer; of full rank None, W `[d, d]` and bias."""
        found = []
        while any((name := f"{CROSS}/{len(found)}/{part}") + "/bias" in self.dense for part in "uw"):
            found.append((self.dense.get(f"{CROSS}/{len(found)}/v/kernel"), self.dense[f"{name}/kernel"], self.dense[f"{name}/bias"]))
        return found


def _is_single(name: str, kind: str) -> bool:
    """Return whether a weight belongs to a layer that is not one of a stack: `numerical_vectors/kernel`, unlike `top_mlp/0/kernel`."""
    return name.count("/") == 1 and name.endswith(f"/{kind}")
