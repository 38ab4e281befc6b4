"""`--mode export`: a model repository out of a checkpoint, proved before it is visible."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model.embedding.table import Feature, Table
from run.inherit import inherit
from run.opening import restoring
from run.raw_inputs import raw_inputs
from run.served_rows import Rows, by_feature, drawn_rows, test_rows
from run.tables import described
from run.trained import TrainedModel, categorical_of, mapped_model
from serving import backend
from serving.description import ServedModel
from serving.model_card import model_card
from serving.proof import Proof, check, prove
from serving.repository import Repository
from serving.triton_config import Tensor, config_text, inputs_of_columns, inputs_of_ids
from serving.weights import verified, weights_of, write_weights
from training.features import ModelFeatures, saved_features
from utils.checkpoint import packed
from utils.checkpoint.reading import Checkpoint
from utils.cluster import launch
from utils.config import Config
from utils.console import Console
from utils.errors import UserError
from utils.ineffective import warnings
from utils.logging import RunLog
from utils.memory import check_room
from utils.serving_options import BFLOAT16, FLOAT16, FLOAT32, GPU, ONNX, RAW, SAVEDMODEL, TRITON

_MODEL_FILE = Path(backend.__file__).with_name("triton_model.py")
_DENSE = "dense/"
_PACKAGES = ("onnx", "onnxruntime")


@dataclass(frozen=True)
class Export:
    """What is to be exported, all of it checked.

    Attributes:
        config: as the checkpoint completes it; `config.device` as the server computes.
        checkpoint: of the model.
        features: of the model.
        tables: of the model.
        looked_up: the categorical features.
        precision: of the tables.
        repository: where it goes.
        reference: the model out of the checkpoint.
        rows: to prove it with.
        inputs: of the exported model.
    """

    config: Config
    checkpoint: Checkpoint
    features: ModelFeatures
    tables: tuple[Table, ...]
    looked_up: tuple[Feature, ...]
    precision: str
    repository: Repository
    reference: TrainedModel
    rows: Rows
    inputs: list[Tensor]


def export(given: Config, program: str) -> None:
    """Write every format, prove it, and make it visible; nothing is visible where one fails.

    Raises:
        UserError: the options cannot be carried out, the checkpoint is damaged, or an export does not score as the checkpoint does.
    """
    console = Console(program)
    plan = _checked(given, console)
    log = RunLog(given.run.log_path, plan.config.flat(), warn=console.warn)
    options, proofs = plan.config.export, {}
    try:
        restoring(lambda: verified(plan.checkpoint))
        with plan.repository.staged() as staging:
            model = _described(plan, staging.tables)
            for form, name in options.names.items():
                version = staging.version(name, config_text(options, form, plan.inputs, _parameters(plan) if form == TRITON else {}))
                scorer = _WRITERS[form](plan, model, version)
                proofs[form] = prove(lambda: plan.reference.score(by_feature(plan.rows, plan.features)), scorer, plan.rows.labels)
                console.say(f"{name}: {form}, {proofs[form]} ({plan.rows.source})")
                check(proofs[form], f"{name} ({form})", plan.precision)
                staging.card(name, model_card(plan.checkpoint, plan.config, plan.inputs, form, proofs[form], plan.precision))
            for path in staging.publish():
                console.say(f"exported: {path}")
        log.log((), {f"{form}_{name}": value for form, proof in proofs.items() for name, value in proof.figures().items()})
    finally:
        log.close()


def _checked(given: Config, console: Console) -> Export:
    options = given.export
    if launch.size() > 1:
        raise UserError("--mode export runs in one process; start it without horovodrun")
    if given.training.restore_checkpoint_path is None:
        raise UserError("--restore_checkpoint_path is missing: --mode export needs a trained model")
    if options.export_path is None:
        raise UserError("--export_path is missing: give the folder of a model repository")
    missing = [name for name in _PACKAGES if ONNX in options.formats and importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--formats onnx needs the package {missing[0]}: pip install --no-deps -r requirements-serving.txt")
    checkpoint = restoring(lambda: Checkpoint(given.training.restore_checkpoint_path))
    config = inherit(given, checkpoint.manifest)
    for line in warnings(config):
        console.warn(line)
    if packed.NAME in checkpoint.manifest:
        raise UserError(f"{checkpoint.folder}: is an export of {checkpoint.manifest[packed.NAME]} tables; export from the checkpoint")
    features = saved_features(checkpoint)
    inputs = _inputs(options.inputs, checkpoint, features)
    repository = Repository(Path(options.export_path), options, inputs)
    precision, before, served = _precision(config)
    tables, looked_up = described(config, categorical_of(features), list(features.categorical.values()), len(features.numerical), zeros=True)
    check_room(Path(options.export_path), _needed_bytes(checkpoint, tables, options.formats, precision), "--export_path")
    with_data = given.data.dataset_path is not None or "dataset_type" in given.given
    rows = test_rows(config, checkpoint) if with_data else drawn_rows(features)
    reference = mapped_model(checkpoint, before)
    return Export(served, checkpoint, features, tables, looked_up, precision, repository, reference, rows, inputs)


def _inputs(kind: str, checkpoint: Checkpoint, features: ModelFeatures) -> list[Tensor]:
    if kind != RAW:
        return inputs_of_ids(len(features.numerical), sum(map(features.hotness, features.categorical)))
    raw = restoring(lambda: raw_inputs(checkpoint, features))
    return inputs_of_columns({name: name in raw.numbers for name in raw.columns})


def _precision(config: Config) -> tuple[str, Config, Config]:
    """The precision of the tables, and the configuration as the checkpoint computes and as the server does."""
    options, trained = config.export, config.device
    computed = (trained.amp_dtype or BFLOAT16) if trained.amp else FLOAT32
    precision = options.precision or computed
    amp = precision == BFLOAT16 or (precision == FLOAT16 and options.device == GPU)
    served = replace(config, device=replace(trained, amp=amp, amp_dtype=precision if amp else None, xla=False))
    # Scores of 16 bits are no measure of an export of 32.
    exact = replace(config, device=replace(trained, amp=False, amp_dtype=None, xla=False))
    before = replace(config, device=replace(trained, xla=False)) if precision == computed else exact
    return precision, before, served


def _needed_bytes(checkpoint: Checkpoint, tables: tuple[Table, ...], formats: tuple[str, ...], precision: str) -> int:
    """On the disk of the repository; tables of a checkpoint on the same one are shared."""
    size = sum(packed.stored_bytes(table.rows, table.dim, precision) for table in tables)
    whole = 1 if precision != FLOAT32 or set(formats) != {TRITON} else 0
    passing = size if SAVEDMODEL in formats else 0  # what TensorFlow writes, before it is replaced by the files that are shared
    return whole * size + passing + (64 << 20)


def _described(plan: Export, tables: Path) -> ServedModel:
    """The model as facts and arrays; its tables are written where a format needs them in files of their own."""
    dense = {name.removeprefix(_DENSE): plan.checkpoint.read(name) for name in weights_of(plan.checkpoint) if name.startswith(_DENSE)}
    device = plan.config.device
    facts = plan.features.numerical, plan.features.numerical_dtype, plan.looked_up, plan.tables
    compute = device.amp_dtype if device.amp else FLOAT32
    model = ServedModel(*facts, plan.config.model.interaction, dense, plan.config.data.out_of_range, plan.precision, compute, tables)
    if plan.precision != FLOAT32 or set(plan.config.export.formats) != {TRITON}:
        for table in plan.tables:
            packed.write_table(plan.checkpoint.read_rows(f"tables/{table.name}/weights"), model.files(table), plan.precision)
    return model


def _parameters(plan: Export) -> dict[str, str]:
    """For the Python backend: where it finds its Python and this project."""
    project = str(Path(__file__).resolve().parents[1])
    return {"EXECUTION_ENV_PATH": sys.prefix, "PROJECT_PATH": project, "INPUTS": plan.config.export.inputs}


def _write_triton(plan: Export, model: ServedModel, version: Path) -> Callable[[], np.ndarray]:
    device = plan.config.device
    changed: Mapping[str, Any] = {"amp": device.amp, "amp_dtype": device.amp_dtype, "xla": False, "out_of_range": plan.config.data.out_of_range}
    write_weights(plan.checkpoint, version / backend.CHECKPOINT, model.folder, plan.precision, changed)
    shutil.copyfile(_MODEL_FILE, version / "model.py")
    exported = Checkpoint(version / backend.CHECKPOINT)
    scorer = mapped_model(exported, inherit(plan.config, exported.manifest)).over_arrays()
    return lambda: scorer.score(*scorer.checked(plan.rows.numerical, plan.rows.ids))


_WRITERS = {TRITON: _write_triton}
