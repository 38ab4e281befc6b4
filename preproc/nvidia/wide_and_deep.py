"""Opening of checkpoints of NVIDIA's Wide & Deep: a `tf.train.Checkpoint` of the model, its two optimizers and the step.

The model is a `WideDeepModel` of two functional models of Keras 2, whose layers with weights TensorFlow numbers:

    model/dnn_model      layer 0 holds a table of each feature, by its name; layers 1, 2, … are Dense
    model/linear_model   earlier versions: layers 0 to F - 1 are each an Embedding of one column, in the order of the application's list of features;
                         layer F is a Dense of the numerical features in the order of the application's list
                         later versions: layer 0 holds a table of each feature, by its name, the numericals' kernel and the bias

The rows of the first deep kernel, and of the later linear one, are sorted by the names of the application's columns: `NAME` for a numerical feature,
`NAME_embedding` for a categorical one.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataloading.feature_spec import FeatureSpec
from preproc.nvidia.checks import check_lookups, check_mlp, check_tables
from preproc.nvidia.source import OTHER_DATASET, Weight, read_tensorflow
from preproc.outbrain.features import CATEGORICAL
from utils.errors import UserError

_DEEP, _LINEAR = "model/dnn_model/layer_with_weights-", "model/linear_model/layer_with_weights-"
_VALUE, _TABLE, _STEP = "/.ATTRIBUTES/VARIABLE_VALUE", "/embedding_weights", "current_step"
_NEWEST = re.compile(r'^model_checkpoint_path: "(?:.*/)?([^"/]+)"$', re.MULTILINE)
# The application's list of numerical features; its list of categorical ones is the same as the dataset's.
NUMERICAL = (
    "doc_event_days_since_published_log_01scaled",
    "doc_ad_days_since_published_log_01scaled",
    "doc_event_doc_ad_sim_categories",
    "doc_event_doc_ad_sim_topics",
    "doc_event_doc_ad_sim_entities",
    "pop_document_id",
    "pop_publisher_id",
    "pop_source_id",
    "pop_ad_id",
    "pop_advertiser_id",
    "pop_campain_id",
    "doc_views_log_01scaled",
    "ad_views_log_01scaled",
)


class WideAndDeepSource(NamedTuple):
    """An opened checkpoint: dense weights by our names (`deep/0/kernel`), rows in our order; each feature's two tables, in the dataset's order.

    `notes` are lines to print: what the checkpoint does not specify, and what was assumed.
    """

    dense: dict[str, np.ndarray]
    deep: list[Weight]
    wide: list[Weight]
    widths: tuple[int, ...]
    layers: tuple[int, ...]
    step: int
    notes: tuple[str, ...]


def folder_of(folder: Path) -> Path | None:
    """Return the folder of a checkpoint of NVIDIA's Wide & Deep: this one, or `checkpoint` in it, as in its --model_dir; None for neither."""
    places = (folder, folder / "checkpoint")
    return next((place for place in places if (place / "checkpoint").is_file() or any(place.glob("ckpt-*.index"))), None)


def open_wide_and_deep(folder: Path, spec: FeatureSpec) -> WideAndDeepSource:
    """Read and check all weights of the newest checkpoint in a folder that `folder_of` returned. Raises UserError."""
    check_lookups(spec, means=True)
    if not spec.categorical or not spec.numerical:
        raise UserError(f"{spec.path}: NVIDIA's Wide & Deep has categorical and numerical features; {OTHER_DATASET}")
    prefix = _newest(folder)
    found = _Variables(read_tensorflow(prefix, "of the model", _our_name), prefix)
    names = [feature.name for feature in spec.categorical]
    deep = [found.take(f"{_DEEP}0/{_escaped(name + _TABLE)}", f"the deep table of feature {name}") for name in names]
    widths = check_tables([[table] for table in deep], spec, one_width=False)
    inputs = len(spec.numerical) + sum(widths)
    mlp, number = {}, 1
    while any(f"{_DEEP}{number}/{kind}" in found.left for kind in ("kernel", "bias")):
        for kind in ("kernel", "bias"):
            if weight := found.left.pop(f"{_DEEP}{number}/{kind}", None):
                mlp[f"deep/{number - 1}/{kind}"] = weight
        number += 1
    layers = check_mlp(mlp, "deep", {inputs}, 1, prefix)
    wide, (kernel, bias), notes = _linear(found, spec)
    step = found.left.pop(_STEP, None)
    if found.left:
        unknown = min(found.left)
        raise UserError(f"{prefix}: {unknown} belongs to no feature of {spec.path} and to no layer; {OTHER_DATASET}")
    dense = {name: weight.values for name, weight in mlp.items()} | {"wide/0/kernel": kernel, "wide/0/bias": bias}
    dense["deep/0/kernel"] = dense["deep/0/kernel"][deep_rows(spec.numerical, names, widths)]
    return WideAndDeepSource(dense, deep, wide, widths, layers, int(step.values) if step else 0, notes)


def deep_rows(numerical: Sequence[str], categorical: Sequence[str], widths: Sequence[int]) -> np.ndarray:
    """Return, for each input of our deep part, its row in NVIDIA's first kernel.

    Our inputs are the numericals and then the features' vectors; NVIDIA's are sorted by the columns' names.
    """
    sizes = [(name, 1) for name in numerical] + [(f"{name}_embedding", width) for name, width in zip(categorical, widths, strict=True)]
    first, total = {}, 0
    for name, size in sorted(sizes):
        first[name], total = total, total + size
    return np.concatenate([np.arange(first[name], first[name] + size) for name, size in sizes])


class _Variables:
    """The variables of a checkpoint that were not taken yet, by their names in it."""

    def __init__(self, left: dict[str, Weight], prefix: Path):
        self.left, self._prefix = left, prefix

    def take(self, name: str, what: str, shape: Sequence[int] | None = None) -> Weight:
        """Remove and return a variable. Raises UserError where it is missing, is not float32, or has another shape than the given one."""
        if (weight := self.left.pop(name, None)) is None:
            raise UserError(f"{self._prefix}: {what} is missing, {name}; expected a checkpoint of NVIDIA's Wide & Deep; {OTHER_DATASET}")
        if weight.values.dtype != np.float32:
            raise UserError(f"{weight.place}: {weight.values.dtype}, expected float32")
        if shape is not None and list(weight.values.shape) != list(shape):
            raise UserError(f"{weight.place}: shape {list(weight.values.shape)}, expected {list(shape)} of {what}; {OTHER_DATASET}")
        return weight


def _linear(found: _Variables, spec: FeatureSpec) -> tuple[list[Weight], tuple[np.ndarray, np.ndarray], tuple[str, ...]]:
    """Return the wide tables `[V, 1]`, kernel `[M, 1]` and bias `[1]` of the numericals, and notes; all in the dataset's order."""
    rows, count = {feature.name: feature.cardinality for feature in spec.categorical}, len(spec.numerical)
    notes = []
    if any(name.endswith(".Sembedding_weights") and name.startswith(_LINEAR) for name in found.left):
        names, numerical = list(rows), sorted(spec.numerical)
        places = {name: f"{_LINEAR}0/{_escaped(name + _TABLE)}" for name in names}
        kernel, bias = f"{_LINEAR}0/{_escaped('numeric' + _TABLE)}", f"{_LINEAR}0/bias"
    else:
        names, said = _listed(list(rows), CATEGORICAL, "wide tables")
        numerical, of_numericals = _listed(list(spec.numerical), NUMERICAL, "weights of numerical features")
        places = {name: f"{_LINEAR}{i}/embeddings" for i, name in enumerate(names)}
        kernel, bias = f"{_LINEAR}{len(names)}/kernel", f"{_LINEAR}{len(names)}/bias"
        notes = [*said, *of_numericals]
    tables = {name: found.take(place, f"the wide table of feature {name}", (rows[name], 1)) for name, place in places.items()}
    values = found.take(kernel, "the kernel of the numerical features", (count, 1)).values
    of_bias = found.take(bias, "the linear part's bias", (1,)).values
    return [tables[name] for name in rows], (values[[numerical.index(name) for name in spec.numerical]], of_bias), tuple(notes)


def _listed(names: list[str], known: Sequence[str], what: str) -> tuple[list[str], list[str]]:
    """Return the features in the order of the application's list and no note; if they differ from the list, in the dataset's order, with a note."""
    if sorted(names) == sorted(known):
        return list(known), []
    return names, [f"the checkpoint does not name its {what}: they are read in the dataset's order"]


def _escaped(name: str) -> str:
    """Escape a name as TensorFlow does inside the name of a variable."""
    return name.replace(".", "..").replace("/", ".S")


def _our_name(variable: str) -> str | None:
    """Return the name of a weight of the model or of the step; None for the slots and settings of optimizers."""
    name = variable.removesuffix(_VALUE)
    wanted = name == _STEP or (name.startswith("model/") and ".OPTIMIZER_SLOT" not in name)
    return name if wanted and name != variable else None


def _newest(folder: Path) -> Path:
    """Return the prefix of the checkpoint that the folder's file `checkpoint` names, or, without that file, of the only checkpoint.

    The path in that file is ignored, since it may be that of another machine. Raises UserError.
    """
    state = folder / "checkpoint"
    if state.is_file():
        if (match := _NEWEST.search(state.read_text(encoding="utf-8", errors="replace"))) is None:
            raise UserError(f'{state}: names no checkpoint; expected model_checkpoint_path: "ckpt-1"')
        return folder / match[1]
    found = sorted(folder.glob("ckpt-*.index"))
    if len(found) > 1:
        raise UserError(f"{folder}: {len(found)} checkpoints, and no file named checkpoint says which is the newest; keep one of them")
    return found[0].with_suffix("")
