"""Options that a run inherits from the checkpoint it restores, so that evaluation needs no model flags."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model.architectures import architecture_named
from utils.config.config import OPTIONS, PARTS, Config
from utils.config.option import INHERIT, MODEL, MUST_EQUAL, WITH_WEIGHTS, options_of
from utils.config.options import TRAIN
from utils.errors import UserError

_PART_OF = {name: part for part, group in PARTS.items() for name in options_of([group])}  # the part of the configuration that holds each option
WIDTHS = "embedding_dim"
UNRECORDED_SLICES = OPTIONS["gradient_slices"].metadata["unrecorded"]  # assumed where the checkpoint does not record the number


def inherit(config: Config, manifest: Mapping[str, Any], goes_on: bool = False) -> Config:
    """Return the configuration with the checkpoint's values in place of defaults.

    Args:
        config: configuration from the flags.
        manifest: manifest of the checkpoint.
        goes_on: whether the run resumes the checkpoint's run, and does not only take its weights.

    Raises:
        UserError: a flag contradicts the checkpoint's model.
    """
    saved = manifest.get("config", {})
    if not isinstance(saved, Mapping):
        raise UserError("the checkpoint's manifest holds no configuration; it is damaged")
    saved = _recorded(saved)
    if config.training.allow_growth and isinstance(saved.get(WIDTHS), list):
        saved.pop(WIDTHS)  # they cover the old features only, see `tables.grown_widths`
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
    """Return the names of the options whose `resume` metadata is one of `how`, see `utils.config.flags`."""
    return [name for name, option in OPTIONS.items() if option.metadata["resume"] in how]


def changes(config: Config, before: Config, manifest: Mapping[str, Any]) -> list[str]:
    """Return one line for each option in which a resumed run differs from the run that wrote the checkpoint, and one for the inherited options.

    Args:
        config: configuration that `inherit` returned.
        before: configuration that `inherit` received.
        manifest: manifest of the checkpoint.
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
    """Return the flags that the checkpoint recorded; flags that are newer than the checkpoint get the values that reproduce its behaviour."""
    before = {name: option.metadata["unrecorded"] for name, option in OPTIONS.items() if "unrecorded" in option.metadata}
    return {**before, **architecture_named(saved.get("interaction")).unrecorded, **saved}


def _value(saved: Mapping[str, Any], name: str) -> Any:
    value = saved.get(name)
    return tuple(value) if isinstance(value, list) else value


def _replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the configuration with these options replaced, all at once: constraints between options then see only the final values."""
    by_part: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        by_part.setdefault(_PART_OF[name], {})[name] = value
    try:
        return replace(config, **{part: replace(getattr(config, part), **some) for part, some in by_part.items()})
    except (TypeError, ValueError) as error:
        raise UserError(f"the flags and the options in the checkpoint's manifest are not valid together: {error}") from None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
