"""Errors of checkpoint files, raised on all workers."""

from collections.abc import Callable

from utils.checkpoint.zarr_store import brief
from utils.distributed import World
from utils.errors import UserError


def together(action: Callable[[], None] | None, world: World, name: str) -> None:
    """Call an action, where this worker has one, and wait for all workers; raise UserError on all where any failed."""
    error = None
    try:
        if action:
            action()
    except UserError as problem:
        error = str(problem)
    except OSError as problem:
        error = of_system(problem)
    except ValueError as problem:
        error = f"the checkpoint could not be written: {brief(problem)}"
    world.agree(error, name)


def of_system(problem: OSError) -> str:
    return f"{problem.filename or 'checkpoint'}: {problem.strerror or problem}"
