"""The best checkpoint of a run that goes on: whether the one that a folder names is this run's, and taking it along into another folder."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from utils.checkpoint import manifest
from utils.checkpoint.durable import sync_tree, write_text
from utils.checkpoint.folder import forget_best, pointed
from utils.checkpoint.links import link_tree
from utils.checkpoint.manifest import CheckpointError
from utils.config.options import BEST

BestValue = Callable[[Mapping[str, Any]], float | None]  # of a position as a manifest has it: the best value so far of what the best is chosen by


def best_of(folder: Path, value: float | None, best_value: BestValue) -> Path | None:
    """The step that a folder names as its best, where it is that of a run whose best value is `value`; None where it is not, or cannot be read.

    It is another one's where a run went on from an older step, in another way, or by another metric.
    """
    step = pointed(folder / BEST)
    if step is None or value is None:
        return None
    try:
        position = manifest.read(step).get("position")
    except CheckpointError:
        return None
    return step if isinstance(position, Mapping) and best_value(position) == value else None


def adopt_best(folder: Path, step: Path | None) -> None:
    """Make a step, perhaps of another folder, the best of this one, before a run writes there; with None there is none any more.

    Raises:
        OSError: it lies on another disk and cannot be copied.
    """
    if step is None or not (step / manifest.NAME).is_file():
        forget_best(folder)
        return
    if step.parent.resolve() == folder.resolve():
        return
    target, hidden = folder / step.name, folder / f".{step.name}.writing"
    if not target.exists():
        shutil.rmtree(hidden, ignore_errors=True)
        link_tree(step, hidden)
        sync_tree(hidden)
        hidden.rename(target)
    write_text(folder / BEST, step.name + "\n")
