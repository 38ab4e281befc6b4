"""A pseudo-terminal that runs a command, and the screen that it leaves."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CLEAR = "\x1b[K"


class Terminal:
    """A terminal of `columns`, on which a command runs until it ends.

    Args:
        words: the command.
        columns: width of the terminal.
        cwd: the command's folder.
        seen: called with this object and everything written so far, after each piece of output.
        env: variables added to the environment.

    Attributes:
        text: everything written.
        code: exit code.
    """

    def __init__(
        self,
        words: Sequence[object],
        columns: int,
        cwd: Path,
        seen: Callable[["Terminal", str], None] = lambda terminal, text: None,
        env: Mapping[str, str] | None = None,
    ):
        self._main, other = pty.openpty()
        self.resize(columns)
        # A session of its own, so that the terminal controls the command and Ctrl-C reaches it.
        environment = {**os.environ, "TERM": "xterm", **(env or {})}
        options = {"cwd": cwd, "stdin": other, "stdout": other, "stderr": other, "start_new_session": True, "env": environment}
        control = ["import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"]
        with subprocess.Popen([sys.executable, "-c", *control, *map(str, words)], **options) as process:
            os.close(other)
            found = b""
            try:
                while piece := self._read():
                    found += piece
                    seen(self, found.decode(errors="replace"))
                self.code = process.wait(60)
            finally:
                process.kill()
                os.close(self._main)
        self.text = found.decode().replace("\r\n", "\n")

    def _read(self) -> bytes:
        try:
            return os.read(self._main, 65536)
        except OSError:  # the last process that had it open has ended
            return b""

    def resize(self, columns: int) -> None:
        """Set the width."""
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def press(self, key: bytes) -> None:
        """Type a key."""
        os.write(self._main, key)

    @property
    def drawn(self) -> list[str]:
        """All texts that the live line had."""
        return [text for line in self.text.split("\n") for text in line.split(f"\r{CLEAR}")[1:-1] if text]

    @property
    def lines(self) -> list[str]:
        """The lines that stay on the screen."""
        return [line.rpartition(f"\r{CLEAR}")[2] for line in self.text.split("\n")]
