"""The file of a log: another run's file is renamed, never replaced, and a run that goes on finds its own again.

`NAME.json` is the newest run's. The one before becomes `NAME.1.json`, or takes the smallest number that is free. The process that writes a file holds
a lock on it, so a file that is still being written is renamed but never appended to; its process goes on writing to it under its new name.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

_LINKS = 40  # as many links as the kernel follows
_ENDING_S = 1.0  # how long the process before, which has just ended, may still hold its file
_READER_S = 10.0  # how long a named pipe may be without a reader
_BETWEEN_S = 0.05


class LogFile(NamedTuple):
    """An open file of a log.

    Attributes:
        file: the file; its lines are added at its end.
        path: its path without links; None for a device or a pipe.
        appends: it holds earlier lines, or is not a regular file.
    """

    file: TextIO
    path: Path | None
    appends: bool


def open_log(path: str, resumes: str | None = None) -> LogFile:
    """Open a run's log file; another run's file of this name is renamed first.

    Args:
        path: the file; its folder is made where it is missing.
        resumes: the id of the run that goes on, whose file is appended to, and takes the name again if it had been renamed. An empty text: the run
            goes on, but its id is unknown, so a file that names no run is taken for its own. None for a new run.

    Raises:
        OSError: the file cannot be opened, or another run's file cannot be renamed.
    """
    target = _regular(path)
    if target is None:
        return LogFile(_special(path), None, True)
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        own = next((file for file in _candidates(target) if _is_of(file, resumes)), None) if resumes is not None else None
        descriptor = _taken(own, _ENDING_S) if own else None
        if descriptor is not None and own != target:
            _rename_other(target)
            if not _renamed(own, target):
                os.close(descriptor)
                continue
        if descriptor is None:
            descriptor = _new(target)
        if descriptor is not None:
            size = os.fstat(descriptor).st_size
            file = os.fdopen(descriptor, "a", encoding="utf-8")
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                with contextlib.suppress(OSError):  # the disk is full: the next line says so
                    os.write(descriptor, b"\n")  # the last line was cut when its process was killed
            return LogFile(file, target, size > 0)


def numbered(path: Path, number: int) -> Path:
    """Return the name of an older run's log beside the newest: `log.json`, 2 -> `log.2.json`."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _regular(path: str) -> Path | None:
    """Return the path of a regular file, existing or to be made, with its links followed; None for devices, pipes and open descriptors."""
    place = Path(os.path.abspath(path))
    for _ in range(_LINKS):
        if place.parts[:2] in (("/", "dev"), ("/", "proc")) and not place.is_relative_to("/dev/shm"):
            return None
        if not place.is_symlink():
            break
        place = Path(os.path.abspath(place.parent / os.readlink(place)))
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return place
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return place if stat.S_ISREG(mode) else None


def _special(path: str) -> TextIO:
    """Open a device or a pipe; an open descriptor, as `/dev/stdout` is one, is shared with its other writers."""
    place = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}.get(path, path)
    if found := re.fullmatch(r"(?:/dev|/proc/self)/fd/(\d+)", place):
        return os.fdopen(os.dup(int(found[1])), "w", encoding="utf-8")
    deadline = time.monotonic() + _READER_S
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "nobody reads this pipe; start its reader first") from None
        time.sleep(_BETWEEN_S)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "w", encoding="utf-8")


def _candidates(path: Path) -> Iterator[Path]:
    """Yield the regular files that may be a run's: the newest, then the older ones by number."""
    pattern = re.compile(re.escape(f"{path.stem}.") + r"(\d+)" + re.escape(path.suffix))
    numbers = [int(found[1]) for name in os.listdir(path.parent) if (found := pattern.fullmatch(name))]
    for candidate in (path, *(numbered(path, number) for number in sorted(numbers, reverse=True))):
        if candidate.is_file() and not candidate.is_symlink():
            yield candidate


def _is_of(path: Path, run: str) -> bool:
    """Return whether a file has lines of a run; for an empty id, whether it has lines but names no run."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(f'"{run}"'.encode()) >= 0 if run else content.find(b'"step": "RUN"') < 0
    except (OSError, ValueError):  # cannot be read, or is empty
        return False


def _taken(path: Path, patience_s: float = 0.0) -> int | None:
    """Open and lock a file; return None where another process writes to it, or where it was renamed meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        return None
    deadline = time.monotonic() + patience_s
    while not _locked(descriptor):
        if time.monotonic() >= deadline:
            os.close(descriptor)
            return None
        time.sleep(_BETWEEN_S)
    if _names(path, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _new(path: Path) -> int | None:
    """Rename another run's file, and make, or take, an empty one; return None where another process was faster."""
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0 and (descriptor := _taken(path)) is not None:
            if os.fstat(descriptor).st_size == 0:
                return descriptor
            os.close(descriptor)
    _rename_other(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return None
    # Before it was locked, another run may have taken it, written to it and ended.
    if _locked(descriptor) and _names(path, descriptor) and os.fstat(descriptor).st_size == 0:
        return descriptor
    os.close(descriptor)
    return None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a network file system without locks
    return True


def _names(path: Path, descriptor: int) -> bool:
    """Return whether a path still names the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _rename_other(path: Path) -> None:
    """Give a file, if it exists, the smallest free number. Raises OSError where the folder does not permit it."""
    number = 0
    while path.exists():
        number += 1
        older = numbered(path, number)
        try:
            os.close(os.open(older, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # reserves the number
        except FileExistsError:
            continue
        except OSError as error:
            raise OSError(error.errno, f"is another run's log and cannot be renamed to {older.name}: {error.strerror}") from None
        try:
            os.replace(path, older)
        except FileNotFoundError:  # another process has renamed it
            older.unlink()
        return


def _renamed(path: Path, target: Path) -> bool:
    """Give a file the newest run's name; return False where another process has made a file of that name."""
    try:
        os.link(path, target)
        os.unlink(path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        os.replace(path, target)
    return True
