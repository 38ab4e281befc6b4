"""Writers of the export formats. Each returns a function that scores with the written version, as a server would."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from run.raw_inputs import CriteoInputs, TableInputs
from run.raw_rows import raw_features
from run.served_rows import ProofRows
from serving import kept_rows
from serving.description import CATEGORICAL, CHECKPOINT, ID_WEIGHTS, NUMERICAL, ServedModel
from serving.kept_rows import KeptRows
from serving.proof import DIFFERENCE, ExportScores, twice
from serving.served_proof import served
from serving.stub_environment import stub_environment
from serving.triton_config import Tensor, inputs_of_form
from serving.weights import write_weights
from training.features import ModelFeatures
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.serving import FLOAT16, FLOAT32, GPU, ONNX, SAVEDMODEL, TRITON

_MODEL_FILE = Path(__file__).resolve().parents[1] / "served/model.py"


class Source(NamedTuple):
    """The source of an export: checkpoint, configuration in which the server computes, model features, inputs, and encoder of raw values."""

    checkpoint: Checkpoint
    config: Config
    features: ModelFeatures
    inputs: list[Tensor]
    raw: CriteoInputs | TableInputs | None


class Samples(NamedTuple):
    """The samples of an export's proof: rows, or columns of the log."""

    rows: ProofRows | None
    columns: Mapping[str, np.ndarray] | None


def write_triton(source: Source, model: ServedModel, version: Path, samples: Samples) -> Callable[[], ExportScores]:
    """Write a version for Triton's Python backend; scoring it stores the first samples with their scores in the version, for its self-check."""
    device, export = source.config.device, source.config.export
    changed: Mapping[str, Any] = {"amp": device.amp, "amp_dtype": device.amp_dtype, "xla": False, "out_of_range": model.out_of_range}
    write_weights(source.checkpoint, version / CHECKPOINT, model.folder, model.precision, changed)
    shutil.copyfile(_MODEL_FILE, version / "model.py")
    gpu = export.device == GPU
    score = served(stub_environment(), version, source.inputs, export.inputs, gpu)
    # On a GPU, float32 products may use TensorFloat-32, which has ten bits of mantissa, as float16 has.
    limit = DIFFERENCE[FLOAT16 if gpu and model.compute_dtype == FLOAT32 else model.compute_dtype]
    rows = KeptRows(_as_requested(given(source.inputs, samples)), np.empty(0, np.float32), limit)

    def found() -> ExportScores:
        scored = score(rows, model.folder / "proof")
        rows._replace(scores=scored.scores).first(kept_rows.COUNT).write(version / kept_rows.FILE)
        return scored

    return found


def _as_requested(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Encode texts as bytes, as requests carry them."""
    found = {}
    for name, values in inputs.items():
        found[name] = values if values.dtype != object else np.array([[str(value).encode()] for value in values[:, 0]], object).reshape(-1, 1)
    return found


def write_savedmodel(source: Source, model: ServedModel, version: Path, samples: Samples) -> Callable[[], ExportScores]:
    """Write a version for Triton's TensorFlow backend and for TensorFlow itself."""
    from serving.saved_model import LoadedModel, write_saved_model

    folder = version / "model.savedmodel"
    raw = raw_features(source.raw, source.features.numerical, tuple(source.features.categorical)) if source.raw else None
    inputs = inputs_of_form(source.inputs, SAVEDMODEL)
    write_saved_model(model, folder, inputs, raw)
    loaded = LoadedModel(folder)
    return lambda: twice(lambda: loaded.score(given(inputs, samples)))


def given(inputs: list[Tensor], samples: Samples) -> dict[str, np.ndarray]:
    """Return the samples as inputs of the model, each `[n, width]`."""
    if samples.columns is not None:
        return {one.name: samples.columns[one.name][:, np.newaxis] for one in inputs}
    by_name = {NUMERICAL: samples.rows.numerical, CATEGORICAL: samples.rows.ids, ID_WEIGHTS: samples.rows.id_weights}
    return {one.name: by_name[one.name] for one in inputs}


def write_onnx(source: Source, model: ServedModel, version: Path, samples: Samples) -> Callable[[], ExportScores]:
    """Write a version for ONNX Runtime."""
    from serving import onnx_model

    loaded = onnx_model.OnnxModel(onnx_model.write_onnx(model, version))
    return lambda: twice(lambda: loaded.score(given(source.inputs, samples)))


WRITERS = {TRITON: write_triton, SAVEDMODEL: write_savedmodel, ONNX: write_onnx}
