"""Training as a function of Python: `dlrm.train`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from run.command import do
from utils.config.options import TRAIN
from utils.errors import UserError

if TYPE_CHECKING:
    from run.train import Trained


def train(flags: Mapping[str, Any]) -> "Trained":
    """Train with these flags, see `dlrm.train`."""
    if flags.get("mode", TRAIN) != TRAIN:
        raise UserError(f"dlrm.train: mode is {flags['mode']!r}, expected {TRAIN!r}; dlrm.load gives a model that scores")
    words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", _word(value))]
    result = do(["--mode", TRAIN, *words], "dlrm.train", "")
    if result is None:  # a message has said that the run to resume is finished
        raise UserError("dlrm.train: the run is finished, nothing was trained; pass more epochs, or another save_checkpoint_path")
    return result


def _word(value: Any) -> str:
    """Format a flag's value for the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(_word, value)) if isinstance(value, list | tuple) else str(value)
