"""Hidden scratch folders for output that is not complete yet, locked while in use, so that later runs recognise and remove those of killed runs."""

import atexit
import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from utils.naming import naming
from utils.signals import uninterrupted

_LOCK = ".in-use"
_REST_S = 86_400
_TRIES = 100
_LEFT = "left"  # in the lock file: the run left the folder for another run, on any machine, to continue
_FORM = re.compile(r"\.(staging|writing)-[a-z0-9_]{8}").fullmatch


class Scratch:
    """A hidden folder inside `destination`, made by the constructor. On the same disk, results are moved and not copied.

    `remove` removes it, with those of its parent folders that were made for it and are empty. A process that ends without `remove` does so
    too, unless it is killed; then the next run with the same destination does.

    Args:
        destination: the folder of the results; made where it is missing.
        kind: "staging" or "writing".
        takes: called with each abandoned scratch folder in the destination; the first for which it returns true is reused as this one.
    """

    def __init__(self, destination: Path, kind: str, takes: Callable[[Path], bool] | None = None):
        self._made: list[Path] = []
        self.folder: Path | None = None
        self.lock = -1
        atexit.register(self.remove)
        try:
            for _ in range(_TRIES):  # another run that ends may remove the folder that this one is about to use
                with contextlib.suppress(FileNotFoundError):
                    self._make_destination(destination)
                    with uninterrupted():
                        self.folder, self.lock = _taken(destination, takes) if takes else (None, -1)
                    remove_abandoned(destination)
                    with uninterrupted():
                        if self.folder is None:
                            self._make(destination, f".{kind}-")
                    break
            else:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(destination))
        except BaseException:
            self.remove()
            raise

    def _make_destination(self, destination: Path) -> None:
        with uninterrupted():
            for folder in reversed([destination, *destination.parents]):
                if not folder.exists():
                    folder.mkdir(exist_ok=True)
                    self._made.append(folder)

    def _make(self, destination: Path, prefix: str) -> None:
        """Make the folder and lock it. Raises FileNotFoundError where another run removed it as abandoned before it was locked."""
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=destination))
        lock = -1
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            _try_lock(lock)
            with naming(folder):  # after the lock: an empty file without a lock belongs to a folder being made
                os.write(lock, " ".join(machine()).encode())
            os.stat(folder / _LOCK)
        except OSError as error:
            _remove(folder, lock)
            raise FileNotFoundError if isinstance(error, BlockingIOError) else error from None
        self.folder, self.lock = folder, lock

    def entries(self) -> list[Path]:
        """Return the folder's entries without the lock file, sorted."""
        return sorted(entry for entry in self.folder.iterdir() if entry.name != _LOCK)

    def leave(self) -> None:
        """Keep the folder and its content for a later run to take; a run that does not take it removes it."""
        with uninterrupted():
            atexit.unregister(self.remove)
            with contextlib.suppress(OSError):  # a full disk: then only this machine knows the folder as abandoned
                os.pwrite(self.lock, f" {_LEFT}".encode(), os.fstat(self.lock).st_size)
            os.close(self.lock)
            self.folder, self._made = None, []

    def remove(self) -> None:
        """Remove the folder and its content. Errors are ignored, so that they do not hide the error that ended the run."""
        with uninterrupted():
            atexit.unregister(self.remove)
            if self.folder is not None:
                _remove(self.folder, self.lock)
                self.folder = None
            while self._made:
                with contextlib.suppress(OSError):  # it is not empty
                    self._made[-1].rmdir()
                self._made.pop()


def remove_abandoned(destination: Path) -> None:
    """Remove the scratch folders of runs that have ended: no process holds their locks. On a file system without locks, remove nothing."""
    for folder, lock in _abandoned(destination):
        by_choice = _LEFT in _words(lock)
        _remove(folder, lock)
        print(f"{folder}: left by a run that {'ended early' if by_choice else 'was killed'}; removed", file=sys.stderr)


def _taken(destination: Path, takes: Callable[[Path], bool]) -> tuple[Path | None, int]:
    """Return the first abandoned folder that `takes` accepts, with its lock, held; (None, -1) where there is none."""
    for folder, lock in _abandoned(destination):
        if takes(folder):
            with contextlib.suppress(OSError), naming(folder):
                os.ftruncate(lock, 0)
                os.pwrite(lock, " ".join(machine()).encode(), 0)
            return folder, lock
        os.close(lock)
    return None, -1


def _abandoned(destination: Path) -> Iterator[tuple[Path, int]]:
    """Yield the scratch folders of runs that have ended, each with its lock, held; the caller closes it."""
    for folder in sorted(destination.iterdir()):
        if not _FORM(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                folder.rmdir()  # its run was killed between making the folder and its lock; a folder with content is not a scratch folder
            continue
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(folder / _LOCK)  # its run may have removed it since `open`
            abandoned = bool(({_LEFT} | machine()) & _words(descriptor)) or _rested(folder)
        except OSError:  # in use, or a network file system without locks
            abandoned = False
        if abandoned:
            yield folder, descriptor
        else:
            os.close(descriptor)


def _words(lock: int) -> set[str]:
    """Read a lock file: the identifiers of its run's machine, and `_LEFT` where the run left the folder on purpose."""
    return set(os.pread(lock, 200, 0).decode(errors="replace").split())


@contextlib.contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Wait until no other run is inside this block with the same folder. It has no effect on a file system without locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> None:
    """Take the lock without waiting, or go on without it where the file system has no locks. Raises BlockingIOError where another run holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def machine() -> set[str]:
    """Return identifiers of this machine: its boot id and its machine id. Locks of processes on this machine are visible on any file system."""
    found = set()
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            found |= set(Path(path).read_text().split()[:1])
    return found


def _rested(folder: Path) -> bool:
    """Return whether nothing was written for a day. It decides about other machines' folders: some network file systems have locks per machine."""
    newest = max((path.lstat().st_mtime for path in (folder, *folder.rglob("*"))), default=0.0)
    return time.time() - newest > _REST_S


def _remove(folder: Path, lock: int) -> None:
    """Remove a folder, its lock file last, so that after a kill the rest is still recognised as abandoned. Closes the lock."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.name != _LOCK:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        (folder / _LOCK).unlink(missing_ok=True)
    if lock >= 0:
        os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)  # again: on NFS a removed file, and so its folder, stays until the file is closed
