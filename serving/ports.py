"""The ports of a server: those for its clients, and those of Triton, which differ in that of HTTP where the door stands before it."""

import contextlib
import socket
from collections.abc import Callable
from typing import Protocol

from serving.front import Door, door_path
from utils.errors import UserError

NAMES = ("http_port", "grpc_port", "metrics_port")
_LOOPBACK = "127.0.0.1"


class Wanted(Protocol):
    """The options of a server that say where it listens; a port of 0 is any free one."""

    address: str
    http_port: int
    grpc_port: int
    metrics_port: int
    request_mib: int


class Ports:
    """The ports of a server for HTTP, gRPC and the metrics.

    Args:
        wanted: the server's options.
        say: called with messages for the user.

    Attributes:
        clients: the ports for clients.
        own: address and port of each that Triton itself listens on.
        free: true where one of the ports may be any.

    Raises:
        UserError: a port is taken.
    """

    def __init__(self, wanted: Wanted, say: Callable[[str], None]):
        self._wanted, self._say, self._door = wanted, say, None
        self.free = 0 in (getattr(wanted, name) for name in NAMES)
        if door_path().is_file():
            try:
                self._door = Door(wanted.address, wanted.http_port, wanted.request_mib << 20)
            except OSError as error:
                raise _taken("http_port", wanted.http_port, wanted.address, error) from None
        else:
            say("the door before the HTTP port is not compiled (ops/build does it): a request that lies about its size may end the server")
        self.choose()

    def choose(self) -> None:
        """Choose free ports for each 0. All are bound until the last is chosen, so that they differ. Raises UserError."""
        address, given = self._wanted.address, {name: getattr(self._wanted, name) for name in NAMES}
        if self._door is not None:
            given["http_port"] = 0  # of Triton: clients use the door's
        chosen: dict[str, int] = {}
        try:
            with contextlib.ExitStack() as held:
                for name, port in sorted(given.items(), key=lambda one: one[1] == 0):  # free ports last, so that none of them is a requested port
                    chosen[name] = _bound(held.enter_context(socket.socket()), address, port, name)
        except UserError:
            self.close()
            raise
        self.clients = [chosen[name] for name in NAMES]
        self.own = [(address, port) for port in self.clients]
        if self._door is not None:
            self.own[0] = (_LOOPBACK, self.clients[0])
            self.clients[0] = self._door.port

    def open(self) -> None:
        """Let the door lead to Triton."""
        if self._door is not None:
            self._door.lead_to(self.own[0][1])

    def look(self) -> None:
        """Start the door again where it has ended. Raises OSError."""
        if self._door is not None and self._door.keep():
            self._say("the door before the HTTP port ended unexpectedly; it was started again")

    def close(self) -> None:
        """Close the door."""
        if self._door is not None:
            self._door.close()


def _bound(held: socket.socket, address: str, port: int, flag: str) -> int:
    if port:  # a port that a server has just left may be reused at once
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((address, port))
    except OSError as error:
        raise _taken(flag, port, address, error) from None
    return held.getsockname()[1]


def _taken(flag: str, port: int, address: str, error: OSError) -> UserError:
    return UserError(f"--{flag} {port}: {error.strerror} on {address}; choose another port, or 0 for any free port")
