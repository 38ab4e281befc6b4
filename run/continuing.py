"""Metadata that a checkpoint keeps of its run, and the check that a run can resume exactly from it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dataloading.feature_spec import NEGATIVE_RATE, FeatureSpec
from model.architectures import architecture_of
from training.optimizers.table import dense_rule, table_rule
from training.position import Position
from utils.checkpoint.reading import Checkpoint
from utils.config.config import OPTIONS, Config
from utils.config.option import MODEL, MUST_EQUAL, options_of
from utils.config.options import RECALIBRATE, ModelConfig
from utils.encoding import transforms
from utils.errors import UserError

FINGERPRINT = "dataset fingerprint"
_ARCHITECTURE = [name for name, option in options_of([ModelConfig]).items() if option.metadata["resume"] == MODEL]


def metadata(config: Config, spec: FeatureSpec) -> dict[str, Any]:
    """Return the manifest entries that describe the model, the configuration, and the transforms of raw values to the dataset's."""
    of_values = transforms.transforms_of(spec.metadata, spec.numerical, [feature.name for feature in spec.categorical])
    model = {"name": architecture_of(config.model).name} | {name: getattr(config.model, name) for name in _ARCHITECTURE}
    return {"model": model, "config": config.flat(), transforms.NAME: of_values}


def training_invariants(config: Config, num_samples: int, fingerprint: str, negative_rate: float = 1.0) -> dict[str, Any]:
    """Return what a run must share with the run it resumes, so that its position in the data and the optimizer's moments keep their meaning."""
    rules = [rule(config.optimizer, 1).name for rule in (dense_rule, table_rule)]
    given = config.flat()
    equal = {name: given[name] for name, option in OPTIONS.items() if option.metadata["resume"] == MUST_EQUAL}
    of_rules = {"optimizer": rules[0], "embedding_optimizer": rules[1]}  # by rule, as one rule may have several names
    return {"train_samples": num_samples, FINGERPRINT: fingerprint, NEGATIVE_RATE: negative_rate} | equal | of_rules


def check_continues(checkpoint: Checkpoint, wanted: Mapping[str, Any]) -> None:
    """Check that a run matches the run that wrote the checkpoint.

    Raises:
        UserError: they differ in something that the position in the data or the optimizer's state depends on.
    """
    saved = checkpoint.manifest.get("run")
    position = checkpoint.manifest.get("position")
    known = ("step", "epoch", "batch", "samples", "evals_without_gain")
    newer = {field.name for field in fields(Position)} - {*known, "best_auc"}  # absent from checkpoints that are older than these fields
    whole = isinstance(saved, Mapping) and isinstance(position, Mapping) and all(isinstance(position.get(name), int) for name in known)
    if not whole or set(position) - newer != {*known, "best_auc"}:
        raise UserError(f"{checkpoint.folder}: has no training position to resume from; use --resume weights to take its weights and start at step 0")
    # older checkpoints have one flag for two optimizers, FTRL for every linear part, and no sampled negatives
    older = {"embedding_optimizer": saved.get("optimizer"), "linear_optimizer": "ftrl", NEGATIVE_RATE: 1.0, "negatives": RECALIBRATE}
    saved = {**older, **saved}
    for name, value in wanted.items():
        if saved.get(name) != value and name == FINGERPRINT:
            raise UserError(
                f"{checkpoint.folder}: was trained on other rows than this dataset's, so the run cannot be resumed exactly; use the same dataset, or "
                "--resume weights to take the weights only"
            )
        if saved.get(name) != value:
            raise UserError(
                f"{checkpoint.folder}: its run had {name} {saved.get(name)}, this one has {value}, so it cannot be resumed exactly; use the "
                "same value, or --resume weights to take the weights only"
            )
