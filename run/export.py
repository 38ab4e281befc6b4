"""`--mode export`: a checkpoint written to a model repository, proved before it becomes visible."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from model.architectures import architecture_of
from model.embedding.table import Feature, Table
from model.native_scorer import folded
from run.devices import physical_gpus
from run.export_formats import WRITERS, Samples, Source
from run.inherit import inherit
from run.raw_inputs import CriteoInputs, TableInputs, raw_inputs
from run.raw_rows import drawn_columns, raw_features
from run.restoring import choice_note, restoring
from run.served_rows import ProofRows, anything, by_feature, drawn_rows, test_rows
from run.tables import list_note, tables_and_features
from run.trained import TrainedModel, categorical_of
from serving.description import ServedModel
from serving.live import CONFIG, live
from serving.model_card import model_card
from serving.proof import check, prove
from serving.raw_graph import check_possible
from serving.repository import Repository
from serving.stub_environment import stub_environment
from serving.triton_config import ROWS, Tensor, config_text, inputs_of_columns, inputs_of_form, inputs_of_ids
from serving.weights import verified, weights_of
from training.features import ModelFeatures, saved_features
from utils import launch
from utils.checkpoint import packed
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.ineffective import warnings
from utils.config.serving import BFLOAT16, FLOAT16, FLOAT32, GPU, ONNX, RAW, SAVEDMODEL, TRITON
from utils.console import Console
from utils.encoding.recipe import NUMERICAL
from utils.encoding.transforms import HEXADECIMAL
from utils.errors import UserError
from utils.logging import RunLog
from utils.memory import GIB, available_bytes, check_fits, check_room
from utils.naming import naming

_DENSE = "dense/"
_PACKAGES = ("onnx", "onnxruntime")
_REST_BYTES = 64 << 20  # disk space of an export beside its tables


@dataclass(frozen=True)
class Plan:
    """The plan of an export, with all of it checked.

    Attributes:
        source: the checkpoint and the configuration to export.
        tables: tables of the model.
        looked_up: the categorical features.
        precision: precision of the tables.
        repository: target repository.
        reference: the model loaded from the checkpoint.
        samples: samples for the proof.
        labels: labels of these samples, where they are known.
        origin: description of where the samples come from.
    """

    source: Source
    tables: tuple[Table, ...]
    looked_up: tuple[Feature, ...]
    precision: str
    repository: Repository
    reference: TrainedModel
    samples: Samples
    labels: np.ndarray | None
    origin: str

    @property
    def expected(self) -> Callable[[], np.ndarray]:
        """A function that scores the samples with the checkpoint."""
        if self.samples.columns is not None:
            return lambda: self.reference.score_raw(self.samples.columns)
        columns = by_feature(self.samples.rows, self.source.features)
        return lambda: self.reference.score(columns)


def export(given: Config, program: str) -> None:
    """Write and prove every format, then make all of them visible; nothing becomes visible where one fails.

    Raises:
        UserError: the options contradict each other, the checkpoint is damaged, or an export scores differently from the checkpoint.
    """
    console = Console(program, names=given.names)
    while True:
        plan = _checked(given, console)
        try:
            with naming(Path(plan.source.config.export.export_path)):  # the error of a full disk names no file
                _export(plan, given, console)
            return
        except UserError:
            if not plan.source.checkpoint.gone:
                raise
            console.say(f"{plan.source.checkpoint.folder}: was removed while it was read, by the run that writes there; using the newest one")


def _export(plan: Plan, given: Config, console: Console) -> None:
    source, options = plan.source, plan.source.config.export
    log = RunLog(given.run.log_path, source.config.flat(), warn=console.warn)
    figures: dict = {}
    try:
        restoring(lambda: verified(source.checkpoint))
        if plan.repository.note:
            console.say(plan.repository.note)
        with plan.repository.staged() as staging:
            model = _described(plan, staging.tables)
            for form, name in options.names.items():
                version = staging.version(name, config_text(options, form, source.inputs, _parameters(source.features, options.inputs, form)))
                proof = prove(plan.expected, WRITERS[form](source, model, version, plan.samples), plan.labels)
                console.say(f"{name}: {form}, {plan.precision}: {proof} ({plan.origin})")
                check(proof, f"{name} ({form})", plan.precision)
                staging.card(name, model_card(source.checkpoint, source.config, inputs_of_form(source.inputs, form), form, proof, plan.precision))
                staging.flags(name, _words(source.config))
                figures |= {f"{form}_{figure}": value for figure, value in proof.figures().items()}
            for path in staging.publish():
                console.say(f"exported: {path}")
                if (served := live(path.parent)) != [options.model_version]:
                    console.say(f"{path.parent / CONFIG} keeps version {served[-1]} live; change it with serving.publish --model_version")
            size = sum(packed.stored_bytes(table.rows, table.dim, plan.precision) for table in plan.tables)
            console.say(f"tables of {size / GIB:.2f} GiB: a replica of the Python backend maps them once, however many instances it has")
        log.log((), figures)
    finally:
        log.close()


def _checked(given: Config, console: Console) -> Plan:
    options = given.export
    if launch.size() > 1:
        raise UserError("--mode export runs in one process; start it without horovodrun")
    if given.training.restore_checkpoint_path is None:
        raise UserError("--restore_checkpoint_path is missing: --mode export needs a trained model")
    if options.export_path is None:
        raise UserError("--export_path is missing: give the folder of a model repository")
    _check_onnx(options.formats, options.inputs)
    path = given.training.restore_checkpoint_path
    checkpoint = restoring(lambda: Checkpoint(path, given.training.checkpoint_choice))
    config = inherit(given, checkpoint.manifest)
    if line := choice_note(path, checkpoint):
        console.say(line)
    for line in warnings(config, architecture_of(config.model).optimizers(config.optimizer)):
        console.warn(line)
    if options.device == GPU and not physical_gpus(config.device):
        console.warn("--device gpu: no GPU is used here, so the CPU computes the proof; the server needs a GPU (use --device cpu if it has none)")
    if packed.NAME in checkpoint.manifest:
        raise UserError(f"{checkpoint.folder}: is an export with tables of {checkpoint.manifest[packed.NAME]}; export from the original checkpoint")
    features = saved_features(checkpoint)
    if averaged := list_note(config, categorical_of(features)):
        console.warn(averaged)
    raw = restoring(lambda: raw_inputs(checkpoint, features)) if options.inputs == RAW else None
    inputs = _inputs_of_log(raw) if raw else _inputs_of_ids(features)
    if raw and SAVEDMODEL in options.formats:
        check_possible(sum(raw_features(raw, features.numerical, tuple(features.categorical)), ()))
    repository = Repository(Path(options.export_path), options, inputs)
    if TRITON in options.formats:
        stub_environment(console.say)
    precision, before, served = _precision(config)
    tables, looked_up = tables_and_features(
        config, categorical_of(features), list(features.categorical.values()), len(features.numerical), zeros=True
    )
    size = sum(packed.stored_bytes(table.rows, table.dim, precision) for table in tables)
    if SAVEDMODEL in options.formats:
        check_fits(size, "--formats savedmodel: TensorFlow holds the tables in memory, also during the proof: they", available_bytes())
    check_room(Path(options.export_path), _needed_bytes(tables, options.formats, precision), "--export_path")
    rows = _rows(config, checkpoint, features, console.warn) if raw is None else None
    samples = Samples(rows, drawn_columns(raw) | anything(inputs) if raw else None)
    reference = TrainedModel(checkpoint, before, mapped=True)
    source = Source(checkpoint, served, features, inputs, raw)
    labels, origin = (rows.labels, rows.source) if rows else (None, "drawn values")
    return Plan(source, tables, looked_up, precision, repository, reference, samples, labels, origin)


def _check_onnx(formats: tuple[str, ...], inputs: str) -> None:
    if ONNX not in formats:
        return
    if inputs == RAW:
        raise UserError("--formats onnx takes ids, not --inputs raw, because ONNX has no vocabularies; use --formats triton or savedmodel")
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"--formats onnx needs the package {missing[0]}: python -m pip install --no-deps -r requirements-serving.txt")


def _inputs_of_ids(features: ModelFeatures) -> list[Tensor]:
    weighted = filter(features.weights, features.categorical)
    return inputs_of_ids(len(features.numerical), sum(map(features.hotness, features.categorical)), sum(map(features.hotness, weighted)))


def _inputs_of_log(raw: CriteoInputs | TableInputs) -> list[Tensor]:
    """Return an input for each column that is read, and an optional one for each that only features for training only are made of."""
    if not raw.columns:
        raise UserError("--inputs raw: all features of the model are for training only, so a request would hold nothing; use --inputs ids")
    return inputs_of_columns({name: _holds_numbers(raw, name) for name in (*raw.columns, *sorted(raw.optional))}, raw.optional)


def _holds_numbers(raw: CriteoInputs | TableInputs, column: str) -> bool:
    """Return whether only numerical features are made of a column."""
    hows = [how for name, how in raw.transforms.items() if (name == column if isinstance(how, str) else column in how.inputs)]
    return all(how != HEXADECIMAL if isinstance(how, str) else how.kind == NUMERICAL for how in hows)


def _rows(config: Config, checkpoint: Checkpoint, features: ModelFeatures, warn: Callable[[str], None]) -> ProofRows:
    """Return rows of the dataset that the flags name, else randomly drawn rows."""
    named = config.data.dataset_path is not None or "dataset_type" in config.given
    return test_rows(config, checkpoint, warn) if named else drawn_rows(features)


def _precision(config: Config) -> tuple[str, Config, Config]:
    """Return the precision of the tables, and the configurations of the reference and of the server."""
    options, trained = config.export, config.device
    computed = (trained.amp_dtype or BFLOAT16) if trained.amp else FLOAT32
    precision = options.precision or computed
    amp = precision == BFLOAT16 or (precision == FLOAT16 and options.device == GPU)
    served = replace(trained, amp=amp, amp_dtype=precision if amp else None, xla=False)
    # An export in 32 bits is compared with scores in 32 bits: scores in 16 bits would be too coarse a reference.
    before = replace(trained, xla=False) if precision == computed else replace(trained, amp=False, amp_dtype=None, xla=False)
    return precision, replace(config, device=before), replace(config, device=served)


def _needed_bytes(tables: tuple[Table, ...], formats: tuple[str, ...], precision: str) -> int:
    """Return the disk space needed where the checkpoint is on the repository's file system, so that tables can be shared."""
    size = sum(packed.stored_bytes(table.rows, table.dim, precision) for table in tables)
    passing = max(packed.stored_bytes(table.rows, table.dim, precision) for table in tables) if SAVEDMODEL in formats else 0  # written twice
    copies = int(_own_tables(formats, precision)) + int(ONNX in formats)
    return copies * size + passing + _REST_BYTES


def _own_tables(formats: tuple[str, ...], precision: str) -> bool:
    """Return whether a format needs each table in a file of its own."""
    return precision != FLOAT32 or set(formats) != {TRITON}


def _described(plan: Plan, folder: Path) -> ServedModel:
    """Return the description and the arrays of the model; write its tables if a format needs them."""
    checkpoint, config, features, _, _ = plan.source
    names = [name.removeprefix(_DENSE) for name in weights_of(checkpoint) if name.startswith(_DENSE)]
    readers = folded(lambda name: checkpoint.read(f"{_DENSE}{name}"), names, config.model)
    dense = {name: read() for name, read in readers.items()}
    facts = features.numerical, features.numerical_dtype, plan.looked_up, plan.tables, architecture_of(config.model), dense, config.data.out_of_range
    dtype = (config.device.amp_dtype or BFLOAT16) if config.device.amp else FLOAT32
    model = ServedModel(*facts, plan.precision, dtype, folder, config.model, features.served)
    if _own_tables(config.export.formats, plan.precision):
        for table in plan.tables:
            packed.write_table(checkpoint.read_rows(f"tables/{table.name}/weights"), model.files(table), plan.precision)
    return model


def _words(config: Config) -> list[str]:
    """Return the flags of an export that the next version inherits."""
    given = {field.name: getattr(config.export, field.name) for field in fields(config.export) if field.name in config.given}
    given |= {"cpu": config.device.cpu, "out_of_range": config.data.out_of_range}
    for name in ("export_path", "model_version"):
        given.pop(name, None)
    return [word for name, value in given.items() for word in (f"--{name}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value))]


def _parameters(features: ModelFeatures, inputs: str, form: str) -> dict[str, str]:
    """Return the ids' ranges, for clients that draw ids, and for the Python backend the locations of its Python and of this project."""
    shown = {name: f"{rows}*{features.hotness(name)}" if features.hotness(name) > 1 else str(rows) for name, rows in features.categorical.items()}
    described = {ROWS: ",".join(shown.values())} if inputs != RAW else {}
    if form != TRITON:
        return described
    return {
        "EXECUTION_ENV_PATH": str(stub_environment()),
        "PROJECT_PATH": str(Path(__file__).resolve().parents[1]),
        "INPUTS": inputs,
    } | described
