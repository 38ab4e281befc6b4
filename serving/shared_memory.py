"""The names that a server's backends take in /dev/shm, and what servers that were killed have left of them."""

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
    """Names that begin with a prefix of this server's own, locked while the server, or one of its backends, is there.

    The lock is a file beside them: it tells others that they are in use, also in a container whose process numbers are not these. A server that is
    started is to inherit `lock`.

    Args:
        port: of the server: no two on a machine have the same.
        folder: where the system keeps memory that processes share.

    Attributes:
        prefix: of the names.
        lock: the descriptor; None where /dev/shm takes none.
    """

    def __init__(self, port: int, folder: Path = FOLDER):
        self._folder = folder
        self.prefix = f"dlrm_{os.getpid()}_{port}_"
        self.lock: int | None = None
        remove_left(folder)
        with contextlib.suppress(OSError):
            self.lock = _locked(folder / f"{self.prefix}{_LOCK}")

    def remove(self) -> None:
        """Remove what the server has left, which is no more; it may be started again."""
        for path in self._folder.glob(f"{self.prefix}*"):
            if path.name != f"{self.prefix}{_LOCK}":
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all of it."""
        self.remove()
        if self.lock is not None:
            (self._folder / f"{self.prefix}{_LOCK}").unlink(missing_ok=True)
            os.close(self.lock)
            self.lock = None


def remove_left(folder: Path = FOLDER) -> None:
    """Remove the segments of servers that are no more; those of other users stay where they may not be removed."""
    by_prefix: dict[str, list[Path]] = {}
    for path, prefix in _segments(folder):
        by_prefix.setdefault(prefix, []).append(path)
    for prefix, paths in by_prefix.items():
        lock = folder / f"{prefix}{_LOCK}"
        with contextlib.suppress(OSError):
            if lock in paths:
                descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is in use
                    _remove(sorted(paths, key=lambda path: path == lock))
                finally:
                    os.close(descriptor)
            elif not _runs(prefix) and not (_mapped(folder) & set(map(str, paths))):  # of versions of this program that took no lock
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
    """The files there that a process has in its memory, of those processes that may be looked at."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= set(re.findall(rf"{re.escape(str(folder))}/\S+", maps.read_text(errors="replace")))
    return found


def _locked(path: Path) -> int:
    """A new file, locked. Raises OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # taken for one that was left, before it was locked
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
