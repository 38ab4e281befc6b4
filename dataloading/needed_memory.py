"""Checks, before any row is read, that the data which a run will hold fits into memory.

The checks count only memory that is certainly needed: a refused run cannot work, and an accepted run may still need more.
"""

import math
from collections.abc import Mapping

import numpy as np

from dataloading.batches import Split
from dataloading.feature_spec import FeatureSpec, smallest_dtype
from utils.config.config import Config
from utils.config.data import DataConfig
from utils.config.options import INFERENCE, PREDICT, TRAIN
from utils.memory import available_bytes, check_fits

# Bytes per scored row. Without groups: logit and label as received, the concatenated logits, and the logits again in row order. With groups: logit
# and label as received and in row order; the group itself is counted three times besides.
_SCORE_BYTES, _GROUPED_BYTES = 13, 10


def check_memory(config: Config, spec: FeatureSpec, splits: Mapping[str, Split], workers: int, available: int | None = None) -> None:
    """Raise UserError where the data that a run holds does not fit into this machine's memory; embedding tables are checked elsewhere.

    Args:
        config: options of the run.
        spec: the features.
        splits: the splits that are read.
        workers: number of workers on this machine.
        available: bytes of free memory; None to query the system.
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
        flag: the flag that sets the batch size.
        batch_size: B; a partial last batch is padded to B.
        spec: the features.
        available: bytes of free memory on this machine.
    """
    row = 4 * sum(feature.columns for feature in spec.categorical) + _bytes_of_others(spec) + 4  # int32 ids, other columns, float32 weight
    check_fits(row * batch_size, f"--{flag} {batch_size}: the rows of a batch", available)


def check_scores(split: Split, available: int, grouped: bool = False) -> None:
    """Raise UserError where the scores of a whole split, with their groups if `grouped`, do not fit; the exact AUC needs all of them."""
    row = _GROUPED_BYTES + 3 * _group_bytes(split.spec) if grouped else _SCORE_BYTES
    what = f"the scores{' and groups' if grouped else ''} of the {split.num_samples:,} rows of the {split.name} split"
    check_fits(row * split.num_samples, what, available)


def _holds_groups(config: Config, spec: FeatureSpec) -> bool:
    """Return whether the groups of scored rows are held: for metrics by group, or to be written."""
    if spec.group is None:
        return False
    return config.run.mode == PREDICT or bool(config.ranking.metrics(config.run.mode, grouped=True))


def check_shuffle(config: DataConfig, split: Split, workers: int, available: int) -> None:
    """Raise UserError where the rows of a shuffle window, or the order of the batches, do not fit.

    Args:
        config: the shuffle options.
        split: the training rows.
        workers: number of workers on this machine; they divide the features among themselves.
        available: bytes of free memory on this machine.
    """
    window = config.shuffle_window or 1
    if config.shuffle_window is not None:
        rows = min(window * config.batch_size, split.num_samples)
        ids = sum(_id_bytes(config, split.spec))
        others = 8 + _bytes_of_others(split.spec)  # the order of the rows, and the columns that every worker holds
        check_fits(rows * (ids + workers * others), f"--shuffle_window {window}: the {rows:,} rows of a window", available)
    if config.shuffle_batch_order:
        windows = math.ceil(split.num_samples / (window * config.batch_size))
        check_fits(8 * workers * windows, f"--shuffle_batch_order: the order of {windows:,} batches or windows", available)


def _id_bytes(config: DataConfig, spec: FeatureSpec) -> list[int]:
    stored = config.dataset_type != "synthetic"
    dtypes = [feature.dtype if stored else smallest_dtype(feature.cardinality) for feature in spec.categorical]
    return [4 * one.columns if one.weights else np.dtype(dtype).itemsize * one.hotness for dtype, one in zip(dtypes, spec.categorical, strict=True)]


def _bytes_of_others(spec: FeatureSpec) -> int:
    """Return the bytes of a row without its ids: numericals, label, group and weight."""
    return np.dtype(spec.numerical_dtype).itemsize * len(spec.numerical) + 1 + _group_bytes(spec) + (4 if spec.weight else 0)


def _group_bytes(spec: FeatureSpec) -> int:
    return 0 if spec.group is None else np.dtype(spec.group_dtype).itemsize
