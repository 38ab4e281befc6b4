"""Names of a server's shared memory in /dev/shm, and removal of what killed servers have left there."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")
_LOCK = "lock"
_OURS = re.compile(r"(dlrm_(\d+)_\d+_)(.+)").fullmatch


class Segments:
    """The names of a server's shared memory: they have a prefix of its own, which is locked while the server or one of its backends runs.

    The lock is a file beside them. It shows others that the names are in use, also in a container with other process numbers. A started server must
    inherit `lock`.

    Args:
        port: port of the server; no two servers on a machine share it.
        folder: folder of the system's shared memory.

    Attributes:
        prefix: prefix of the names.
        lock: file descriptor of the lock; None where the file cannot be created.
    """

    def __init__(self, port: int, folder: Path = FOLDER):
        self._folder = folder
        self.prefix = f"dlrm_{os.getpid()}_{port}_"
        self.lock: int | None = None
        remove_left(folder)
        with contextlib.suppress(OSError):
            self.lock = _locked(folder / f"{self.prefix}{_LOCK}")

    def remove(self) -> None:
        """Remove the shared memory of a server that has ended, but keep the lock, as the server may be restarted."""
        for path in self._folder.glob(f"{self.prefix}*"):
            if path.name != f"{self.prefix}{_LOCK}":
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the shared memory and the lock."""
        self.remove()
        if self.lock is not None:
            (self._folder / f"{self.prefix}{_LOCK}").unlink(missing_ok=True)
            os.close(self.lock)
            self.lock = None


def remove_left(folder: Path = FOLDER) -> None:
    """Remove the segments of servers that have ended; segments of other users stay where permission is missing."""
    by_prefix: dict[str, list[Path]] = {}
    for path, prefix in _segments(folder):
        by_prefix.setdefault(prefix, []).append(path)
    for prefix, paths in by_prefix.items():
        lock = folder / f"{prefix}{_LOCK}"
        with contextlib.suppress(OSError):
            if lock in paths:
                descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where it is in use
                    _remove(sorted(paths, key=lambda path: path == lock))
                finally:
                    os.close(descriptor)
            elif not _runs(prefix) and not (_mapped(folder) & set(map(str, paths))):  # left by older versions of this program, without a lock
                _remove(paths)


def _segments(folder: Path) -> Iterator[tuple[Path, str]]:
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if (ours := _OURS(path.name)) and path.is_file() and not path.is_symlink():
                yield path, ours[1]


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _runs(prefix: str) -> bool:
    return Path("/proc", _OURS(f"{prefix}-")[2]).exists()


def _mapped(folder: Path) -> set[str]:
    """Return the folder's files that processes have mapped, of the processes that this user may inspect."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= set(re.findall(rf"{re.escape(str(folder))}/\S+", maps.read_text(errors="replace")))
    return found


def _locked(path: Path) -> int:
    """Create a file and lock it. Raises OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it as left behind before it was locked
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
