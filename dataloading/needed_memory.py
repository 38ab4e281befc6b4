"""Whether what a run's options have it hold of the data fits the memory, asked before anything is read.

Counted is what is certainly held, so what is refused cannot work; what is accepted may still need more.
"""

import math
from collections.abc import Mapping

import numpy as np

from dataloading.batches import Split
from dataloading.feature_spec import FeatureSpec, smallest_dtype
from utils.config.config import Config
from utils.config.options import INFERENCE, PREDICT, TRAIN, DataConfig
from utils.memory import available_bytes, check_fits

# Of a scored row: logit and label as they came, and the logit put together, and again in the order of the rows; with groups: these three times, and
# logit and label as they came and in the order of the rows.
_SCORE_BYTES, _GROUPED_BYTES = 13, 10


def check_memory(config: Config, spec: FeatureSpec, splits: Mapping[str, Split], workers: int, available: int | None = None) -> None:
    """Raise UserError where what a run holds of its data does not fit this machine; its tables are another question.

    Args:
        config: of the run.
        spec: the features.
        splits: what is read.
        workers: of this machine.
        available: bytes of memory that are free; the default is to ask.
    """
    available = available_bytes() if available is None else available
    sizes = [("valid_batch_size", config.data.valid_batch_size)]
    if config.run.mode == TRAIN:
        sizes.append(("batch_size", config.data.batch_size))
        check_shuffle(config.data, splits["train"], workers, available)
    if config.run.mode == INFERENCE:
        sizes += [("inference_benchmark_batch_sizes", size) for size in config.training.inference_benchmark_batch_sizes]
    for flag, size in sizes:
        check_batch(flag, size, spec, available)
    options = config.training
    if config.run.mode != INFERENCE and (config.run.mode != TRAIN or options.evals_per_epoch or options.test_freq or "valid" in splits):
        for name in set(splits) - {"train"}:
            check_scores(splits[name], available, grouped=_holds_groups(config, spec))


def check_batch(flag: str, batch_size: int, spec: FeatureSpec, available: int) -> None:
    """Raise UserError where one global batch does not fit.

    Args:
        flag: its name.
        batch_size: B; a last, partial batch is padded to it.
        spec: the features.
        available: bytes of memory that are free on this machine.
    """
    row = 4 * sum(spec.hotness) + _bytes_of_others(spec) + 4  # ids, and a weight
    check_fits(row * batch_size, f"--{flag} {batch_size}: the rows of a batch", available)


def check_scores(split: Split, available: int, grouped: bool = False) -> None:
    """Raise UserError where the scores of a whole split do not fit, of which the exact AUC needs all, nor those with their groups (`grouped`)."""
    row = _GROUPED_BYTES + 3 * _group_bytes(split.spec) if grouped else _SCORE_BYTES
    what = f"the scores{' and groups' if grouped else ''} of the {split.num_samples:,} rows of the {split.name} split"
    check_fits(row * split.num_samples, what, available)


def _holds_groups(config: Config, spec: FeatureSpec) -> bool:
    """Whether a scored row's group is held: for metrics by group, or to be written."""
    if spec.group is None:
        return False
    return config.run.mode == PREDICT or bool(config.ranking.metrics(config.run.mode, grouped=True))


def check_shuffle(config: DataConfig, split: Split, workers: int, available: int) -> None:
    """Raise UserError where the rows of a window, or the order of the batches, do not fit.

    Args:
        config: how rows and batches are shuffled.
        split: what is trained on.
        workers: of this machine, among whom the features are shared out.
        available: bytes of memory that are free on this machine.
    """
    window = config.shuffle_window or 1
    if config.shuffle_window is not None:
        rows = min(window * config.batch_size, split.num_samples)
        ids = sum(_id_bytes(config, split.spec))
        others = 8 + _bytes_of_others(split.spec)  # the rows' order, and what every worker holds
        check_fits(rows * (ids + workers * others), f"--shuffle_window {window}: the {rows:,} rows of a window", available)
    if config.shuffle_batch_order:
        windows = math.ceil(split.num_samples / (window * config.batch_size))
        check_fits(8 * workers * windows, f"--shuffle_batch_order: the order of {windows:,} batches or windows", available)


def _id_bytes(config: DataConfig, spec: FeatureSpec) -> list[int]:
    stored = config.dataset_type != "synthetic"
    dtypes = [feature.dtype if stored else smallest_dtype(feature.cardinality) for feature in spec.categorical]
    return [np.dtype(dtype).itemsize * hotness for dtype, hotness in zip(dtypes, spec.hotness, strict=True)]


def _bytes_of_others(spec: FeatureSpec) -> int:
    """Of a row without its ids: numericals, label and group."""
    return np.dtype(spec.numerical_dtype).itemsize * len(spec.numerical) + 1 + _group_bytes(spec)


def _group_bytes(spec: FeatureSpec) -> int:
    return 0 if spec.group is None else np.dtype(spec.group_dtype).itemsize
