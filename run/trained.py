"""A trained model out of a checkpoint, for Python: `dlrm.load`."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataloading.batches import BatchReader
from dataloading.memory_split import MemorySplit
from dataloading.ranges import into_range
from run.inherit import inherit
from run.opening import restoring
from run.raw_inputs import RawInputs
from run.tables import features_of, place_tables, tables_of
from utils.checkpoint.mapped import MappedArray
from utils.checkpoint.reading import Checkpoint
from utils.config import Config, parse
from utils.distributed import World
from utils.errors import UserError
from utils.memory import available_bytes, check_fits
from utils.metrics.binary import sigmoid
from utils.options import PREDICT, TRAIN

if TYPE_CHECKING:
    from run.train import Trained


class TrainedModel:
    """A model that scores samples. It is read only, and may be used from several threads.

    Attributes:
        numerical: names of the numerical features, in the model's order.
        categorical: rows of the table of each categorical feature, in the model's order.
        checkpoint: the folder it was loaded from.
        step: training steps it has seen.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config, mapped: bool = False):
        from training.state import saved_features

        tables, numerical = saved_features(checkpoint)
        self.numerical, self.categorical = tuple(numerical), dict(tables)
        self.checkpoint, self.step = checkpoint.folder, checkpoint.step
        self._config, self._manifest = config, checkpoint.manifest
        self._batch_size = config.data.valid_batch_size
        self._opened, self._raw, self._lock = checkpoint, None, threading.Lock()
        self._evaluator = _evaluator(checkpoint, config, self.categorical, len(numerical), mapped)

    @property
    def columns(self) -> tuple[str, ...]:
        """What `score` wants: the numerical features, then the categorical ones."""
        return (*self.numerical, *self.categorical)

    def score(self, samples: Any) -> np.ndarray:
        """Probabilities `[B]` float32 of samples, as `--mode predict` gives them.

        Args:
            samples: a value for each sample of every feature in `columns`: a mapping of names to arrays or lists `[B]`, or a Polars or pandas
                frame. Numericals are rounded to float16, as datasets hold them; ids are whole numbers below the rows of their table, and what
                lies beyond is treated as in training (`--out_of_range`).

        Raises:
            ValueError: a feature is missing, unknown, of another length, or holds a value that cannot be; the message names it.
        """
        return self._scored(*self._arrays(samples))

    def score_raw(self, samples: Any) -> np.ndarray:
        """Probabilities `[B]` float32 of samples as they stand in the log: what preprocessing, and then `score`, would give, row by row.

        Args:
            samples: as in `score`, with raw values: whole numbers or texts of them for numericals, hexadecimal texts for categorical features; None,
                NaN and empty texts are missing. A value that the vocabulary lacks is what it was in preprocessing.

        Raises:
            ValueError: as `score`.
            UserError: the checkpoint does not keep how raw values became its dataset's; datasets of `preproc.criteo` say so.
        """
        columns = _given(samples, self.columns)
        with self._lock:
            if self._raw is None:
                self._raw = restoring(lambda: RawInputs(self._opened, self.numerical, self.categorical))
        return self._scored(*self._raw.encoded(columns))

    def _scored(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """As `--mode predict` does: the same reader, the same batches, the same evaluator."""
        from run.scoring import pads_short
        from training.device_batch import to_device

        split = MemorySplit(self.categorical, self.numerical, numerical, ids)
        if not split.num_samples:
            return np.empty(0, np.float32)
        reader = BatchReader(split, self._batch_size, short_last=pads_short(self._config))
        logits, _ = self._evaluator.score(map(to_device, reader.epoch()), split.num_samples)
        return sigmoid(logits)

    def _arrays(self, samples: Any) -> tuple[np.ndarray, np.ndarray]:
        """`[B, M]` float16 and `[F, B]` int32."""
        found = _columns(samples, self.columns)
        count = len(next(iter(found.values())))
        for name, values in found.items():
            if values.shape != (count,):
                raise ValueError(f"feature {name}: has shape {list(values.shape)}, expected [{count}] as {self.columns[0]} has")
        numerical = np.empty((count, len(self.numerical)), np.float16)
        for column, name in enumerate(self.numerical):
            numerical[:, column] = _numbers(name, found[name])
        ids = np.empty((len(self.categorical), count), np.int32)
        for row, (name, size) in zip(ids, self.categorical.items(), strict=True):
            row[:] = self._ids(name, found[name], size)
        return numerical, ids

    def _ids(self, name: str, values: np.ndarray, rows: int) -> np.ndarray:
        if values.dtype.kind not in "iu" and len(values):
            raise ValueError(f"feature {name}: holds {values.dtype}, expected whole numbers from 0 to {rows - 1}")
        if self._config.data.out_of_range != "error":
            return into_range(values, rows, self._config.data.out_of_range)[0]
        outside = (values < 0) | (values >= rows)
        if outside.any():
            first = int(np.argmax(outside))
            raise ValueError(f"feature {name}: id {values[first]} of sample {first} is not in [0, {rows})")
        return values

    def __repr__(self) -> str:
        parameters = sum(int(np.prod(array["shape"])) for name, array in self._manifest["arrays"].items() if not name.startswith("optimizer/"))
        model, position = (self._manifest.get(name) or {} for name in ("model", "position"))
        saved = {name: position[name] for name in ("last_auc", "best_auc") if position.get(name) is not None}
        return "\n".join(
            [
                f"{model.get('name', 'dlrm')} of {self.checkpoint}, step {self.step:,}: {parameters:,} parameters",
                f"numerical: {', '.join(self.numerical)}",
                "tables: " + ", ".join(f"{name} [{rows:,}, {self._config.model.embedding_dim}]" for name, rows in self.categorical.items()),
                "saved with: " + (", ".join(f"{name} {value:.6f}" for name, value in saved.items()) or "no metrics"),
            ]
        )


def load(path: str | Path, mapped: bool, cpu: bool, batch_size: int | None) -> TrainedModel:
    """See `dlrm.load`."""
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    # No data are read; what the checkpoint was made of takes the place of the defaults.
    flags = ["--mode", PREDICT, "--dataset_type", "synthetic", "--restore_checkpoint_path", str(path), *(["--cpu"] if cpu else [])]
    if batch_size is not None:
        flags += ["--valid_batch_size", str(batch_size)]
    checkpoint = restoring(lambda: Checkpoint(path))
    return TrainedModel(checkpoint, inherit(parse(flags, "", "dlrm.load"), checkpoint.manifest), mapped)


def _evaluator(checkpoint: Checkpoint, config: Config, categorical: Mapping[str, int], num_numerical: int, mapped: bool):
    """What scores, its weights read; of `mapped` tables only the dense weights are."""
    from utils.runtime import compute_dtype, configured, set_precision

    device = configured(config.device)
    set_precision(config.device)
    from model.build import Precision, build_model, with_tables
    from training.evaluator import Evaluator
    from training.mapped import MappedEvaluator, MappedTables
    from training.state import restore

    precision = Precision(compute_dtype(config.device, device), config.device.xla)
    if mapped:
        arrays = restoring(lambda: [MappedArray(checkpoint, f"tables/{name}/weights") for name in categorical])
        model = with_tables(config.model, MappedTables(list(categorical), arrays), num_numerical, 0, precision)
        evaluator = MappedEvaluator(model, precision.dtype, precision.xla)
    else:
        tables = tables_of(config, list(categorical), list(categorical.values()), zeros=True)
        check_fits(sum(4 * table.rows * table.dim for table in tables), f"{checkpoint.folder}: the tables", available_bytes())
        placement = place_tables(config, tables, 1, float("inf"))
        model = build_model(config.model, features_of(list(categorical)), placement, World(), num_numerical, 0, precision)
        evaluator = Evaluator(model, config.device.xla)
    restoring(lambda: restore(model, checkpoint))
    return evaluator


def _columns(samples: Any, wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
    """An array of each feature."""
    found = {name: np.asarray(values) for name, values in _given(samples, wanted).items()}
    for name, values in found.items():
        if values.ndim != 1:
            raise ValueError(f"feature {name}: has shape {list(values.shape)}, expected [B]")
    return found


def _given(samples: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
    """What was given of each feature."""
    names = list(samples.keys()) if isinstance(samples, Mapping) else list(getattr(samples, "columns", ()))
    if not names and not isinstance(samples, Mapping):
        raise ValueError(f"samples: {type(samples).__name__}, expected a mapping of features to values, or a Polars or pandas frame")
    for name in wanted:
        if name not in names:
            raise ValueError(f"feature {name}: is missing; the model has {_listed(wanted)}")
    for name in names:
        if name not in wanted:
            raise ValueError(f"feature {name}: is unknown; the model has {_listed(wanted)}. Of a frame, give frame[list(model.columns)]")
    return {name: samples[name] for name in wanted}


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:4])}, … (model.columns)" if len(names) > 5 else ", ".join(names)


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    """A numerical feature as float16."""
    if values.dtype.kind not in "iufb":
        raise ValueError(f"feature {name}: holds {values.dtype}, expected numbers")
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float16)
    if not np.isfinite(numbers).all():
        first = int(np.argmin(np.isfinite(numbers)))
        raise ValueError(f"feature {name}: value {values[first]} of sample {first} is not a finite float16 (at most 65504), which datasets hold")
    return numbers


def train(flags: Mapping[str, Any]) -> "Trained":
    """See `dlrm.train`."""
    from run.command import do

    if flags.get("mode", TRAIN) != TRAIN:
        raise UserError(f"dlrm.train: mode is {flags['mode']!r}, expected {TRAIN!r}; dlrm.load gives a model that scores")
    words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", _word(value))]
    result = do(["--mode", TRAIN, *words], "dlrm.train", "")
    if result is None:  # said already: the run that was to go on is finished
        raise UserError("dlrm.train: the run is finished, nothing was trained; give it more epochs, or another save_checkpoint_path")
    return result


def _word(value: Any) -> str:
    """A flag's value as the command line has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(_word, value)) if isinstance(value, list | tuple) else str(value)
