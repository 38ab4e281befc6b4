"""What a run takes over from the checkpoint it restores, so that evaluating one needs no model flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model.architectures import architecture_named
from utils.config.config import OPTIONS, PARTS, Config
from utils.config.option import INHERIT, MODEL, MUST_EQUAL, WITH_WEIGHTS, options_of
from utils.config.options import TRAIN
from utils.errors import UserError

_PART_OF = {name: part for part, group in PARTS.items() for name in options_of([group])}  # an option's
WIDTHS = "embedding_dim"
UNRECORDED_SLICES = OPTIONS["gradient_slices"].metadata["unrecorded"]  # where training did not say in the checkpoint how many it used


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
    before = {name: option.metadata["unrecorded"] for name, option in OPTIONS.items() if "unrecorded" in option.metadata}
    return {**before, **architecture_named(saved.get("interaction")).unrecorded, **saved}


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
