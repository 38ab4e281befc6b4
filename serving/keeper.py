"""Restarts of a server that ends unexpectedly, up to a number of restarts in a row."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from utils.errors import UserError

_EVERY_S = 0.2
_HEALTHY_S = 60.0  # after a run this long, restarts are counted from 0 again


class Kept(Protocol):
    """A server that can be restarted."""

    process: "object"
    end: str

    def start_again(self) -> float:
        """Start the server again; return the seconds until it was ready. Raises UserError."""


class Keeper:
    """A thread that restarts a server whenever it ends unexpectedly.

    Args:
        server: a server that is ready.
        restarts: maximum number of restarts in a row.
        say: called with a line about each restart.

    Attributes:
        error: the reason why the server is no longer restarted; None while it is.
    """

    def __init__(self, server: Kept, restarts: int, say: Callable[[str], None]):
        self._server, self._restarts, self._say = server, restarts, say
        self.error: UserError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop restarting."""
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        row, ready = 0, time.monotonic()
        while not self._stop.wait(_EVERY_S):
            if self._server.process.poll() is None:
                continue
            row = 1 if time.monotonic() - ready > _HEALTHY_S else row + 1
            if row > self._restarts:
                times = f"; it was restarted {self._restarts} times in a row (--restarts)" if self._restarts else ""
                self.error = UserError(f"the server ended unexpectedly {self._server.end}{times}")
                return
            self._say(f"the server ended unexpectedly {self._server.end}; restart {row} of at most {self._restarts} in a row")
            if self._stop.wait(row - 1):
                return
            try:
                self._say(f"ready again after {self._server.start_again():.1f} s")
            except UserError as error:
                if self._stop.is_set() or self._server.process.poll() is None:  # not ready in time: another try would not be either
                    self.error = error
                    return
            except OSError as error:
                self.error = UserError(f"the server cannot be restarted: {error.strerror or error}")
                return
            ready = time.monotonic()
