"""A trained model loaded from a checkpoint, for Python: `dlrm.load`."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloading.features import Categorical
from model.embedding.table import Feature, Table
from model.native_scorer import NativeScorer
from run.array_scorer import ArrayScorer, RawScorer
from run.inherit import inherit
from run.native_engine import FEW, mapped_array, native_precision, stored_scorer
from run.raw_inputs import CriteoInputs, TableInputs, raw_inputs
from run.restoring import choice_note, restoring
from run.sample_columns import columns_of, encoded, encoded_raw
from run.tables import list_note, tables_and_features
from training.features import ModelFeatures, saved_features
from utils import streams
from utils.checkpoint import packed
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.mapped import MappedArray
from utils.checkpoint.reading import Checkpoint
from utils.config.config import PARTS, Config
from utils.config.data import DataConfig
from utils.config.device import DeviceConfig
from utils.config.option import build
from utils.config.options import LATEST, PREDICT, TrainingConfig
from utils.config.run import RunConfig
from utils.config.serving import FLOAT32
from utils.forks import POLARS, TENSORFLOW, RenewedLock, check_threads
from utils.metrics.binary import sigmoid
from utils.paths import check_utf8

if TYPE_CHECKING:
    from run.explain_rows import Explanation
    from run.explain_units import Inputs


class TrainedModel:
    """A model that scores samples. It is read-only and thread-safe.

    Attributes:
        features: features of the model, as recorded in the checkpoint.
        numerical: names of the numerical features, in the model's order.
        categorical: table rows of each categorical feature, in the model's order.
        hotness, id_weights: for each categorical feature, the maximum number of ids a sample, and whether each id has a weight.
        served: for each feature for training only, the id or number that it always has in scores.
        checkpoint, step: folder that the model was loaded from, and number of training steps.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config, mapped: bool = False):
        self.features = saved_features(checkpoint)
        self.numerical, self.categorical = self.features.numerical, dict(self.features.categorical)
        self.hotness, self.id_weights = ({name: of(name) for name in self.categorical} for of in (self.features.hotness, self.features.weights))
        self.checkpoint, self.step, self.served = checkpoint.folder, checkpoint.step, dict(self.features.served)
        self._config, self._manifest = config, checkpoint.manifest
        self._opened, self._raw, self._lock = checkpoint, None, RenewedLock()
        self._tables, self._tensorflow, self._in_memory = None, None, None
        self._native = self._map() if mapped or packed.NAME in checkpoint.manifest else None
        if self._native is None:
            self._evaluator()

    def _map(self) -> NativeScorer | None:
        """Map the tables in place; return the C++ scorer where it can replace TensorFlow, else None."""
        tables, features = _described(self._config, self.features)
        self._tables = restoring(lambda: {table.name: _mapped(self._opened, table) for table in tables})
        by_feature = [self._tables[feature.table] for feature in features]
        return restoring(lambda: stored_scorer(self._opened, self._config, len(self.numerical), features, by_feature))

    @property
    def _alike(self) -> NativeScorer | None:
        """The C++ scorer of mapped tables in float32: in bfloat16 it rounds elsewhere than TensorFlow."""
        return self._native if self._native and self._native.precision == FLOAT32 else None

    def _evaluator(self) -> Any:
        """Return the TensorFlow evaluator, built on first use."""
        check_threads(TENSORFLOW)
        with self._lock:
            if self._tensorflow is None:
                self._tensorflow = evaluator_of(self._opened, self._config, self.features, self._tables)
        return self._tensorflow

    @property
    def columns(self) -> tuple[str, ...]:
        """The features that `score` expects: the numerical ones, then the categorical ones; none of those in `served`."""
        return columns_of(self.features)

    @property
    def raw_columns(self) -> dict[str, str]:
        """The columns of the log that `score_raw` expects, each with its kind; see `TableInputs.kinds`.

        Raises:
            UserError: as in `score_raw`.
        """
        return dict(self.raw_inputs().kinds)

    def score(self, samples: Any) -> np.ndarray:
        """Return probabilities `[B]` float32, equal to those of `--mode predict` bit for bit; to 1e-6 for few samples with mapped tables.

        Args:
            samples: values of every feature in `columns`, one for each sample: a mapping of names to arrays or lists `[B]`, or a Polars or pandas
                frame. Numericals are rounded to the dataset's dtype, usually float16. Ids are whole numbers below the rows of their table; ids beyond
                are treated as in training (`--out_of_range`). A feature whose `hotness` is above 1 takes a list of ids for each sample, or an array
                `[B, h]` with −1 in empty places; one with `id_weights` a tuple `(ids, weights)` of such columns, or lists of pairs `(id, weight)`.
                Features in `served` may be there; their values have no effect, valid or not.

        Raises:
            ValueError: a feature is missing, unknown, of another length, or holds an invalid value; the message names it.
        """
        return self._scored(*encoded(samples, self.features, self._config.data.out_of_range))

    def score_raw(self, samples: Any) -> np.ndarray:
        """Return probabilities `[B]` float32 of raw samples as they stand in the log: row by row equal to preprocessing followed by `score`.

        Args:
            samples: as in `score`, with raw values of the columns in `raw_columns`. For datasets of `preproc.criteo`: numericals as whole numbers or
                their texts, categorical features as hexadecimal texts. For `preproc.table`: the table's columns that features are made of, as texts
                or typed. None, NaN and empty texts are missing values. Values that the vocabulary lacks are treated as in preprocessing.

        Raises:
            ValueError: as in `score`.
            UserError: the checkpoint does not record the transforms of raw values; datasets of `preproc.criteo` and `preproc.table` do.
        """
        return self._scored(*encoded_raw(samples, self.raw_inputs(), self.features))

    def explain(self, samples: Any, background: Any = None, *, seed: int = 0) -> "Explanation":
        """Return each feature's contribution to the logit of each sample: the logit less its mean with that feature taken from 64 background rows.

        Args:
            samples: as in `score`. Features in `served` have no contribution.
            background: the folder of a dataset with these features, whose training rows are drawn from; or samples. None for the dataset that the
                model was trained on.
            seed: seed of the choice of background rows.

        Raises:
            ValueError: as in `score`, for the samples and for the background; or the background has no row.
            UserError: the dataset is not there, or does not fit the model.
        """
        out_of_range = self._config.data.out_of_range
        return self._explained(samples, background, seed, lambda given: encoded(given, self.features, out_of_range))

    def explain_raw(self, samples: Any, background: Any = None, *, seed: int = 0) -> "Explanation":
        """Return each raw column's contribution, as `explain` does, for samples (and a background of samples) as in `score_raw`."""
        raw = self.raw_inputs()
        return self._explained(samples, background, seed, lambda given: encoded_raw(given, raw, self.features))

    def over_arrays(self) -> ArrayScorer:
        """Return a scorer of arrays with any number of samples, for a server. Needs a model that was loaded with `mmap=True`."""
        return ArrayScorer(self.features, self._native or self._evaluator(), self._config.data.out_of_range)

    def over_raw_arrays(self) -> RawScorer:
        """Return a scorer of raw values as they stand in the log. Raises UserError as `score_raw`."""
        return RawScorer(self.over_arrays(), self.raw_inputs())

    def raw_inputs(self) -> CriteoInputs | TableInputs:
        """Return the encoder of raw values as they stand in the log. Raises UserError as `score_raw`."""
        check_threads(POLARS)
        with self._lock:
            if self._raw is None:
                self._raw = restoring(lambda: raw_inputs(self._opened, self.features))
        return self._raw

    def _explained(self, samples: Any, background: Any, seed: int, encoded: Callable) -> "Explanation":
        from run.explain_rows import explained  # imported here: a server has no need of it

        return explained(self._opened, self._config, self._logits, encoded, samples, background, seed)

    def _logits(self, inputs: "Inputs") -> np.ndarray:
        """Return the logits of few or many samples: by the C++ scorer where it computes as TensorFlow does, to float32's last bits."""
        if self._native is None and self._in_memory is None and self._tables is None and native_precision(self._config) == FLOAT32:
            from training.native_evaluator import NativeEvaluator

            self._in_memory = NativeEvaluator(self._evaluator().model, self._config.model, len(self.numerical))
        if native := self._alike or self._in_memory:
            return native.logits_of(*inputs)
        return _batched(self._evaluator(), self._config, self.features, inputs.numerical, inputs.by_feature(self.features))

    def _scored(self, numerical: np.ndarray, ids: Sequence[np.ndarray]) -> np.ndarray:
        """Score as `--mode predict` does: same reader, batches and evaluator. Few samples go to the C++ scorer where tables are mapped."""
        if not len(numerical):
            return np.empty(0, np.float32)
        if self._alike and len(numerical) <= FEW:
            side_by_side = np.concatenate([column.reshape(len(numerical), -1) for column in ids], axis=1)
            return sigmoid(self._alike.logits_of(numerical.astype(np.float32), side_by_side))
        return sigmoid(_batched(self._evaluator(), self._config, self.features, numerical, ids))

    def __repr__(self) -> str:
        return _description(self, self._manifest)


def _batched(evaluator: Any, config: Config, features: ModelFeatures, numerical: np.ndarray, ids: Sequence[np.ndarray]) -> np.ndarray:
    """Return logits as `--mode predict` computes them: in the same batches."""
    from dataloading.batches import BatchReader
    from dataloading.memory_split import MemorySplit
    from run.scoring import pads_short
    from training.device_batch import to_device

    split = MemorySplit(categorical_of(features), features.numerical, numerical, ids, features.numerical_dtype)
    reader = BatchReader(split, config.data.valid_batch_size, short_last=pads_short(config))
    return evaluator.score(map(to_device, reader.epoch()), split.num_samples).logits


def _description(model: TrainedModel, manifest: Mapping[str, Any]) -> str:
    """Return what a model is: its features, tables, parameters, and the metrics that it was saved with."""
    from dataloading.training_only import shown_served

    arrays = manifest["arrays"]  # besides weights these hold optimizer slots: optimizer/… and tables/NAME/…
    shapes = [array["shape"] for name, array in arrays.items() if name.startswith("dense/") or name.endswith("/weights")]
    named, position = (manifest.get(name) or {} for name in ("model", "position"))
    saved = {name: position[name] for name in ("last_auc", "best_auc") if position.get(name) is not None}
    widths = {name: arrays[f"tables/{name}/weights"]["shape"][1] for name in model.features.tables}
    return "\n".join(
        [
            f"{named.get('name', 'dlrm')} of {model.checkpoint}, step {model.step:,}: {sum(int(np.prod(shape)) for shape in shapes):,} parameters",
            f"numerical: {', '.join(model.numerical)}",
            "tables: " + ", ".join(f"{name} [{rows:,}, {widths[name]}]" for name, rows in model.features.tables.items()),
            *([f"for training only, scored as {shown_served(model.served)}"] if model.served else []),
            "saved with: " + (", ".join(f"{name} {value:.6f}" for name, value in saved.items()) or "no metrics"),
        ]
    )


def load(path: str | Path, mapped: bool, cpu: bool, batch_size: int | None, choice: str) -> TrainedModel:
    """Load a model, see `dlrm.load`."""
    check_utf8(path)
    given = _scoring_config(path, bool(cpu), batch_size, choice)
    checkpoint = restoring(lambda: Checkpoint(path, choice))
    if line := choice_note(path, checkpoint, f'checkpoint_choice="{LATEST}"'):
        streams.write(sys.stderr, f"dlrm.load: {line}\n")
    config = inherit(given, checkpoint.manifest)
    if line := list_note(config, categorical_of(saved_features(checkpoint))):
        streams.write(sys.stderr, f"dlrm.load: warning: {line}\n")
    return TrainedModel(checkpoint, config, mapped)


def _scoring_config(path: str | Path, cpu: bool, batch_size: int | None, choice: str) -> Config:
    """Return the configuration for scoring, before it inherits the checkpoint's options. It names no dataset, as scoring reads none."""
    own: dict[type, dict[str, Any]] = {
        RunConfig: {"mode": PREDICT},
        DataConfig: {"dataset_type": "synthetic"} | ({} if batch_size is None else {"valid_batch_size": batch_size}),
        TrainingConfig: {"restore_checkpoint_path": str(path), "checkpoint_choice": choice},
        DeviceConfig: {"cpu": cpu},
    }
    given = frozenset(name for values in own.values() for name in values)
    return Config(*(build(group, own.get(group, {})) for group in PARTS.values()), given=given)


def categorical_of(features: ModelFeatures) -> list[Categorical]:
    """Return the categorical features in the form of a dataset's."""
    return [
        Categorical(
            name, rows, "int32", features.hotness(name), pooling=features.pooling(name), table=features.table(name), weights=features.weights(name)
        )
        for name, rows in features.categorical.items()
    ]


def _described(config: Config, features: ModelFeatures) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
    """Return the tables and the features of a model."""
    return tables_and_features(config, categorical_of(features), list(features.categorical.values()), len(features.numerical), zeros=True)


def evaluator_of(checkpoint: Checkpoint, config: Config, features: ModelFeatures, mapped: Mapping[str, Any] | None):
    """Build the TensorFlow evaluator and read its weights; with `mapped` tables, by name, only the dense weights."""
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    from run.devices import compute_dtype, configured, set_precision

    device = configured(config.device)
    set_precision(config.device)
    from model.build import Precision, build_model, with_tables
    from model.embedding.placement import single
    from training.evaluator import Evaluator
    from training.mapped import MappedEvaluator, MappedTables
    from training.state import restore
    from utils.distributed import World
    from utils.memory import available_bytes, check_fits

    precision = Precision(compute_dtype(config.device, device), config.device.xla)
    num_numerical = len(features.numerical)
    tables, looked_up = _described(config, features)
    if mapped is not None:
        arrays = [mapped[table.name] for table in tables]
        model = with_tables(config.model, MappedTables(single(tables, looked_up), arrays), num_numerical, 0, precision)
        evaluator = MappedEvaluator(model, precision.dtype, precision.xla)
    else:
        check_fits(sum(4 * table.rows * table.dim for table in tables), f"{checkpoint.folder}: the tables", available_bytes())
        model = build_model(config.model, single(tables, looked_up), World(), num_numerical, 0, precision)
        evaluator = Evaluator(model, config.device.xla)
    restoring(lambda: restore(model, checkpoint))
    return evaluator


def _mapped(checkpoint: Checkpoint, table: Table) -> MappedArray | packed.PackedTable:
    """Map a table in place: in the checkpoint's array or, for a reduced precision, in the export's file."""
    precision = checkpoint.manifest.get(packed.NAME)
    if precision is None:
        return mapped_array(checkpoint, table.name)
    try:
        return packed.PackedTable(checkpoint.folder, table.name, (table.rows, table.dim), precision)
    except ValueError as error:
        raise DamagedError(checkpoint.folder, f"{error}; the export is damaged") from None
