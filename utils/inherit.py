"""What a run takes over from the checkpoint it restores, so that evaluating one needs no model flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from utils.checkpoint import Checkpoint
from utils.config import TRAIN, Config
from utils.errors import UserError

# The weights fit no other values of these.
ARCHITECTURE = {"model": ("embedding_dim", "bottom_mlp_dims", "top_mlp_dims"), "data": ("max_table_size",)}
# What was done with ids out of range in training is done ever after, unless said otherwise.
DATA_HANDLING = {"data": ("out_of_range",)}
# These change the last digits of a score: evaluation repeats what training used unless told otherwise.
NUMERICS = {"device": ("amp", "amp_dtype", "xla"), "data": ("valid_batch_size",)}
UNRECORDED_SLICES = 8  # of the gradients, where training did not say in the checkpoint how many it used


FINGERPRINT = "dataset fingerprint"


def facts(config: Config) -> dict[str, Any]:
    """What a checkpoint's manifest keeps of the configuration."""
    return {"config": config.flat()}


def training_facts(config: Config, num_samples: int, fingerprint: str) -> dict[str, Any]:
    """What a run must have in common with the one it goes on from, for its position in the data and its moments to mean the same."""
    options = config.optimizer
    return {
        "batch_size": config.data.batch_size,
        "train_samples": num_samples,
        FINGERPRINT: fingerprint,
        "shuffle_batch_order": config.data.shuffle_batch_order,
        "shuffle_window": config.data.shuffle_window,
        "seed": config.run.seed,
        "optimizer": options.optimizer,
        "embedding_trainable": config.model.embedding_trainable,
    }


def check_continues(checkpoint: Checkpoint, wanted: Mapping[str, Any]) -> None:
    """Compare a run with the one that wrote the checkpoint.

    Raises:
        UserError: they differ in something that the position in the data or the optimizer's state depends on.
    """
    saved = checkpoint.manifest.get("run")
    position = checkpoint.manifest.get("position")
    known = ("step", "epoch", "batch", "samples", "evals_without_gain")
    whole = isinstance(saved, Mapping) and isinstance(position, Mapping) and all(isinstance(position.get(name), int) for name in known)
    if not whole or set(position) != {*known, "best_auc"}:
        raise UserError(f"{checkpoint.folder}: holds no position to go on from; --resume weights takes its weights and starts at step 0")
    for name, value in wanted.items():
        if saved.get(name) != value and name == FINGERPRINT:
            raise UserError(
                f"{checkpoint.folder}: that run trained on other rows than this dataset's, so it cannot go on exactly; use the same dataset, or "
                "--resume weights to take the weights only"
            )
        if saved.get(name) != value:
            raise UserError(
                f"{checkpoint.folder}: that run had {name} {saved.get(name)}, this one has {value}, so it cannot go on exactly; use the same, or "
                "--resume weights to take the weights only"
            )


def inherit(config: Config, manifest: Mapping[str, Any]) -> Config:
    """The configuration with the checkpoint's values in place of defaults.

    Raises:
        UserError: a flag was given that contradicts the checkpoint's model.
    """
    saved = manifest.get("config", {})
    if not isinstance(saved, Mapping):
        raise UserError("the checkpoint's manifest holds no configuration; it is damaged")
    for part, names in ARCHITECTURE.items():
        for name in names:
            value, current = _value(saved, name), getattr(getattr(config, part), name)
            if name in config.given and name in saved and current != value:
                raise UserError(
                    f"--{name} {_shown(current)}: the checkpoint's model has {_shown(value)}; drop the flag or restore another checkpoint"
                )
        config = _replaced(config, part, {name: _value(saved, name) for name in names if name in saved})
    kept = DATA_HANDLING if config.run.mode == TRAIN else {"data": DATA_HANDLING["data"] + NUMERICS["data"], "device": NUMERICS["device"]}
    for part, names in kept.items():
        taken = {name: _value(saved, name) for name in names if name in saved and name not in config.given}
        if part == "device" and "amp" in config.given:
            taken.pop("amp_dtype", None)
        if part == "device" and config.device.run_eagerly:
            taken.pop("xla", None)
        config = _replaced(config, part, taken)
    goes_on = config.run.mode == TRAIN and config.training.resume != "weights" and not config.training.allow_growth
    if goes_on and "gradient_slices" not in config.given:
        config = _replaced(config, "device", {"gradient_slices": _value(saved, "gradient_slices") or UNRECORDED_SLICES})
    return config


def _value(saved: Mapping[str, Any], name: str) -> Any:
    value = saved.get(name)
    return tuple(value) if isinstance(value, list) else value


def _replaced(config: Config, part: str, values: Mapping[str, Any]) -> Config:
    try:
        return replace(config, **{part: replace(getattr(config, part), **values)})
    except (TypeError, ValueError) as error:
        raise UserError(f"the checkpoint's manifest holds options that cannot be: {error}") from None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
