"""Ending of a stopped backend process (SIGSTOP) as soon as it continues: by then its server has given up the pending request.

Triton 2.51 gives up a request when the process shows no sign of life for a second, sends it the next one, and takes the first answer that arrives
for that one's: a request of 3 rows was observed to be answered with the 20 scores of another.
"""

import ctypes
import signal


def ends_when_continued() -> None:
    """Make the process exit at once when it is continued, whatever it is doing, so that it answers nothing. Its exit code is the signal's number."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGCONT, ctypes.cast(libc._exit, ctypes.c_void_p))
