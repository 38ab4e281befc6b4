"""Links to files: a second file with the same contents, which shares the data on disk where the file system allows it."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

_FICLONE = 0x40049409  # ioctl of Linux: make a file share the data of another, copy-on-write
_UNLINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


def link(source: Path, target: Path) -> None:
    """Make `target` a file with the contents of `source`: a hard link, a reflink, or else a copy. Nothing may write to `source` any more.

    Raises:
        OSError: none of them is possible.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _UNLINKABLE:
            raise
        clone(source, target)


def link_tree(source: Path, target: Path) -> None:
    """Link every file in a folder and below it into another folder; see `link`."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            link(path, target / path.relative_to(source))


def clone(source: Path, target: Path) -> None:
    """Make `target` an independent file with the contents of `source`: a reflink, or else a copy. Raises OSError."""
    with source.open("rb") as read, target.open("wb") as written:
        try:
            fcntl.ioctl(written.fileno(), _FICLONE, read.fileno())
        except OSError:
            shutil.copyfileobj(read, written, 1 << 24)
        written.flush()
        os.fsync(written.fileno())
