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
    """Return the architecture that these options choose."""
    return _TABLE[config.interaction]


def architecture_named(interaction: object) -> Architecture:
    """Return the architecture for a manifest's value of `--interaction`; DLRM's for an unknown value, which other code reports."""
    return _TABLE.get(interaction if isinstance(interaction, str) else DOT, _TABLE[DOT])


def register(interaction: str, architecture: Architecture) -> None:
    """Add a model to the table. Call this before flags are parsed: `--interaction` accepts the name from then on, in this process.

    Args:
        interaction: the new value of the flag.
        architecture: the model's architecture.

    Raises:
        ValueError: the value exists already.
    """
    if interaction in _TABLE:
        raise ValueError(f"--interaction {interaction}: already exists; choose another name")
    _TABLE[interaction] = architecture
    INTERACTIONS.append(interaction)
