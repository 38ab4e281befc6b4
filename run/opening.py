"""Opening of what a run of dlrm.py reads: the checkpoint to restore and the splits of the dataset, before anything is built."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from dataloading.batches import Split
from dataloading.contract import TFRECORD
from dataloading.feature_spec import FeatureSpec
from dataloading.keys import check_keys, stored_keys
from dataloading.parquet.notes import notes
from dataloading.parquet.split import ParquetSplit
from dataloading.row_range import whole_split
from dataloading.sources import check_evaluated, check_grouped, check_weighs, open_split, open_training_splits
from dataloading.tfrecord.spec import unread_features
from run import predictions
from run.restoring import restoring
from utils.checkpoint.fallback import sound_checkpoint
from utils.checkpoint.folder import complete_steps
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.options import EVAL, EXPLAIN, INFERENCE, LATEST, PREDICT, TRAIN
from utils.distributed import World
from utils.errors import UserError

Warn = Callable[[str], None]
_LABELS_AT_ONCE = 1 << 20


def restored_path(config: Config) -> str | None:
    """Return the path that weights are restored from, None where there is none. With `--resume auto` the run's own checkpoints come first."""
    options = config.training
    if config.run.mode == TRAIN and options.resume == "auto":
        if options.save_checkpoint_path is None:
            raise UserError("--resume auto needs --save_checkpoint_path, where it looks for a checkpoint")
        if complete_steps(Path(options.save_checkpoint_path)):
            return options.save_checkpoint_path
    return options.restore_checkpoint_path


def choice_of(config: Config) -> str:
    """Return the checkpoint choice for a folder of checkpoints; training always resumes from the latest."""
    return LATEST if config.run.mode == TRAIN else config.training.checkpoint_choice


def fallback_checkpoint(config: Config, world: World, warn: Warn) -> Checkpoint | None:
    """Return the checkpoint to restore where `--restore_fallback` asks for all of it to be verified first, else None. Every worker calls this."""
    path = restored_path(config)
    return sound_checkpoint(path, world, warn, choice_of(config)) if config.training.restore_fallback and path else None


def open_checkpoint(config: Config, warn: Warn) -> Checkpoint | None:
    """Open the checkpoint to restore and read its manifest; None where there is none. Raises UserError."""
    path = restored_path(config)
    if path is not None:
        return restoring(lambda: Checkpoint(path, choice_of(config)))
    if config.run.untrained and config.run.mode == EVAL:
        warn("--untrained: the initial weights are evaluated; the metrics say nothing about a trained model")
        return None
    if config.run.mode in (EVAL, PREDICT, EXPLAIN):
        raise UserError(f"--restore_checkpoint_path is missing: --mode {config.run.mode} needs a trained model")
    if config.run.mode == INFERENCE:
        warn("no --restore_checkpoint_path: the benchmark runs with random weights, its AUC means nothing")
    return None


def open_splits(config: Config, spec: FeatureSpec, warn: Warn) -> dict[str, Split]:
    """Open the splits that the mode reads, and check the path of the predictions file in the mode `predict`. Raises UserError."""
    check_grouped(config.ranking, config.run.mode, spec)
    if config.data.dataset_type == TFRECORD and (unread := unread_features(spec)):
        warn(f"unused features of the TFRecords: {', '.join(unread)}")
    if config.run.mode == TRAIN:
        splits = open_training_splits(config.data, spec, config.run.seed, warn)
        check_evaluated(splits, spec, config.training)
        check_both_classes(config, spec, splits)
        if config.schedule.reduces_on_plateau and "valid" not in splits:
            raise UserError(f"--lr_schedule plateau: {spec.path or 'the synthetic data'} has no valid split to evaluate on; add --valid_fraction 0.1")
        if "test" not in splits and "test" not in (spec.sources or {}):
            warn(f"{spec.path}: there is no test split; the model will not be tested")
        return splits
    if config.run.mode != PREDICT:
        split = open_split(config.data, spec, config.run.split if config.run.mode == EXPLAIN else "test", config.run.seed, warn)
        if config.run.mode == EVAL:
            check_weighs(split)
        return {split.name: split}
    split = open_split(config.data, spec, config.run.split, config.run.seed, warn, labels=False)
    keys = stored_keys(spec, split.name) if config.data.dataset_type == "tf_raw" else None
    if keys:
        check_keys(spec, split.name, split.num_samples)
    predictions.check_disk(predictions.check_path(config.run.predictions_path), split.num_samples, keys)
    return {split.name: split}


def check_both_classes(config: Config, spec: FeatureSpec, splits: Mapping[str, Split]) -> None:
    """Raise UserError where flags need an AUC, or a metric by group, of a split whose labels are all alike.

    Labels are read up to the first of the other class. Those of TFRecords are not: the evaluations say it.
    """
    needing = [*config.training.need_evaluations, *(["--lr_schedule plateau"] if config.schedule.reduces_on_plateau else [])]
    name = "valid" if "valid" in splits else "test"
    split = splits.get(name)
    if not needing or split is None or not split.num_samples or config.data.dataset_type == TFRECORD:
        return
    found: set[int] = set()
    for start in range(0, split.num_samples, _LABELS_AT_ONCE):
        stop = min(start + _LABELS_AT_ONCE, split.num_samples)
        labels = split.read_labels(start, stop)
        found |= {*np.unique(labels if spec.weight is None else labels[split.read_weights(start, stop) > 0]).tolist()}
        if len(found) > 1:
            return
    weighted = " whose weight is not 0" if spec.weight is not None else ""
    which = f"has only label {found.pop()}" if found else "has no label"
    raise UserError(
        f"{needing[0]}: the {name} split {which} in its {split.num_samples:,} rows{weighted}, so no AUC exists; give it rows of both classes"
    )


def data_notes(config: Config, spec: FeatureSpec, splits: Iterable[Split]) -> list[str]:
    """Return lines for the user about what is not read of Parquet files; none for other datasets."""
    whole = {id(split): split for split in map(whole_split, splits)}
    found = [split for split in whole.values() if isinstance(split, ParquetSplit)]
    return notes(spec, found, config.run.mode in (TRAIN, EVAL) and config.ranking.ranking_metrics is None) if found else []
