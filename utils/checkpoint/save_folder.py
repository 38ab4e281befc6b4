"""Checks and locking of the folder for a training run's checkpoints, before the run does expensive work."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from utils.checkpoint.folder import complete_steps, tidy
from utils.checkpoint.lock import Lock
from utils.errors import UserError
from utils.memory import check_fits, shown


def claim(path: Path, restored: Path | None, overwrite: bool, least: int, most: int, warn: Callable[[str], None]) -> Lock:
    """Prepare and lock the folder for a run; called on the first worker.

    Args:
        path: the folder; made where it is missing.
        restored: the folder of the step that the run resumes from, None for a new run.
        overwrite: replace another run's checkpoints.
        least: the approximate size of a checkpoint, the rows left out that it holds only once they are touched.
        most: its size with these rows.
        warn: called with a warning where the disk may become too small.

    Returns:
        a lock, held until it is released or the process ends.

    Raises:
        UserError: the folder is not writable, another run writes there or has left its checkpoints, or the disk has too little free space.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--save_checkpoint_path {path}: the folder cannot be created: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UserError(f"--save_checkpoint_path {path}: no permission to write there")
    lock = Lock(path)
    try:
        _check(path, restored, overwrite, least)
        if most > max(least, free := shutil.disk_usage(path).free):
            warn(
                f"--save_checkpoint_path {path}: a checkpoint takes up to {shown(most)} once all rows are touched, and {shown(free)} are free; where "
                "the disk is full, training ends, and its newest checkpoint remains"
            )
    except BaseException:
        lock.release()
        raise
    return lock


def _check(path: Path, restored: Path | None, overwrite: bool, least: int) -> None:
    tidy(path)
    goes_on_here = restored is not None and restored.resolve().parent == path.resolve()
    if (steps := complete_steps(path)) and not goes_on_here and not overwrite:
        raise UserError(
            f"--save_checkpoint_path {path}: holds checkpoints of another run (the newest is {steps[0].name}); --resume auto continues from them, "
            "--overwrite_checkpoints replaces them, another folder keeps them"
        )
    check_fits(least, f"--save_checkpoint_path {path}: the tables and their optimizer slots", shutil.disk_usage(path).free)
