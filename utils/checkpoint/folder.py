"""The folder of a run's checkpoints: complete steps, the newest and the best one, and the remains of killed runs.

A step gets its visible name only when it is complete. Hidden names: `.step-….writing` is being written, `.step-….old` was set aside while another
checkpoint of the same step replaces it, `.step-….removing` is being removed.
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

_LONGEST_NAME = 255  # characters; a longer file is no pointer, and may be a log of gigabytes
POINTERS = (LATEST, BEST)


def step_name(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step-{step:08d}"


def being_written(path: Path, step: int) -> Path:
    """Return the folder of a step until it is complete."""
    return path / f".{step_name(step)}.writing"


def being_tried(path: Path) -> Path:
    """Return the folder of the trial before a run (see `trial`); `tidy` removes it after a killed run."""
    return path / ".step-trial.writing"


def complete_steps(path: Path) -> list[Path]:
    """Return all complete checkpoints of a folder, newest first: the one that `latest` names, then by the time of writing."""
    written = {entry: _written(entry) for pattern in ("step-*", ".step-*.old") for entry in path.glob(pattern)}
    steps = [entry for entry, when in written.items() if when is not None and (entry.name.startswith("step-") or not _place_of(entry).exists())]
    latest = pointed(path / LATEST)
    return sorted(steps, key=lambda entry: (entry == latest, written[entry], _place_of(entry).name), reverse=True)


def _written(step: Path) -> int | None:
    """Return the time when a step's manifest was written, in nanoseconds; None where there is none, or a run has just removed the step."""
    try:
        found = (step / manifest.NAME).stat()
    except OSError:
        return None
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None


def pointed(pointer: Path) -> Path | None:
    """Return the complete step that a pointer file (`latest` or `best`) names; None where there is none, or where the file is another one."""
    try:
        with pointer.open(encoding="utf-8") as file:
            step = pointer.parent / file.read(_LONGEST_NAME).strip()
        return step if step.parent == pointer.parent and (step / manifest.NAME).is_file() else None
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def tidy(path: Path) -> None:
    """Remove half-written and half-removed steps of a killed run; restore a step that it had set aside."""
    for entry in path.glob(".step-*.old"):
        if (entry / manifest.NAME).is_file() and not _place_of(entry).exists():
            entry.rename(_place_of(entry))
    for pattern in (".step-*.writing", ".step-*.old", ".step-*.removing"):
        for entry in path.glob(pattern):
            shutil.rmtree(entry, ignore_errors=True)
    for pointer in POINTERS:
        (path / f".{pointer}.writing").unlink(missing_ok=True)


def publish(path: Path, step: int, best: bool) -> Path:
    """Make a complete step visible and the newest one, and with `best` the best one, too; return its folder."""
    name = step_name(step)
    folder, target, old = being_written(path, step), path / name, path / f".{name}.old"
    sync_tree(folder)
    write_text(path / LATEST, name + "\n")  # before the step has its name: until then readers order the other steps by time
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
    """Remove the file `best`, so that no step is the best any more."""
    (path / BEST).unlink(missing_ok=True)


def prune(path: Path, keep: int) -> None:
    """Remove all steps but the newest `keep` and the one that `best` names; a step is renamed to a hidden name before its files are removed.

    A step that is being read stays until the next call.
    """
    best = pointed(path / BEST)
    for entry in complete_steps(path)[keep:]:
        if entry != best:
            hidden = path / f".{entry.name}.removing"
            if renamed_unless_held(entry, hidden):
                shutil.rmtree(hidden, ignore_errors=True)


def _place_of(entry: Path) -> Path:
    """Return the path of a step under its visible name."""
    return entry.with_name(entry.name.removeprefix(".").removesuffix(".old"))


def older(folder: Path) -> list[Path]:
    """Return the complete checkpoints in the same folder that are older than a step, newest first."""
    steps = complete_steps(folder.parent)
    return steps[steps.index(folder) + 1 :] if folder in steps else []


class Hold:
    """A hold on a step's folder while it is read, so that the run that writes there does not remove it.

    It is a shared lock of the kernel on the folder, held until it is released, this object is deleted or the process ends. It has no effect on a
    file system without locks.

    Raises:
        OSError: the folder does not exist.
    """

    def __init__(self, step: Path):
        descriptor = os.open(step, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # the step is being removed, which the caller checks, or there are no locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self.release = weakref.finalize(self, os.close, descriptor)


def renamed_unless_held(step: Path, name: Path) -> bool:
    """Rename a step's folder unless a reader holds it; return whether it was renamed."""
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
