"""Errors of checkpoint files, raised on all workers."""

from collections.abc import Callable
from pathlib import Path

from utils.checkpoint.zarr_store import brief
from utils.distributed import World
from utils.errors import UserError


def together(action: Callable[[], None] | None, world: World, name: str, path: Path, done: str = "written") -> None:
    """Call an action on a checkpoint, where this worker has one, and wait for all workers; raise UserError on all where any failed.

    Args:
        action: the action.
        world: the workers.
        name: the name of the exchange.
        path: the folder of the checkpoint or of all of them, for messages.
        done: what the action does to it: it is "written" or "read".
    """
    error = None
    try:
        if action:
            action()
    except UserError as problem:
        error = str(problem)
    except (OSError, ValueError) as problem:
        error = failed(problem, path, done)
    world.agree(error, name)


def failed(problem: OSError | ValueError, path: Path, done: str = "written") -> str:
    """Return the message of an error; TensorStore raises ValueError for a full disk, too."""
    if isinstance(problem, OSError) and problem.filename:
        return f"{problem.filename}: {problem.strerror or problem}"
    return f"{path}: the checkpoint could not be {done}: {brief(problem) if isinstance(problem, ValueError) else problem.strerror or problem}"
