"""The best checkpoint of a resumed run: finding it, and copying it to another folder."""

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

BestValue = Callable[[Mapping[str, Any]], float | None]  # returns the best value so far of --best_metric from a manifest's position


def best_of(folder: Path, value: float | None, best_value: BestValue) -> Path | None:
    """Return the step that a folder names as its best, where its best value is the run's, `value`; None where it is not, or cannot be read.

    The value differs where a run resumed from an older step, trained differently, or uses another metric.
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
    """Make a step, perhaps from another folder, the best of this folder before a run writes there; None leaves the folder without a best step.

    Raises:
        OSError: the step is on another disk and cannot be copied.
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
