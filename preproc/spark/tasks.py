"""What runs on an executor of Spark: one task, whose files are there whole or not at all, however often it is tried.

Each attempt fills a folder of its own, which is renamed when it is done. Whoever is first wins: a speculative task, or one that is tried again
because its executor was lost, finds the folder there and gives the first one's result.
"""

import errno
import os
import pickle
import shutil
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.errors import UserError

TOKEN, RESULT, FAILED = "token", ".result", "failed"
# Not the executor's fault, and the same on another one: no reason to try again.
_FINAL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


@dataclass(frozen=True)
class Job:
    """What all tasks of a job share.

    Attributes:
        name: of the job; no two of a run have the same.
        folder: that the driver and all executors see; tasks write in it.
        token: what its file `token` holds.
        work: called with an item and the folder of its files; gives a result.
    """

    name: str
    folder: Path
    token: str
    work: Callable[[Any, Path], Any]


@dataclass(frozen=True)
class Done:
    """A task's result."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """A task's error that the user can mend: trying again would not help."""

    error: Exception


@dataclass(frozen=True)
class LeftOut:
    """A task that was not begun, since one before it had failed."""


def task_folder(folder: Path, job: str, number: int) -> Path:
    """Where the files of a task are when it is done."""
    return folder / f"{job}-{number:06d}"


def run_task(job: Job, number: int, item: Any) -> Done | Failed | LeftOut:
    """Do the work of one task, or find that it is done. Errors that another attempt may not meet are raised."""
    if (fault := _not_shared(job)) is not None:
        return Failed(fault)
    failed = {int(mark.name.rpartition("-")[2]): mark for mark in (job.folder / FAILED).glob(f"{job.name}-*")}
    if number in failed:
        return Failed(pickle.loads(failed[number].read_bytes()))
    if failed and min(failed) < number:
        return LeftOut()
    done = task_folder(job.folder, job.name, number)
    if done.exists():
        return Done(pickle.loads((done / RESULT).read_bytes()))
    attempt = job.folder / f"attempt-{uuid.uuid4().hex}"
    try:
        attempt.mkdir()
        result = job.work(item, attempt)
        (attempt / RESULT).write_bytes(pickle.dumps(result))
        _rename(attempt, done)
        return Done(result)
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _FINAL_ERRORS:
            raise
        said = _not_here(error) if isinstance(error, FileNotFoundError) else error
        shutil.rmtree(attempt, ignore_errors=True)  # and first, where the disk is full
        attempt.with_suffix(".failed").write_bytes(pickle.dumps(said))
        (job.folder / FAILED).mkdir(exist_ok=True)  # of its own: every task looks into it, and there may be thousands of folders beside it
        _rename(attempt.with_suffix(".failed"), job.folder / FAILED / f"{job.name}-{number:06d}")
        return Failed(said)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def _rename(attempt: Path, done: Path) -> None:
    """Where another attempt was faster, its folder stays."""
    try:
        os.rename(attempt, done)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _not_shared(job: Job) -> UserError | None:
    try:
        found = (job.folder / TOKEN).read_text()
    except OSError as error:
        found = error.strerror
    if found == job.token:
        return None
    return UserError(
        f"{job.folder}: the executor on {socket.gethostname()} does not see what the driver wrote there; expected a folder on a file system "
        "that all executors share: choose it with --staging"
    )


def _not_here(error: FileNotFoundError) -> UserError:
    host = socket.gethostname()
    return UserError(f"{error.filename}: the executor on {host} finds no such file; logs and --staging must lie where all executors see them")
