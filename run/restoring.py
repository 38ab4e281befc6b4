"""Messages about the checkpoint to restore: the one chosen, and the alternatives where it is damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from utils.checkpoint.folder import older
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.reading import Checkpoint, passed_over
from utils.config.options import LATEST
from utils.errors import UserError

T = TypeVar("T")


def choice_note(path: str | Path, checkpoint: Checkpoint, other: str = f"--checkpoint_choice {LATEST}") -> str:
    """Return a line where a folder's best checkpoint is used instead of its latest, which `other` selects; else an empty text."""
    newer = passed_over(Path(path), checkpoint.folder)
    return f"{path}: using its best checkpoint, {checkpoint.folder.name}; {other} uses {newer.name}" if newer else ""


def restoring(action: Callable[[], T]) -> T:
    """Run an action that reads a checkpoint; where it is damaged, add the alternative to the error message."""
    try:
        return action()
    except DamagedError as error:
        before = older(error.folder)
        hint = f"; --restore_fallback takes the newest undamaged one before it (there is {before[0].name})" if before else ""
        raise UserError(f"{error}{hint}") from None
