"""Hidden folders in which something grows until it is whole, locked while in use: what a killed run left can be told and is removed."""

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
_LEFT = "left"  # in the lock's file: its run left the folder for another to go on with, on whatever machine
_FORM = re.compile(r"\.(staging|writing)-[a-z0-9_]{8}").fullmatch


class Scratch:
    """A hidden folder inside `destination` (the disk that has the room, and a move instead of a copy), made at once.

    `remove` takes it away, with the folders on the way to it where this made them and nothing was put there; a process
    that ends without `remove` does so too, unless it is killed: then the next run into the same destination does.

    Args:
        destination: made where it is missing.
        kind: "staging" or "writing".
        takes: asked of each folder that a run which is no more left in the destination; the first for which it holds becomes this one.
    """

    def __init__(self, destination: Path, kind: str, takes: Callable[[Path], bool] | None = None):
        self._made: list[Path] = []
        self.folder: Path | None = None
        self.lock = -1
        atexit.register(self.remove)
        try:
            for _ in range(_TRIES):  # another run that ends may take away what this one is about to use
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
        """Make the folder and lock it. Raises FileNotFoundError where another run took it, not locked yet, for an abandoned one."""
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=destination))
        lock = -1
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            _try_lock(lock)
            with naming(folder):  # after the lock: a file that says nothing and is not locked is one on its way
                os.write(lock, " ".join(machine()).encode())
            os.stat(folder / _LOCK)
        except OSError as error:
            _remove(folder, lock)
            raise FileNotFoundError if isinstance(error, BlockingIOError) else error from None
        self.folder, self.lock = folder, lock

    def entries(self) -> list[Path]:
        """What was put into the folder."""
        return sorted(entry for entry in self.folder.iterdir() if entry.name != _LOCK)

    def leave(self) -> None:
        """Keep the folder and what it holds for a later run that takes it; one that does not removes it."""
        with uninterrupted():
            atexit.unregister(self.remove)
            with contextlib.suppress(OSError):  # a full disk: then only this machine can tell that it is left
                os.pwrite(self.lock, f" {_LEFT}".encode(), os.fstat(self.lock).st_size)
            os.close(self.lock)
            self.folder, self._made = None, []

    def remove(self) -> None:
        """Remove the folder and what it holds; what cannot be removed stays, for whatever ended the run is what is to be told."""
        with uninterrupted():
            atexit.unregister(self.remove)
            if self.folder is not None:
                _remove(self.folder, self.lock)
                self.folder = None
            while self._made:
                with contextlib.suppress(OSError):  # something is there
                    self._made[-1].rmdir()
                self._made.pop()


def remove_abandoned(destination: Path) -> None:
    """Remove the scratch folders of runs that are no more: nobody holds their locks. On a file system without locks nothing is removed."""
    for folder, lock in _abandoned(destination):
        by_choice = _LEFT in _words(lock)
        _remove(folder, lock)
        print(f"{folder}: left by a run that {'ended early' if by_choice else 'was killed'}; removed", file=sys.stderr)


def _taken(destination: Path, takes: Callable[[Path], bool]) -> tuple[Path | None, int]:
    """The first abandoned folder that is wanted, and its lock, which is held; None where there is none."""
    for folder, lock in _abandoned(destination):
        if takes(folder):
            with contextlib.suppress(OSError), naming(folder):
                os.ftruncate(lock, 0)
                os.pwrite(lock, " ".join(machine()).encode(), 0)
            return folder, lock
        os.close(lock)
    return None, -1


def _abandoned(destination: Path) -> Iterator[tuple[Path, int]]:
    """The scratch folders of runs that are no more, each with its lock, which is held now and is the caller's to close."""
    for folder in sorted(destination.iterdir()):
        if not _FORM(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                folder.rmdir()  # killed between making the folder and its lock; one that holds something is not ours
            continue
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(folder / _LOCK)  # its run may have removed it meanwhile
            abandoned = bool(({_LEFT} | machine()) & _words(descriptor)) or _rested(folder)
        except OSError:  # in use, or a network file system without locks
            abandoned = False
        if abandoned:
            yield folder, descriptor
        else:
            os.close(descriptor)


def _words(lock: int) -> set[str]:
    """What the file of a lock says: the machine of its run, and whether that left the folder on purpose."""
    return set(os.pread(lock, 200, 0).decode(errors="replace").split())


@contextlib.contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Wait until no other run is inside this block with the same folder; without effect on a file system without locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> None:
    """Take the lock at once, or go without where the file system has none. Raises BlockingIOError where another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def machine() -> set[str]:
    """What tells this machine from others: its start and its identity. A lock that it holds is seen here whatever the file system."""
    found = set()
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            found |= set(Path(path).read_text().split()[:1])
    return found


def _rested(folder: Path) -> bool:
    """Whether nothing was written for a day: asked of other machines' folders, for some network file systems keep locks to one machine."""
    newest = max((path.lstat().st_mtime for path in (folder, *folder.rglob("*"))), default=0.0)
    return time.time() - newest > _REST_S


def _remove(folder: Path, lock: int) -> None:
    """Remove a folder, its lock last, so that what a kill leaves of it here is still known as abandoned. Closes the lock."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.name != _LOCK:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        (folder / _LOCK).unlink(missing_ok=True)
    if lock >= 0:
        os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)  # NFS keeps a removed file until it is closed, and the folder with it
