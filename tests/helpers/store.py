"""One store of trained models for a run of the tests: what a training of the same flags on the same data has saved is copied, not trained again.

All test processes of a run share it, under a lock. It is never kept over runs, where it would hide a regression.
"""

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.distributed.resident import run_folder


def stored(checkpoint: Path, data: Path, flags: dict, train: Callable[[Path], object]) -> None:
    """Copy the checkpoints of a training to a folder; train first where the run has not yet.

    Args:
        checkpoint: the folder, which does not exist yet.
        data: the dataset.
        flags: the training's other flags.
        train: trains, and saves to the folder that it is called with.
    """
    digest = hashlib.sha256(repr(sorted(flags.items())).encode())
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(data)}\n".encode() + path.read_bytes())
    base = run_folder() / "store"
    base.mkdir(exist_ok=True)
    folder = base / digest.hexdigest()[:32]
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = folder.with_suffix(".writing")
            train(partial)
            partial.rename(folder)
    shutil.copytree(folder, checkpoint, symlinks=True)
