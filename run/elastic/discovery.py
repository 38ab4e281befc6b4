"""Discovery of the hosts that may be used now, with their slots: from a list of the user's or the output of a script."""

import os
import re
import subprocess
import time

from utils.cluster.processes import Guard
from utils.errors import UserError

SCRIPT_LIMIT_S = 60.0  # for an answer from the script
OUTPUT_LIMIT = 1 << 20  # bytes of an answer: ten thousand hosts take a third of that
MAX_SLOTS = 1024  # of a host: several times the processors or GPUs of the largest host; more is a typing error

_HOST = re.compile(r"([\w.-]+)(?::(\d+))?")


def parse_hosts(text: str, source: str) -> dict[str, int]:
    """Parse slots by host from words `host:slots` or `host` (one slot), separated by lines or commas; `#` begins a comment.

    Raises:
        UserError: a word is invalid; the message names the source and the word.
    """
    hosts: dict[str, int] = {}
    lines = (line.partition("#")[0] for line in text.splitlines())
    for word in filter(None, (word.strip() for line in lines for word in line.split(","))):
        match = _HOST.fullmatch(word)
        if match is None:
            raise UserError(f"{source}: {word!r} is not a host; expected host:slots or host, for instance worker-0:8")
        digits = (match[2] or "1").lstrip("0") or "0"
        if len(digits) > len(str(MAX_SLOTS)) or int(digits) > MAX_SLOTS:
            raise UserError(f"{source}: {word[:100]!r} has too many slots; expected one per worker, at most {MAX_SLOTS} per host")
        if match[1] in hosts:
            raise UserError(f"{source}: {match[1]} is named twice; expected every host once, with all its slots")
        hosts[match[1]] = int(digits)
    return {host: slots for host, slots in hosts.items() if slots}


class HostScript:
    """The discovery script. It runs in the background, one run at a time.

    Args:
        command: shell command.
    """

    def __init__(self, command: str):
        self._command, self._source = command, f"--host-discovery-script {command}"
        self._process: subprocess.Popen | None = None
        self._guard: Guard | None = None
        self._text, self._deadline = b"", 0.0

    def poll(self) -> dict[str, int] | None:
        """Return the script's answer, slots by host; None while it runs. Starts the script where it is not running.

        Raises:
            UserError: the script fails, prints something else, or takes too long; the next call starts it again.
        """
        if self._process is None:
            self._guard = Guard()
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "bufsize": 0}
            self._process = self._guard.start(self._command, os.environ, shell=True, **pipes)
            os.set_blocking(self._process.stdout.fileno(), False)
            self._text, self._deadline = b"", time.monotonic() + SCRIPT_LIMIT_S
        whole = self._read()
        if len(self._text) > OUTPUT_LIMIT:
            self.close()
            raise UserError(f"{self._source}: prints more than {OUTPUT_LIMIT} bytes; expected lines of host:slots")
        if whole and self._process.poll() is not None:
            return self._answer()
        if time.monotonic() >= self._deadline:
            self.close()
            raise UserError(f"{self._source}: no answer in {SCRIPT_LIMIT_S:g} s; expected lines of host:slots")
        return None

    def close(self) -> None:
        """End the running script and every process that it started."""
        process, self._process = self._process, None
        if process is not None:
            self._guard.kill()
            self._guard.end()
            process.stdout.close()
            process.wait()

    def _read(self) -> bool:
        """Read the available output; return whether the output has ended."""
        while len(self._text) <= OUTPUT_LIMIT:
            part = self._process.stdout.read(1 << 16)
            if not part:
                return part is not None  # None means that more may follow
            self._text += part
        return False

    def _answer(self) -> dict[str, int]:
        process, self._process = self._process, None
        self._guard.end()
        process.stdout.close()
        if process.returncode:
            raise UserError(f"{self._source}: ended with code {process.returncode}; expected 0 and lines of host:slots")
        return parse_hosts(self._text.decode(errors="replace"), self._source)
