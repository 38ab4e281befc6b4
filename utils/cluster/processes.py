"""A command and all that it starts, taken as one: heard, found and ended together. Linux only."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

_PROC = Path("/proc")
_MARK = "DLRM_JOB"


class Job:
    """A command that Ctrl-C does not reach, and all it starts: known by a mark in their environment, whoever their parent is now.

    A context manager; none of its processes on this host is left behind it, nor when this process is killed.

    Args:
        words: the command.
        env: its environment.
        hear: called with every line that it writes to standard error; the line is passed on to ours.
    """

    def __init__(self, words: Sequence[str], env: Mapping[str, str], hear: Callable[[str], None]):
        self._words, self._hear = list(words), hear
        self._mark = f"{_MARK}={os.getpid()}-{time.monotonic_ns()}"
        self._env = dict(env) | dict([self._mark.split("=")])

    def __enter__(self) -> "Job":
        guard = [sys.executable, "-I", __file__, self._mark]  # -I: this folder's logging.py is not Python's
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)  # first: we may be killed on the next line
        try:
            self._process = subprocess.Popen(self._words, env=self._env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        except BaseException:
            self._end_guard()
            raise
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._reader.join(10)
        self._end_guard()

    def ended(self, limit_s: float) -> bool:
        """Wait so long at most; whether the command has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        return self._process.returncode is not None

    @property
    def code(self) -> int:
        """Its exit code, as a shell gives it: 128 + s where signal s ended it."""
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def find(self, wanted: Callable[[list[str], list[str]], bool]) -> list[int]:
        """Ids of its processes whose command (words) and environment (`NAME=value`) are wanted."""
        return [number for number in _marked(self._mark) if wanted(_strings(number, "cmdline"), _strings(number, "environ"))]

    def kill(self) -> None:
        """End all of its processes at once. Those that mpirun started on other hosts end with it."""
        _kill(self._mark)
        self._process.wait()

    def _end_guard(self) -> None:
        self._guard.kill()
        self._guard.wait()
        self._guard.stdin.close()

    def _pass_on(self) -> None:
        with self._process.stderr as lines:
            for line in lines:
                with contextlib.suppress(OSError, ValueError):  # nobody reads ours any more: read on, or the command would wait
                    sys.stderr.buffer.write(line)
                    sys.stderr.buffer.flush()
                self._hear(line.decode(errors="replace").rstrip())


def _marked(mark: str) -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and mark in _strings(int(entry.name), "environ")]


def _strings(number: int, what: str) -> list[str]:
    """The words of /proc/NUMBER/cmdline or environ; none where the process has ended or is not ours."""
    with contextlib.suppress(OSError):
        return (_PROC / str(number) / what).read_bytes().decode(errors="replace").split("\0")
    return []


def _kill(mark: str) -> None:
    looks_without = 0
    while looks_without < 2:  # one that executes a program at this moment has no environment to be known by
        found = _marked(mark)
        looks_without = 0 if found else looks_without + 1
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":  # the guard of a job: standard input ends when the process that started the job does
    sys.stdin.buffer.read()
    _kill(sys.argv[1])
