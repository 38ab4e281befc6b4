"""The folder that holds a run's checkpoints: which steps are complete, which is newest and best, what is left of a killed run.

A step is visible, under its own name, only when it is whole. Hidden names: `.step-….writing` is being written,
`.step-….old` was set aside while another of the same step takes its place, `.step-….removing` is on its way out.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import weakref
from pathlib import Path

from utils.checkpoint import manifest
from utils.checkpoint.durable import sync_folder, sync_tree, write_text
from utils.config.options import BEST, LATEST

POINTERS = (LATEST, BEST)


def step_name(step: int) -> str:
    """Name of the folder of a step."""
    return f"step-{step:08d}"


def being_written(path: Path, step: int) -> Path:
    """Where a step lies until it is whole."""
    return path / f".{step_name(step)}.writing"


def being_tried(path: Path) -> Path:
    """Where the trial before a run writes; `tidy` removes what a killed one left."""
    return path / ".step-trial.writing"


def complete_steps(path: Path) -> list[Path]:
    """All complete checkpoints of a folder, newest first: what `latest` names, then as they were written."""
    written = {entry: _written(entry) for pattern in ("step-*", ".step-*.old") for entry in path.glob(pattern)}
    steps = [entry for entry, when in written.items() if when is not None and (entry.name.startswith("step-") or not _place_of(entry).exists())]
    latest = pointed(path / LATEST)
    return sorted(steps, key=lambda entry: (entry == latest, written[entry], _place_of(entry).name), reverse=True)


def _written(step: Path) -> int | None:
    """When a step's manifest was written, in nanoseconds; None where there is none, or a run that keeps only its newest has just removed it."""
    try:
        found = (step / manifest.NAME).stat()
    except OSError:
        return None
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None


def pointed(pointer: Path) -> Path | None:
    """The complete step that a pointer file (`latest` or `best`) names."""
    try:
        step = pointer.parent / pointer.read_text().strip()
    except (OSError, UnicodeDecodeError, ValueError):
        return None
    return step if step.parent == pointer.parent and (step / manifest.NAME).is_file() else None


def tidy(path: Path) -> None:
    """Remove what a killed run left half-written or half-removed; a step that it had set aside takes its place again."""
    for entry in path.glob(".step-*.old"):
        if (entry / manifest.NAME).is_file() and not _place_of(entry).exists():
            entry.rename(_place_of(entry))
    for pattern in (".step-*.writing", ".step-*.old", ".step-*.removing"):
        for entry in path.glob(pattern):
            shutil.rmtree(entry, ignore_errors=True)
    for pointer in POINTERS:
        (path / f".{pointer}.writing").unlink(missing_ok=True)


def publish(path: Path, step: int, best: bool) -> Path:
    """Make a step that is whole visible, and the newest (and, if said so, the best); returns its folder."""
    name = step_name(step)
    folder, target, old = being_written(path, step), path / name, path / f".{name}.old"
    sync_tree(folder)
    write_text(path / LATEST, name + "\n")  # before the step has its name: until then readers go by the times of the others
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if best:
        write_text(path / BEST, name + "\n")
    sync_folder(path)
    return target


def forget_best(path: Path) -> None:
    """No step is the best any more."""
    (path / BEST).unlink(missing_ok=True)


def prune(path: Path, keep: int) -> None:
    """Remove all steps but the newest `keep` and the one that `best` names; a step is hidden before its files go.

    One that somebody reads stays until the next time.
    """
    best = pointed(path / BEST)
    for entry in complete_steps(path)[keep:]:
        if entry != best:
            hidden = path / f".{entry.name}.removing"
            if renamed_unless_held(entry, hidden):
                shutil.rmtree(hidden, ignore_errors=True)


def _place_of(entry: Path) -> Path:
    """Where a step stands when it is visible."""
    return entry.with_name(entry.name.removeprefix(".").removesuffix(".old"))


def older(folder: Path) -> list[Path]:
    """The complete checkpoints beside a step's folder that come after it, newest first."""
    steps = complete_steps(folder.parent)
    return steps[steps.index(folder) + 1 :] if folder in steps else []


class Hold:
    """A step's folder that is being read: the run that writes beside the reader does not remove it meanwhile.

    The kernel's lock on the folder says so, and ends with its reader, however that ends. It is held until it is released or forgotten; it has no
    effect on a file system without locks.

    Raises:
        OSError: it is not there.
    """

    def __init__(self, step: Path):
        descriptor = os.open(step, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # it is being removed, which the caller will see, or there are no locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self.release = weakref.finalize(self, os.close, descriptor)


def renamed_unless_held(step: Path, name: Path) -> bool:
    """Give a step's folder another name; not while somebody holds it. Returns whether it has it."""
    descriptor = os.open(step, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        step.rename(name)
        return True
    finally:
        os.close(descriptor)
