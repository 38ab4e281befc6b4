"""What a run takes over from the checkpoint it restores, so that evaluating one needs no model flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dataloading.feature_spec import FeatureSpec
from training.optimizers.table import dense_rule, table_rule
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.options import CROSS, OF_FEATURE, TRAIN, WIDE_AND_DEEP
from utils.encoding import transforms
from utils.errors import UserError

# The weights fit no other values of these.
ARCHITECTURE = {
    "model": ("embedding_dim", "bottom_mlp_dims", "top_mlp_dims", "interaction", "num_cross_layers", "cross_layer_projection_dim", "wide_pooling"),
    "data": ("max_table_size",),
}
# What was done with ids out of range in training is done ever after, unless said otherwise.
DATA_HANDLING = {"data": ("out_of_range",)}
# These change the last digits of a score: evaluation repeats what training used unless told otherwise.
NUMERICS = {"device": ("amp", "amp_dtype", "xla"), "data": ("valid_batch_size",)}
# A run that goes on is the same run: what it was told about how to train holds until something else is given. Not --max_steps, which is
# where a part of it ends, nor what belongs to the machine or to a start (paths, placement, threads, logs).
TRAINING = {
    "run": ("seed",),
    "data": (
        "batch_size",
        "valid_batch_size",
        "shuffle_batch_order",
        "shuffle_window",
        "valid_fraction",
        "dataset_subset",
        "synthetic_dataset_train_batches",
        "synthetic_dataset_valid_batches",
        "synthetic_dataset_cardinalities",
        "synthetic_dataset_hotness",
        "synthetic_dataset_num_numerical_features",
        "synthetic_dataset_use_feature_spec",
    ),
    "model": ("embedding_trainable",),
    "optimizer": (
        "optimizer",
        "embedding_optimizer",
        "learning_rate",
        "embedding_learning_rate",
        "momentum",
        "beta1",
        "beta2",
        "rho",
        "epsilon_outside_root",
        "ftrl_l1",
        "ftrl_l2",
        "ftrl_power",
        "linear_learning_rate",
        "deep_warmup_epochs",
        "warmup_steps",
        "warmup_factor",
        "decay_start_step",
        "decay_steps",
        "decay_end_lr",
        "decay_power",
    ),
    "regularisation": ("embedding_l2", "mlp_l2", "dropout"),
    "training": (
        "epochs",
        "steps_per_epoch",
        "evals_per_epoch",
        "test_freq",
        "test_after",
        "auc_threshold",
        "auc_thresholds",
        "early_stop_patience",
        "checkpoint_every_steps",
        "checkpoint_every_epoch",
        "checkpoint_every_minutes",
        "keep_checkpoints",
        "keep_best_checkpoint",
    ),
    "ranking": ("ranking_metrics", "best_metric"),
    "device": ("amp", "amp_dtype", "loss_scale", "gradient_slices", "xla", "tf32"),
}
# Flags beside which the checkpoint's value of another one does not hold: they say it in another way.
INSTEAD = {
    "evals_per_epoch": {"test_freq"},
    "test_freq": {"evals_per_epoch"},
    "checkpoint_every_steps": {"checkpoint_every_minutes"},
    "checkpoint_every_minutes": {"checkpoint_every_steps"},
    "amp_dtype": {"amp"},
}
# Of checkpoints from before there was the option; the second of a Wide & Deep.
UNRECORDED, UNRECORDED_WIDE = {"epsilon_outside_root": False}, {"wide_pooling": OF_FEATURE}
WIDTHS = "embedding_dim"
UNRECORDED_SLICES = 8  # of the gradients, where training did not say in the checkpoint how many it used


FINGERPRINT = "dataset fingerprint"


def metadata(config: Config, spec: FeatureSpec) -> dict[str, Any]:
    """What a checkpoint's manifest keeps of the model, the configuration, and how raw values became the dataset's."""
    of_values = transforms.transforms_of(spec.metadata, spec.numerical, [feature.name for feature in spec.categorical])
    name = {CROSS: "dcnv2", WIDE_AND_DEEP: WIDE_AND_DEEP}.get(config.model.interaction, "dlrm")
    model = {"name": name} | {name: getattr(config.model, name) for name in ARCHITECTURE["model"]}
    return {"model": model, "config": config.flat(), transforms.NAME: of_values}


def training_invariants(config: Config, num_samples: int, fingerprint: str) -> dict[str, Any]:
    """What a run must have in common with the one it goes on from, for its position in the data and its moments to mean the same."""
    rules = [rule(config.optimizer, 1).name for rule in (dense_rule, table_rule)]
    return {
        "batch_size": config.data.batch_size,
        "train_samples": num_samples,
        FINGERPRINT: fingerprint,
        "steps_per_epoch": config.training.steps_per_epoch,
        "shuffle_batch_order": config.data.shuffle_batch_order,
        "shuffle_window": config.data.shuffle_window,
        "seed": config.run.seed,
        "optimizer": rules[0],
        "embedding_optimizer": rules[1],
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
    newer = {"last_auc", "evaluation_due", "best_epoch", "best_ranking"}  # of checkpoints written since there is such a thing
    whole = isinstance(saved, Mapping) and isinstance(position, Mapping) and all(isinstance(position.get(name), int) for name in known)
    if not whole or set(position) - newer != {*known, "best_auc"}:
        raise UserError(f"{checkpoint.folder}: holds no position to go on from; --resume weights takes its weights and starts at step 0")
    saved = {"embedding_optimizer": saved.get("optimizer"), **saved}  # it was one flag
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


def inherit(config: Config, manifest: Mapping[str, Any], goes_on: bool = False) -> Config:
    """The configuration with the checkpoint's values in place of defaults.

    Args:
        config: as it was given.
        manifest: of the checkpoint.
        goes_on: the run goes on where the checkpoint's was, and not only with its weights.

    Raises:
        UserError: a flag was given that contradicts the checkpoint's model.
    """
    saved = manifest.get("config", {})
    if not isinstance(saved, Mapping):
        raise UserError("the checkpoint's manifest holds no configuration; it is damaged")
    saved = _recorded(saved)
    if config.training.allow_growth and isinstance(saved.get(WIDTHS), list):
        saved.pop(WIDTHS)  # of the features that there were, see `tables.grown_widths`
    for part, names in ARCHITECTURE.items():
        for name in names:
            value, current = _value(saved, name), getattr(getattr(config, part), name)
            if name in config.given and name in saved and current != value:
                raise UserError(
                    f"--{name} {_shown(current)}: the checkpoint's model has {_shown(value)}; drop the flag or restore another checkpoint"
                )
        config = _replaced(config, part, {name: _value(saved, name) for name in names if name in saved})
    if config.run.mode != TRAIN:
        kept = {"data": DATA_HANDLING["data"] + NUMERICS["data"], "device": NUMERICS["device"]}
    else:
        kept = TRAINING | {"data": DATA_HANDLING["data"] + TRAINING["data"]} if goes_on else DATA_HANDLING
    for part, names in kept.items():
        taken = {name: _value(saved, name) for name in names if name in saved and not config.given & {name, *INSTEAD.get(name, ())}}
        if part == "device" and config.device.run_eagerly:
            taken.pop("xla", None)
        config = _replaced(config, part, taken)
    if goes_on and config.device.gradient_slices is None:
        config = _replaced(config, "device", {"gradient_slices": UNRECORDED_SLICES})
    return config


def changes(config: Config, before: Config, manifest: Mapping[str, Any]) -> list[str]:
    """What a run that goes on does in another way than the run that wrote the checkpoint, and what it has taken over: a line each.

    Args:
        config: what `inherit` gave.
        before: what it was given.
        manifest: of the checkpoint.
    """
    saved, now, given = _recorded(manifest.get("config", {})), config.flat(), before.flat()
    names = [name for names in (*DATA_HANDLING.values(), *TRAINING.values()) for name in names if name in saved]
    lines = [
        f"--{name} {_shown(now[name])} from here on; the checkpoint's run had {_shown(_value(saved, name))}"
        for name in names
        if name in config.given and now[name] != _value(saved, name)
    ]
    taken = [f"{name} {_shown(now[name])}" for name in names if now[name] != given[name]]
    return lines + ([f"taken over from the checkpoint: {', '.join(taken)}"] if taken else [])


def _recorded(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a checkpoint's run, with those that there were not yet as they would have been."""
    return {**UNRECORDED, **(UNRECORDED_WIDE if saved.get("interaction") == WIDE_AND_DEEP else {}), **saved}


def _value(saved: Mapping[str, Any], name: str) -> Any:
    value = saved.get(name)
    return tuple(value) if isinstance(value, list) else value


def _replaced(config: Config, part: str, values: Mapping[str, Any]) -> Config:
    try:
        return replace(config, **{part: replace(getattr(config, part), **values)})
    except (TypeError, ValueError) as error:
        raise UserError(f"together with the flags, the checkpoint's manifest holds options that cannot be: {error}") from None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
