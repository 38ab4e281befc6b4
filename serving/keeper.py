"""A server that ends by itself is started again, so often in a row."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from utils.errors import UserError

_EVERY_S = 0.2
_HEALTHY_S = 60.0  # a server that ran so long has not ended in a row with the one before


class Kept(Protocol):
    """A server."""

    process: "object"
    end: str

    def start_again(self) -> float:
        """Returns the seconds until it was ready. Raises UserError."""


class Keeper:
    """Starts a server again whenever it ends by itself, in a thread.

    Args:
        server: which is ready.
        restarts: in a row at most.
        say: is told.

    Attributes:
        error: why it is not started again any more; None while it is.
    """

    def __init__(self, server: Kept, restarts: int, say: Callable[[str], None]):
        self._server, self._restarts, self._say = server, restarts, say
        self.error: UserError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start it no more."""
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        row, ready = 0, time.monotonic()
        while not self._stop.wait(_EVERY_S):
            if self._server.process.poll() is None:
                continue
            row = 1 if time.monotonic() - ready > _HEALTHY_S else row + 1
            if row > self._restarts:
                times = f"; it was started again {self._restarts} times in a row (--restarts)" if self._restarts else ""
                self.error = UserError(f"the server ended by itself {self._server.end}{times}")
                return
            self._say(f"the server ended by itself {self._server.end}; it is started again ({row} of {self._restarts} times in a row)")
            if self._stop.wait(row - 1):
                return
            try:
                self._say(f"ready again after {self._server.start_again():.1f} s")
            except UserError as error:
                if self._stop.is_set() or self._server.process.poll() is None:  # not ready in time: it would not be the next time
                    self.error = error
                    return
            except OSError as error:
                self.error = UserError(f"the server cannot be started again: {error.strerror or error}")
                return
            ready = time.monotonic()
