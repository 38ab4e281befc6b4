"""Tasks of a Spark executor, whose output is atomic: the files of a task are all there or none, however often it is tried.

Each attempt writes to its own folder, which is renamed when it is done. The first attempt wins: a speculative task, or a retry after its executor
was lost, finds the folder and returns the first one's result.
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
# These errors would occur on any other executor, too, so the task is not retried.
_FINAL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


@dataclass(frozen=True)
class Job:
    """The properties that all tasks of a job share.

    Attributes:
        name: name of the job, unique in a run.
        folder: folder that the driver and all executors see; tasks write in it.
        token: content of its file `token`, by which an executor checks that it sees the driver's folder.
        work: called with an item and the folder of its files; returns a result.
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
    """A task's error that the user can fix; a retry would not help."""

    error: Exception


@dataclass(frozen=True)
class LeftOut:
    """A task that was not started, since one with a lower number had failed."""


def task_folder(folder: Path, job: str, number: int) -> Path:
    """Return the folder that holds the files of a task when it is done."""
    return folder / f"{job}-{number:06d}"


def run_task(job: Job, number: int, item: Any) -> Done | Failed | LeftOut:
    """Run one task, or return the result of an attempt that is done. Errors that a retry may avoid are raised, so that Spark retries."""
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
        shutil.rmtree(attempt, ignore_errors=True)  # before the next write, which needs the space if the disk is full
        attempt.with_suffix(".failed").write_bytes(pickle.dumps(said))
        (job.folder / FAILED).mkdir(exist_ok=True)  # a separate folder, since every task lists it and the job folder may hold thousands
        _rename(attempt.with_suffix(".failed"), job.folder / FAILED / f"{job.name}-{number:06d}")
        return Failed(said)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def _rename(attempt: Path, done: Path) -> None:
    """Rename an attempt's output; where another attempt was faster, its output stays."""
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
        f"{job.folder}: the executor on {socket.gethostname()} does not see the driver's files there; expected a folder on a file system "
        "that all executors share: choose it with --staging"
    )


def _not_here(error: FileNotFoundError) -> UserError:
    host = socket.gethostname()
    return UserError(f"{error.filename}: the executor on {host} finds no such file; logs and --staging must be where all executors see them")
