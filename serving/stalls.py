"""A backend process that stood still ends itself: its server has given up what it had asked, and would take a late answer for a later request's.

Triton 2.51 gives up a request when the process gives no sign of life for a second (it was stopped, or a machine had no time for it), sends the next one, and
takes the first answer that comes.
"""

import os
import threading
import time
from collections.abc import Callable

_EVERY_S = 0.1
_LONGEST_S = 0.6  # the sign comes every 0.3 s


class Stalls:
    """Watches the clock, in a thread.

    A process has stood still when much more time has gone by than it has spent: one that computes is late, too, and has not.

    Args:
        end: ends the process.
    """

    def __init__(self, end: Callable[[], None] = lambda: os._exit(1)):
        self._end, self._last = end, (time.monotonic(), time.process_time())
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def check(self) -> None:
        """End the process where it has stood still: before a request is looked at, and before it is answered."""
        now, spent = time.monotonic(), time.process_time()
        if (now - self._last[0]) - (spent - self._last[1]) > _LONGEST_S:
            self._end()

    def _watch(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            self.check()
            self._last = time.monotonic(), time.process_time()
