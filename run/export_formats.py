"""A model written in each of the forms that servers take; every function returns what scores by what it wrote, as a server would."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from run.raw_inputs import CriteoInputs, TableInputs
from run.raw_rows import raw_features
from run.served_rows import ProofRows
from serving import kept_rows
from serving.description import CATEGORICAL, CHECKPOINT, NUMERICAL, ServedModel
from serving.kept_rows import KeptRows
from serving.proof import DIFFERENCE, ExportScores, twice
from serving.served_proof import served
from serving.stub_environment import stub_environment
from serving.triton_config import Tensor
from serving.weights import write_weights
from training.features import ModelFeatures
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.serving import FLOAT16, FLOAT32, GPU, ONNX, SAVEDMODEL, TRITON

_MODEL_FILE = Path(__file__).resolve().parents[1] / "served/model.py"


class Source(NamedTuple):
    """What is exported: a checkpoint, the configuration in which the server computes, the model's features, and how raw values become ids."""

    checkpoint: Checkpoint
    config: Config
    features: ModelFeatures
    inputs: list[Tensor]
    raw: CriteoInputs | TableInputs | None


class Samples(NamedTuple):
    """What an export is proved with: rows, or columns of the log."""

    rows: ProofRows | None
    columns: Mapping[str, np.ndarray] | None


def write_triton(source: Source, model: ServedModel, version: Path, samples: Samples) -> Callable[[], ExportScores]:
    """A version for Triton's Python backend, which keeps the first of the samples with the scores that were found."""
    device, export = source.config.device, source.config.export
    changed: Mapping[str, Any] = {"amp": device.amp, "amp_dtype": device.amp_dtype, "xla": False, "out_of_range": model.out_of_range}
    write_weights(source.checkpoint, version / CHECKPOINT, model.folder, model.precision, changed)
    shutil.copyfile(_MODEL_FILE, version / "model.py")
    gpu = export.device == GPU
    score = served(stub_environment(), version, source.inputs, export.inputs, gpu)
    # A GPU multiplies float32 with the bits of TensorFloat-32, ten of the mantissa as float16.
    limit = DIFFERENCE[FLOAT16 if gpu and model.compute_dtype == FLOAT32 else model.compute_dtype]
    rows = KeptRows(_as_requested(given(source.inputs, samples)), np.empty(0, np.float32), limit)

    def found() -> ExportScores:
        scored = score(rows, model.folder / "proof")
        rows._replace(scores=scored.scores).first(kept_rows.COUNT).write(version / kept_rows.FILE)
        return scored

    return found


def _as_requested(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Texts as the bytes that requests carry."""
    found = {}
    for name, values in inputs.items():
        found[name] = values if values.dtype != object else np.array([[str(value).encode()] for value in values[:, 0]], object).reshape(-1, 1)
    return found


def write_savedmodel(source: Source, model: ServedModel, version: Path, samples: Samples) -> Callable[[], ExportScores]:
    """A version as Triton's TensorFlow backend and TensorFlow itself have it."""
    from serving.saved_model import LoadedModel, write_saved_model

    folder = version / "model.savedmodel"
    raw = raw_features(source.raw, source.features.numerical, tuple(source.features.categorical)) if source.raw else None
    write_saved_model(model, folder, source.inputs, raw)
    loaded = LoadedModel(folder)
    return lambda: twice(lambda: loaded.score(given(source.inputs, samples)))


def given(inputs: list[Tensor], samples: Samples) -> dict[str, np.ndarray]:
    """The samples as the inputs of a model, each `[n, width]`."""
    if samples.columns is not None:
        return {one.name: samples.columns[one.name][:, np.newaxis] for one in inputs}
    by_name = {NUMERICAL: samples.rows.numerical, CATEGORICAL: samples.rows.ids}
    return {one.name: by_name[one.name] for one in inputs}


def write_onnx(source: Source, model: ServedModel, version: Path, samples: Samples) -> Callable[[], ExportScores]:
    """A version as ONNX Runtime has it."""
    from serving import onnx_model

    loaded = onnx_model.OnnxModel(onnx_model.write_onnx(model, version))
    return lambda: twice(lambda: loaded.score(given(source.inputs, samples)))


WRITERS = {TRITON: write_triton, SAVEDMODEL: write_savedmodel, ONNX: write_onnx}
