"""Comparison of the hosts' code with this host's: over ssh, as horovodrun reaches them, before workers are started there."""

import json
import os
import re
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from utils.cluster import program
from utils.dialects.programs import is_program

ANSWER_S = 20.0  # for one host; a host that does not answer is left to horovodrun, which reports it
STANDS_S = 30.0  # time for which an answer stays valid while training runs: a clone may be updated
_PYTHON = re.compile(r"python[\d.]*")
_LOCAL = re.compile(r"localhost|127\..*|::1")


class SameCode:
    """A comparison of the hosts' code with this host's.

    Args:
        command: command of a worker.
        flags: flags of ssh that horovodrun is given.
        say: called with a line when a host is left out, and when it is used again.
    """

    def __init__(self, command: Sequence[str], flags: Sequence[str], say: Callable[[str], None]):
        place = next(i for i, word in enumerate(command) if is_program(word))
        # Unresolved: a link may point elsewhere on another host.
        self._program = os.path.join(os.getcwd(), command[place])
        python = next((word for word in reversed(command[:place]) if _PYTHON.fullmatch(Path(word).name)), "python3")
        python = os.path.join(os.getcwd(), python) if "/" in python else python
        words = ["env", f"PATH={os.environ.get('PATH', os.defpath)}", python, "-I", "-", self._program]
        self._remote, self._flags, self._say = shlex.join(words), list(flags), say
        self._mine: dict[str, str] = {}
        self._asked: dict[str, _Question] = {}
        self._left_out: dict[str, str] = {}  # by host, the difference that was reported

    def begin(self) -> None:
        """Record this host's current code as the reference and forget all answers: workers are about to start."""
        self._mine = program.digests(os.path.dirname(os.path.realpath(self._program)))
        self._asked.clear()

    def among(self, hosts: Mapping[str, int], in_use: Mapping[str, int]) -> dict[str, int] | None:
        """Return the hosts that have the same code; None while an answer is outstanding, then call again.

        Args:
            hosts: slots by host name.
            in_use: hosts that are not asked: their workers loaded their code when they started.
        """
        asked = [host for host in hosts if host not in in_use and not _is_this_one(host)]
        for host in asked:
            if host not in self._asked or self._asked[host].is_old:
                self._asked[host] = _Question(["ssh", *self._flags, host, self._remote])
        if not all(self._asked[host].answered for host in asked):
            return None
        others = {host: self._difference(self._asked[host].files) for host in asked}
        for host in asked:
            self._tell(host, others[host])
        return {host: slots for host, slots in hosts.items() if not others.get(host)}

    def _difference(self, files: Mapping[str, str] | None) -> str:
        """Return the first file that differs and how many more; an empty text where none differs or the host's code is unknown."""
        if files is None or not self._mine:
            return ""
        if not files:
            return f"{self._program} is missing"
        names = program.differing(self._mine, files)
        return program.shown(names) if names else ""

    def _tell(self, host: str, difference: str) -> None:
        before = self._left_out.pop(host, "")
        if difference:
            self._left_out[host] = difference
        if difference and difference != before:
            self._say(f"host {host} has other code than this host: {difference}; it is left out until its code is the same")
        elif before and not difference:
            self._say(f"host {host} has the same code now")


class _Question:
    """A question to one host for the digests of its files, asked in a thread."""

    def __init__(self, words: Sequence[str]):
        self.files: dict[str, str] | None = None
        self._words, self._asked_at = words, time.monotonic()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    @property
    def answered(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_old(self) -> bool:
        return self.answered and time.monotonic() - self._asked_at > STANDS_S

    def _ask(self) -> None:
        try:
            source = Path(program.__file__).read_bytes()
            options = {"capture_output": True, "timeout": ANSWER_S, "check": True, "start_new_session": True}
            found = json.loads(subprocess.run(self._words, input=source, **options).stdout)
            self.files = found if isinstance(found, dict) else None
        except (OSError, subprocess.SubprocessError, ValueError):
            return


def ssh_flags(port: str | None, identity_file: str | None) -> list[str]:
    """Return the ssh flags that horovodrun uses, and BatchMode: nobody is there to answer a prompt."""
    flags = ["-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"]
    return [*flags, *(["-p", port] if port else []), *(["-i", identity_file] if identity_file else [])]


def _is_this_one(host: str) -> bool:
    return bool(_LOCAL.fullmatch(host)) or host == socket.gethostname()
