"""A trained model out of a checkpoint, for Python: `dlrm.load`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.features import Categorical
from model.embedding.table import Feature, Table
from model.native_scorer import NativeScorer
from run.array_scorer import ArrayScorer, RawScorer
from run.inherit import inherit
from run.native_engine import FEW, stored_scorer
from run.raw_inputs import CriteoInputs, TableInputs, raw_inputs
from run.restoring import restoring, told_choice
from run.sample_columns import arrays, given_columns
from run.tables import list_note, tables_and_features
from training.features import ModelFeatures, saved_features
from utils import streams
from utils.checkpoint import packed
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.mapped import MappedArray
from utils.checkpoint.reading import Checkpoint
from utils.config.config import PARTS, Config
from utils.config.device import DeviceConfig
from utils.config.option import build
from utils.config.options import LATEST, PREDICT, DataConfig, RunConfig, TrainingConfig
from utils.forks import POLARS, TENSORFLOW, RenewedLock, check_threads
from utils.metrics.binary import sigmoid
from utils.paths import check_utf8


class TrainedModel:
    """A model that scores samples. It is read only, and may be used from several threads.

    Attributes:
        features: of the model, as its checkpoint has them.
        numerical: names of the numerical features, in the model's order.
        categorical: rows of the table of each categorical feature, in the model's order.
        hotness: of each of them, how many ids a sample may have.
        checkpoint: the folder it was loaded from.
        step: training steps it has seen.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config, mapped: bool = False):
        self.features = saved_features(checkpoint)
        self.numerical, self.categorical = self.features.numerical, dict(self.features.categorical)
        self.hotness = {name: self.features.hotness(name) for name in self.categorical}
        self.checkpoint, self.step = checkpoint.folder, checkpoint.step
        self._config, self._manifest = config, checkpoint.manifest
        self._batch_size = config.data.valid_batch_size
        self._opened, self._raw, self._lock = checkpoint, None, RenewedLock()
        self._tables, self._tensorflow = None, None
        self._native = self._map() if mapped or packed.NAME in checkpoint.manifest else None
        if self._native is None:
            self._evaluator()

    def _map(self) -> NativeScorer | None:
        """Leave the tables where they lie; what scores without TensorFlow, where that can be."""
        tables, features = _described(self._config, self.features)
        self._tables = restoring(lambda: {table.name: _mapped(self._opened, table) for table in tables})
        by_feature = [self._tables[feature.table] for feature in features]
        return restoring(lambda: stored_scorer(self._opened, self._config, len(self.numerical), features, by_feature))

    def _evaluator(self) -> Any:
        """TensorFlow's, made when it is first wanted."""
        check_threads(TENSORFLOW)
        with self._lock:
            if self._tensorflow is None:
                self._tensorflow = _evaluator(self._opened, self._config, self.features, self._tables)
        return self._tensorflow

    @property
    def columns(self) -> tuple[str, ...]:
        """What `score` wants: the numerical features, then the categorical ones."""
        return (*self.numerical, *self.categorical)

    @property
    def raw_columns(self) -> dict[str, str]:
        """What `score_raw` wants: the columns of the log that features are made of, and what each holds; see `TableInputs.kinds`.

        Raises:
            UserError: as `score_raw`.
        """
        return dict(self.raw_inputs().kinds)

    def score(self, samples: Any) -> np.ndarray:
        """Probabilities `[B]` float32 of samples, as `--mode predict` gives them; of few samples and mapped tables to 1e-6, else bit for bit.

        Args:
            samples: a value for each sample of every feature in `columns`: a mapping of names to arrays or lists `[B]`, or a Polars or pandas
                frame. Numericals are rounded to the dtype of the dataset, float16 as a rule; ids are whole numbers below the rows of their table,
                and what lies beyond is treated as in training (`--out_of_range`). A feature whose `hotness` is above 1 takes a list of ids for each
                sample, or an array `[B, h]` in which −1 stands for none.

        Raises:
            ValueError: a feature is missing, unknown, of another length, or holds a value that cannot be; the message names it.
        """
        return self._scored(*arrays(given_columns(samples, self.columns), self.features, self._config.data.out_of_range))

    def score_raw(self, samples: Any) -> np.ndarray:
        """Probabilities `[B]` float32 of samples as they stand in the log: what preprocessing, and then `score`, would give, row by row.

        Args:
            samples: as in `score`, with raw values of the columns in `raw_columns`. Of a dataset of `preproc.criteo`: whole numbers or texts of them
                for numericals, hexadecimal texts for categorical features. Of `preproc.table`: the columns of the table that features are made of,
                texts or typed. None, NaN and empty texts are missing. A value that the vocabulary lacks is what it was in preprocessing.

        Raises:
            ValueError: as `score`.
            UserError: the checkpoint does not keep how raw values became its dataset's; datasets of `preproc.criteo` and `preproc.table` say so.
        """
        raw = self.raw_inputs()
        return self._scored(*raw.encoded(given_columns(samples, raw.columns, "raw_columns")))

    def over_arrays(self) -> ArrayScorer:
        """What scores arrays of any number of samples, for a server. Only of a model that was loaded with `mmap=True`."""
        return ArrayScorer(self.features, self._native or self._evaluator(), self._config.data.out_of_range)

    def over_raw_arrays(self) -> RawScorer:
        """The same of values as they stand in the log. Raises UserError as `score_raw`."""
        return RawScorer(self.over_arrays(), self.raw_inputs())

    def raw_inputs(self) -> CriteoInputs | TableInputs:
        """What makes inputs of values as they stand in the log. Raises UserError as `score_raw`."""
        check_threads(POLARS)
        with self._lock:
            if self._raw is None:
                self._raw = restoring(lambda: raw_inputs(self._opened, self.features))
        return self._raw

    def _scored(self, numerical: np.ndarray, ids: Sequence[np.ndarray]) -> np.ndarray:
        """As `--mode predict` does: the same reader, the same batches, the same evaluator. Of few samples the C++ scorer, where tables are mapped."""
        if not len(numerical):
            return np.empty(0, np.float32)
        if self._native and len(numerical) <= FEW:
            side_by_side = np.concatenate([column.reshape(len(numerical), -1) for column in ids], axis=1)
            return sigmoid(self._native.logits_of(numerical.astype(np.float32), side_by_side))
        evaluator = self._evaluator()
        from dataloading.batches import BatchReader
        from dataloading.memory_split import MemorySplit
        from run.scoring import pads_short
        from training.device_batch import to_device

        split = MemorySplit(categorical_of(self.features), self.numerical, numerical, ids, self.features.numerical_dtype)
        reader = BatchReader(split, self._batch_size, short_last=pads_short(self._config))
        return sigmoid(evaluator.score(map(to_device, reader.epoch()), split.num_samples).logits)

    def __repr__(self) -> str:
        arrays = self._manifest["arrays"].items()  # beside weights, slots of the optimizers: optimizer/… and tables/NAME/…
        parameters = sum(int(np.prod(array["shape"])) for name, array in arrays if name.startswith("dense/") or name.endswith("/weights"))
        model, position = (self._manifest.get(name) or {} for name in ("model", "position"))
        saved = {name: position[name] for name in ("last_auc", "best_auc") if position.get(name) is not None}
        return "\n".join(
            [
                f"{model.get('name', 'dlrm')} of {self.checkpoint}, step {self.step:,}: {parameters:,} parameters",
                f"numerical: {', '.join(self.numerical)}",
                "tables: " + ", ".join(f"{name} [{rows:,}, {self._dim(name)}]" for name, rows in self.features.tables.items()),
                "saved with: " + (", ".join(f"{name} {value:.6f}" for name, value in saved.items()) or "no metrics"),
            ]
        )

    def _dim(self, table: str) -> int:
        """Columns of a table."""
        return self._manifest["arrays"][f"tables/{table}/weights"]["shape"][1]


def load(path: str | Path, mapped: bool, cpu: bool, batch_size: int | None, choice: str) -> TrainedModel:
    """See `dlrm.load`."""
    check_utf8(path)
    given = _asked(path, bool(cpu), batch_size, choice)
    checkpoint = restoring(lambda: Checkpoint(path, choice))
    if line := told_choice(path, checkpoint, f'checkpoint_choice="{LATEST}"'):
        streams.write(sys.stderr, f"dlrm.load: {line}\n")
    config = inherit(given, checkpoint.manifest)
    if line := list_note(config, categorical_of(saved_features(checkpoint))):
        streams.write(sys.stderr, f"dlrm.load: warning: {line}\n")
    return TrainedModel(checkpoint, config, mapped)


def _asked(path: str | Path, cpu: bool, batch_size: int | None, choice: str) -> Config:
    """What scoring goes by before the checkpoint's own options take the place of the defaults. No data are read, so none are named."""
    own: dict[type, dict[str, Any]] = {
        RunConfig: {"mode": PREDICT},
        DataConfig: {"dataset_type": "synthetic"} | ({} if batch_size is None else {"valid_batch_size": batch_size}),
        TrainingConfig: {"restore_checkpoint_path": str(path), "checkpoint_choice": choice},
        DeviceConfig: {"cpu": cpu},
    }
    given = frozenset(name for values in own.values() for name in values)
    return Config(*(build(group, own.get(group, {})) for group in PARTS.values()), given=given)


def categorical_of(features: ModelFeatures) -> list[Categorical]:
    """As a dataset describes them."""
    return [
        Categorical(name, rows, "int32", features.hotness(name), pooling=features.pooling(name), table=features.table(name))
        for name, rows in features.categorical.items()
    ]


def _described(config: Config, features: ModelFeatures) -> tuple[tuple[Table, ...], tuple[Feature, ...]]:
    """The tables and the features."""
    return tables_and_features(config, categorical_of(features), list(features.categorical.values()), len(features.numerical), zeros=True)


def _evaluator(checkpoint: Checkpoint, config: Config, features: ModelFeatures, mapped: Mapping[str, Any] | None):
    """What scores by TensorFlow, its weights read; where tables are `mapped`, by their names, only the dense weights are."""
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
    """A table where it lies: in a checkpoint's array, or, of fewer bits, in the file that an export has."""
    precision = checkpoint.manifest.get(packed.NAME)
    if precision is None:
        return MappedArray(checkpoint, f"tables/{table.name}/weights")
    try:
        return packed.PackedTable(checkpoint.folder, table.name, (table.rows, table.dim), precision)
    except ValueError as error:
        raise DamagedError(checkpoint.folder, f"{error}; the export is damaged") from None
