"""What a run takes over from the checkpoint it restores, so that evaluating one needs no model flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dataloading.feature_spec import FeatureSpec
from training.optimizers.table import dense_rule, table_rule
from utils.checkpoint.reading import Checkpoint
from utils.config.config import OPTIONS, PARTS, Config
from utils.config.flags import INHERIT, MODEL, MUST_EQUAL, WITH_WEIGHTS, options_of
from utils.config.options import CROSS, OF_FEATURE, TRAIN, WIDE_AND_DEEP, ModelConfig
from utils.encoding import transforms
from utils.errors import UserError

_PART_OF = {name: part for part, group in PARTS.items() for name in options_of([group])}  # an option's
_ARCHITECTURE = [name for name, option in options_of([ModelConfig]).items() if option.metadata["resume"] == MODEL]
WIDTHS = "embedding_dim"
UNRECORDED_SLICES = OPTIONS["gradient_slices"].metadata["unrecorded"]  # where training did not say in the checkpoint how many it used
FINGERPRINT = "dataset fingerprint"


def metadata(config: Config, spec: FeatureSpec) -> dict[str, Any]:
    """What a checkpoint's manifest keeps of the model, the configuration, and how raw values became the dataset's."""
    of_values = transforms.transforms_of(spec.metadata, spec.numerical, [feature.name for feature in spec.categorical])
    name = {CROSS: "dcnv2", WIDE_AND_DEEP: WIDE_AND_DEEP}.get(config.model.interaction, "dlrm")
    model = {"name": name} | {name: getattr(config.model, name) for name in _ARCHITECTURE}
    return {"model": model, "config": config.flat(), transforms.NAME: of_values}


def training_invariants(config: Config, num_samples: int, fingerprint: str) -> dict[str, Any]:
    """What a run must have in common with the one it goes on from, for its position in the data and its moments to mean the same."""
    rules = [rule(config.optimizer, 1).name for rule in (dense_rule, table_rule)]
    given = config.flat()
    equal = {name: given[name] for name, option in OPTIONS.items() if option.metadata["resume"] == MUST_EQUAL}
    of_rules = {"optimizer": rules[0], "embedding_optimizer": rules[1]}  # by what they are: a name may stand for another one
    return {"train_samples": num_samples, FINGERPRINT: fingerprint} | equal | of_rules


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
    for name in _resumed(MODEL):
        value, current = _value(saved, name), getattr(getattr(config, _PART_OF[name]), name)
        if name in config.given and name in saved and current != value:
            raise UserError(f"--{name} {_shown(current)}: the checkpoint's model has {_shown(value)}; drop the flag or restore another checkpoint")
    config = _replaced(config, {name: _value(saved, name) for name in _resumed(MODEL) if name in saved})
    kept = _resumed(WITH_WEIGHTS)
    if config.run.mode != TRAIN:
        kept += [name for name, option in OPTIONS.items() if option.metadata["in_scores"]]
    elif goes_on:
        kept += _resumed(INHERIT, MUST_EQUAL)
    kept = [name for name in kept if name in saved and not config.given & {name, *OPTIONS[name].metadata["replaced_by"]}]
    if config.device.run_eagerly and "xla" in kept:
        kept.remove("xla")
    config = _replaced(config, {name: _value(saved, name) for name in kept})
    if goes_on and config.device.gradient_slices is None:
        config = _replaced(config, {"gradient_slices": UNRECORDED_SLICES})
    return config


def _resumed(*how: str) -> list[str]:
    """The options that a run which restores a checkpoint has in one of these ways, see `utils.config.flags`."""
    return [name for name, option in OPTIONS.items() if option.metadata["resume"] in how]


def changes(config: Config, before: Config, manifest: Mapping[str, Any]) -> list[str]:
    """What a run that goes on does in another way than the run that wrote the checkpoint, and what it has taken over: a line each.

    Args:
        config: what `inherit` gave.
        before: what it was given.
        manifest: of the checkpoint.
    """
    saved, now, given = _recorded(manifest.get("config", {})), config.flat(), before.flat()
    names = [name for name in _resumed(WITH_WEIGHTS, INHERIT, MUST_EQUAL) if name in saved]
    lines = [
        f"--{name} {_shown(now[name])} from here on; the checkpoint's run had {_shown(_value(saved, name))}"
        for name in names
        if name in config.given and now[name] != _value(saved, name)
    ]
    taken = [f"{name} {_shown(now[name])}" for name in names if now[name] != given[name]]
    return lines + ([f"taken over from the checkpoint: {', '.join(taken)}"] if taken else [])


def _recorded(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a checkpoint's run, with those that there were not yet as they would have been."""
    wide = saved.get("interaction") == WIDE_AND_DEEP  # whose linear part averaged, where the deep part does
    return {"epsilon_outside_root": OPTIONS["epsilon_outside_root"].metadata["unrecorded"], **({"wide_pooling": OF_FEATURE} if wide else {}), **saved}


def _value(saved: Mapping[str, Any], name: str) -> Any:
    value = saved.get(name)
    return tuple(value) if isinstance(value, list) else value


def _replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with other values of options, all at once."""
    by_part: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        by_part.setdefault(_PART_OF[name], {})[name] = value
    try:
        return replace(config, **{part: replace(getattr(config, part), **some) for part, some in by_part.items()})
    except (TypeError, ValueError) as error:
        raise UserError(f"together with the flags, the checkpoint's manifest holds options that cannot be: {error}") from None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
