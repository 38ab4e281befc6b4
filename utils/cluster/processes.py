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
from typing import Any

_PROC = Path("/proc")
MARK = "DLRM_JOB"  # in the environment of what a guard ends
_GONE_S = 120.0  # how long memory is waited for that the system takes back, a second for some 15 GiB


class Guard:
    """What it starts, and all that this starts, ends when this process is killed: a process of its own sees to it, which runs before."""

    def __init__(self):
        self._mark = f"{MARK}={os.getpid()}-{time.monotonic_ns()}"
        words = [sys.executable, "-I", __file__, self._mark]  # -I: this folder's logging.py is not Python's
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def start(self, words: Sequence[str] | str, env: Mapping[str, str], **options: Any) -> subprocess.Popen:
        """Start a command that Ctrl-C does not reach; its processes are known by a mark in their environment, whoever their parent is now.

        Args:
            words: the command.
            env: its environment.
            options: of `subprocess.Popen`.

        Raises:
            OSError: it cannot be started; the guard is ended.
        """
        try:
            return subprocess.Popen(words, env={**env, **dict([self._mark.split("=")])}, start_new_session=True, **options)
        except BaseException:
            self.end()
            raise

    def find(self) -> list[int]:
        """Their ids, on this host."""
        return _marked(self._mark)

    def kill(self) -> None:
        """End them; they have given back memory and locks when this returns."""
        _kill(self._mark)

    def end(self) -> None:
        """End the guard itself."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


class Job:
    """A command that Ctrl-C does not reach, and all it starts: known by a mark in their environment, whoever their parent is now.

    A context manager; none of its processes on this host is left behind it, nor when this process is killed.

    Args:
        words: the command.
        env: its environment.
        hear: called with every line that it writes to standard error; the line is passed on to ours.
    """

    def __init__(self, words: Sequence[str], env: Mapping[str, str], hear: Callable[[str], None]):
        self._words, self._env, self._hear = list(words), dict(env), hear

    def __enter__(self) -> "Job":
        self._guard = Guard()
        self._process = self._guard.start(self._words, self._env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._reader.join(10)
        self._guard.end()

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
        return [number for number in self._guard.find() if wanted(_strings(number, "cmdline"), _strings(number, "environ"))]

    def kill(self) -> None:
        """End all of its processes at once. Those that mpirun started on other hosts end with it."""
        self._guard.kill()
        self._process.wait()

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
    """End all that have the mark, and wait until the system has taken back what they held.

    One that has been killed has no environment at once, but its memory and its locks until its last thread is gone.
    """
    looks_without, killed = 0, {}
    while looks_without < 2:  # one that executes a program at this moment has no environment to be known by
        found = _marked(mark)
        looks_without = 0 if found else looks_without + 1
        for number in found:
            killed.setdefault(number, _started(number))
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)
    deadline = time.monotonic() + _GONE_S
    while any(start and _started(number) == start for number, start in killed.items()) and time.monotonic() < deadline:
        time.sleep(0.02)


def _started(number: int) -> int:
    """When a process began, in clock ticks, to tell it from a later one of that number; 0 where it and its threads have ended."""
    with contextlib.suppress(OSError):
        state, *rest = (_PROC / str(number) / "stat").read_bytes().decode(errors="replace").rpartition(")")[2].split()
        return 0 if state in "ZX" and int(rest[16]) <= 1 else int(rest[18])
    return 0


if __name__ == "__main__":  # the guard of a job: standard input ends when the process that started the job does
    sys.stdin.buffer.read()
    _kill(sys.argv[1])
