"""The table of models: one for each value of `--interaction`."""

from model.architectures.architecture import Architecture
from model.architectures.dlrm import DlrmArchitecture
from model.architectures.finalmlp import FinalMlpArchitecture
from model.architectures.fm import FmArchitecture
from model.architectures.logistic_regression import LogisticRegressionArchitecture
from model.architectures.wide_and_deep import WideAndDeepArchitecture
from utils.config.options import CAT, CROSS, DOT, FINALMLP, FM, INTERACTIONS, NONE, WIDE_AND_DEEP, ModelConfig
from utils.errors import UserError

_TABLE: dict[str, Architecture] = {
    **{interaction: DlrmArchitecture(interaction) for interaction in (DOT, CROSS, CAT)},
    FM: FmArchitecture(),
    FINALMLP: FinalMlpArchitecture(),
    NONE: LogisticRegressionArchitecture(),
    WIDE_AND_DEEP: WideAndDeepArchitecture(),
}
_WITH_LINEAR: dict[str, Architecture] = {interaction: DlrmArchitecture(interaction, linear=True) for interaction in (DOT, CROSS, CAT)}


def architecture_of(config: ModelConfig) -> Architecture:
    """Return the architecture that these options choose. Raises UserError where the model takes no `--linear`."""
    if not config.linear or _TABLE[config.interaction].linear:
        return _TABLE[config.interaction]
    if config.interaction not in _WITH_LINEAR:
        raise UserError(f"--linear: --interaction {config.interaction} takes no linear part; expected one of {', '.join(_WITH_LINEAR)}")
    return _WITH_LINEAR[config.interaction]


def architecture_named(interaction: object, linear: object = False) -> Architecture:
    """Return the architecture for a manifest's values of `--interaction` and `--linear`; DLRM's for unknown ones, which other code reports."""
    table = _TABLE | _WITH_LINEAR if linear is True else _TABLE
    return table.get(interaction if isinstance(interaction, str) else DOT, table[DOT])


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
