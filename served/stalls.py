"""A backend process that was stopped (SIGSTOP) ends when it goes on: its server has given up what it had asked.

Triton 2.51 gives up a request when the process gives no sign of life for a second, sends it the next one, and takes the first answer that comes for
that one's: a request of 3 rows was seen to be answered by the 20 scores of another.
"""

import ctypes
import signal


def ends_when_continued() -> None:
    """From now on: at once, in whatever the process is doing, so that nothing is answered any more; the exit code is the signal's number."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGCONT, ctypes.cast(libc._exit, ctypes.c_void_p))
