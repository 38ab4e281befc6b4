"""Steps that are being read: the run that writes beside them does not remove them meanwhile.

The kernel's lock on a step's folder says that it is read, and ends with its reader, however that ends.
"""

import contextlib
import fcntl
import os
import weakref
from pathlib import Path


class Hold:
    """A step's folder, held until it is released or forgotten; without effect on a file system without locks.

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
