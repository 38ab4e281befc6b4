"""The door before Triton's HTTP port: a program that compares what requests say of their sizes with what they hold, see `door/door.cc`.

`ops/build` compiles it. Where it is not compiled, Triton's own port is open, and a line says so.
"""

import hashlib
import platform
import socket
import subprocess
import sys
from pathlib import Path

from utils.cluster.processes import start_bound

SOURCES = Path(__file__).resolve().parent / "door"


def door_path() -> Path:
    """Return the path of the compiled program for these sources, whether or not it is built."""
    digest = hashlib.sha256(platform.machine().encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return Path(sys.prefix) / "lib" / "dlrm_ops" / f"door-{digest.hexdigest()[:16]}"


class Door:
    """A door on a port, which ends with this process.

    Args:
        address: address to listen on.
        port: port to listen on; 0 for a free one.
        most_bytes: length of the longest request that is passed on.

    Attributes:
        port: the port.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, address: str, port: int, most_bytes: int):
        (family, *_, place), *_ = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        self._listener = socket.create_server(place[:2], family=family, backlog=1024)  # open in this process, too: a new door goes on with it
        self.port, self._most_bytes = self._listener.getsockname()[1], most_bytes
        self._process: subprocess.Popen | None = None
        self._upstream = 0

    def lead_to(self, port: int) -> None:
        """Start the program for Triton's port on the loopback address, or start it again where it has ended or led to another. Raises OSError."""
        if self._process is not None and self._process.poll() is None and port == self._upstream:
            return
        self._end()
        self._upstream = port
        words = [str(door_path()), str(self._listener.fileno()), str(port), str(self._most_bytes)]
        self._process = start_bound(words, stdin=subprocess.DEVNULL, pass_fds=[self._listener.fileno()], start_new_session=True)

    def keep(self) -> bool:
        """Start the program again where it has ended; return whether it had."""
        ended = self._process is not None and self._process.poll() is not None
        if ended:
            self.lead_to(self._upstream)
        return ended

    def close(self) -> None:
        """End the program and stop listening."""
        self._end()
        self._process = None
        self._listener.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()  # it holds nothing that its end could damage
            self._process.wait()
