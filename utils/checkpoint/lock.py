"""The lock on a folder of checkpoints, by which only one run writes there."""

import fcntl
import os
import time
from pathlib import Path

from utils.cluster.processes import MARK
from utils.errors import UserError

WAIT_S = 60.0


class Lock:
    """An exclusive lock on a folder; the kernel releases it when the process ends, however it ends.

    Under `scripts/elastic` the constructor waits for the lock: workers of the previous start may still be ending, on another host for instance.

    Raises:
        UserError: another run holds it.
    """

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        deadline = time.monotonic() + (WAIT_S if MARK in os.environ else 0)
        while not self._taken():
            if time.monotonic() >= deadline:
                os.close(self._descriptor)
                raise UserError(f"--save_checkpoint_path {path}: another run writes its checkpoints there; end it or choose another folder")
            time.sleep(0.1)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a network file system without locks
        return True

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
