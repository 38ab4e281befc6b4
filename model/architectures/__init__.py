"""The table of models: one for each value of `--interaction`."""

from model.architectures.architecture import Architecture
from model.architectures.dlrm import DlrmArchitecture
from model.architectures.wide_and_deep import WideAndDeepArchitecture
from utils.config.options import CAT, CROSS, DOT, INTERACTIONS, WIDE_AND_DEEP, ModelConfig

_TABLE: dict[str, Architecture] = {
    **{interaction: DlrmArchitecture(interaction) for interaction in (DOT, CROSS, CAT)},
    WIDE_AND_DEEP: WideAndDeepArchitecture(),
}


def architecture_of(config: ModelConfig) -> Architecture:
    """The model of these options."""
    return _TABLE[config.interaction]


def architecture_named(interaction: object) -> Architecture:
    """The model of a value of `--interaction` as a manifest has it; DLRM's where it is none, which is said elsewhere."""
    return _TABLE.get(interaction if isinstance(interaction, str) else DOT, _TABLE[DOT])


def register(interaction: str, architecture: Architecture) -> None:
    """Add a model to the table, before flags are parsed: `--interaction` takes its name from then on, in this process.

    Args:
        interaction: the value of the flag; not one that there is.
        architecture: of the model.

    Raises:
        ValueError: there is such a value.
    """
    if interaction in _TABLE:
        raise ValueError(f"--interaction {interaction} is there already")
    _TABLE[interaction] = architecture
    INTERACTIONS.append(interaction)
