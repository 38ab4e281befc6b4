"""Comparison of a dataset's vocabularies with those of a checkpoint, so that a model's rows are never used for other values.

Preprocessing writes `vocabulary/FEATURE.parquet` (value, id, count; in the order of the ids) beside the data. A checkpoint keeps the file, the number
of values, and a digest of them. A dataset is compatible if its vocabulary begins with the same values; new values come after them.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dataloading.contract import stored_vocabulary
from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.features import DatasetError
from dataloading.vocabulary import RECORD, Vocabulary, kept_file, read_vocabulary
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.options import TRAIN


def check_vocabularies(
    config: Config, spec: FeatureSpec, checkpoint: Checkpoint | None, warn: Callable[[str], None], *, goes_on: bool
) -> dict[str, dict[str, Any]]:
    """Compare the dataset's vocabularies with those that a checkpoint was trained with.

    It takes a second for each 25 million values, a small part of the time to read the table whose rows they name.

    Args:
        config: the configuration of the run.
        spec: the specification of the dataset.
        checkpoint: the checkpoint to restore; its features must have been checked against those of the dataset.
        warn: called with a message about vocabularies that cannot be compared.
        goes_on: whether the run continues with the same rows that the checkpoint was trained on.

    Returns:
        the records that the run's own checkpoints keep, by feature; empty if it writes none.

    Raises:
        DatasetError: an id of a feature has another value than in the checkpoint, or a vocabulary cannot be read.
    """
    known = checkpoint.manifest.get(RECORD, {}) if checkpoint else {}
    writes = config.run.mode == TRAIN and config.training.save_checkpoint_path is not None
    files = {feature: path for feature in spec.categorical if (path := vocabulary_file(config, spec, feature.name))}
    found = {}
    for feature, path in files.items():
        if feature.name in known or writes:
            found[feature.name] = asdict(_checked(feature, path, known.get(feature.name), checkpoint))
    if checkpoint:
        _warn_of_unknown(checkpoint, known, [feature.name for feature in files], config.training.allow_growth, warn)
    if not writes:
        return {}
    return {**(known if goes_on else {}), **found}


def record(spec: FeatureSpec) -> dict[str, dict[str, Any]]:
    """Return the records of a stored dataset's vocabularies that a checkpoint keeps. Raises DatasetError if a vocabulary cannot be read."""
    files = {feature: stored_vocabulary(spec, feature.name) for feature in spec.categorical}
    return {feature.name: asdict(_checked(feature, path, None, None)) for feature, path in files.items() if path}


def vocabulary_file(config: Config, spec: FeatureSpec, feature: str) -> Path | None:
    """Return the path of a feature's vocabulary; None for synthetic data, and for a dataset without vocabularies."""
    return stored_vocabulary(spec, feature) if config.data.dataset_type != "synthetic" else None


def vocabulary_files(config: Config, spec: FeatureSpec, recorded: Iterable[str], checkpoint: Checkpoint | None) -> dict[str, Path]:
    """Return the present paths of the vocabularies that a run's checkpoints keep, by `kept_file`.

    Args:
        config: the configuration of the run.
        spec: the specification of the dataset.
        recorded: the features that `check_vocabularies` returned.
        checkpoint: the checkpoint to restore; it provides the vocabularies that the dataset lacks.
    """
    found = {}
    for name in recorded:
        path = vocabulary_file(config, spec, name) or (checkpoint and checkpoint.folder / kept_file(name))
        if path and os.path.isfile(path):
            found[kept_file(name)] = path
    return found


def _checked(feature: Categorical, path: Path, known: Mapping[str, Any] | None, checkpoint: Checkpoint | None) -> Vocabulary:
    vocabulary, beginning = read_vocabulary(path, known["values"] if known else 0, feature.cardinality)
    if known is None:
        return vocabulary
    advice = "use a dataset whose vocabulary equals or begins with the checkpoint's; a trained model cannot use ids that were renumbered"
    if vocabulary.values < known["values"]:
        raise DatasetError(
            f"feature {feature.name}: {path} has {vocabulary.values:,} values, {checkpoint.folder} was trained with {known['values']:,}; {advice}"
        )
    if beginning.digest != known["digest"]:
        raise DatasetError(
            f"feature {feature.name}: the first {known['values']:,} values of {path}, in the order of the ids, are not those that "
            f"{checkpoint.folder} was trained with, so its rows belong to other values; {advice}"
        )
    return vocabulary


def _warn_of_unknown(checkpoint: Checkpoint, known: Mapping[str, Any], stored: list[str], growth: bool, warn: Callable[[str], None]) -> None:
    trained = checkpoint.manifest["features"]["categorical"]
    lost = [name for name in known if name not in stored]
    if lost:
        warn(f"{_listed(lost)}: the dataset has no vocabulary/FEATURE.parquet, so its ids cannot be compared with those of {checkpoint.folder}")
    elif growth and (unknown := [name for name in trained if name not in known]):
        warn(f"--allow_growth: {_listed(unknown)}: {checkpoint.folder} keeps no record of its values; check that the ids have the same meaning")


def _listed(names: list[str]) -> str:
    return f"feature{'s' if len(names) > 1 else ''} {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"
