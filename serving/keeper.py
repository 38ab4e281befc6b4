"""Restarts of a server that ends unexpectedly, as long as its starts succeed."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

from utils.errors import UserError

_EVERY_S = 0.2
_HEALTHY_S = 60.0  # after a run this long, the pauses before restarts begin at 0 again
_LONGEST_PAUSE_S = 30.0


class Kept(Protocol):
    """A server that can be restarted."""

    process: "object"
    end: str

    def look(self) -> None:
        """Look after what stands beside the server. Raises OSError."""

    def start_again(self) -> float:
        """Start the server again; return the seconds until it was ready. Raises UserError."""


class Keeper:
    """A thread that restarts a server whenever it ends unexpectedly, after growing pauses: what ended it may come again at once.

    Args:
        server: a server that is ready.
        restarts: maximum number of failing starts in a row; 0 for no restart at all.
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
        pause_s, failing, ready = 0.0, 0, time.monotonic()
        while not self._stop.wait(_EVERY_S):
            if self._server.process.poll() is None:
                with contextlib.suppress(OSError):
                    self._server.look()
                continue
            if failing >= self._restarts:
                times = f"; {failing} starts in a row failed (--restarts)" if failing else ""
                self.error = UserError(f"the server ended unexpectedly {self._server.end}{times}")
                return
            pause_s = 0.0 if time.monotonic() - ready > _HEALTHY_S else pause_s
            self._say(f"the server ended unexpectedly {self._server.end}; it is started again{f' in {pause_s:g} s' if pause_s else ''}")
            if self._stop.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) or 1.0
            try:
                self._say(f"ready again after {self._server.start_again():.1f} s")
                failing, ready = 0, time.monotonic()
            except UserError as error:
                failing += 1
                if self._stop.is_set() or self._server.process.poll() is None:  # not ready in time: another try would not be either
                    self.error = error
                    return
            except OSError as error:
                self.error = UserError(f"the server cannot be restarted: {error.strerror or error}")
                return
