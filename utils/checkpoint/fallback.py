"""The search of `--restore_fallback`: the newest checkpoint whose data are all intact."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from utils.checkpoint.folder import complete_steps, pointed
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint, chosen_step
from utils.config.options import LATEST
from utils.distributed import World
from utils.errors import UserError


def sound_checkpoint(path: str | Path, world: World, warn: Callable[[str], None], choice: str = LATEST) -> Checkpoint:
    """Open the first intact checkpoint: the chosen or named step of a folder, or else one of its other steps, newest first.

    Every candidate is read in full. After a named step, only older ones are tried.

    Args:
        path: as for `Checkpoint`.
        world: the workers, which share the reading; each calls this at the same point.
        warn: called for every checkpoint that is skipped, with the reason.
        choice: as for `Checkpoint`; after the best step, the newest ones are tried.

    Raises:
        UserError: no checkpoint is intact; on every worker.
    """
    path = Path(path)
    steps = world.from_first([str(step) for step in _candidates(path, choice)], "fallback")
    for step, instead in pairwise([*steps, None]):
        problem = None
        try:
            checkpoint = Checkpoint(step)
        except UserError as error:
            problem = str(error)
        try:
            world.agree(problem, "fallback_opened")
            checkpoint.verify(world)
            return checkpoint
        except UserError as error:
            if instead is None:
                raise
            warn(f"{error}; --restore_fallback tries {instead} instead")
    raise CheckpointError(f"{path}: holds no checkpoint (no step-… folder with a manifest.json); --save_checkpoint_path writes one")


def _candidates(path: Path, choice: str) -> list[Path]:
    path = pointed(path) or path
    steps = complete_steps(path.parent)
    if path in steps:
        return steps[steps.index(path) :]
    steps = complete_steps(path)
    first = [chosen_step(path, steps, choice)] if steps else []
    return first + [step for step in steps if step not in first]
