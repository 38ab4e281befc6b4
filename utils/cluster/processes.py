"""Processes and all that they start: found, heard and ended as one."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import psutil

MARK = "DLRM_JOB"  # in the environment of what a guard ends
_GONE_S = 120.0  # how long memory is waited for that the system takes back, a second for some 15 GiB
_LOOK_S = 0.02
_LIBC = ctypes.CDLL(None)  # here: a child between fork and exec should open no library
_PDEATHSIG = 1  # of prctl
_PATIENCE_S = 5.0
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Guard:
    """What it starts, and all that this starts, ends when this process is killed: a process of its own sees to it, which runs before."""

    def __init__(self):
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
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
            return subprocess.Popen(words, env={**env, MARK: self._mark}, start_new_session=True, **options)
        except BaseException:
            self.end()
            raise

    def find(self) -> list[psutil.Process]:
        """They, on this host."""
        return _marked(self._mark)

    def kill(self) -> None:
        """End them; they have given back memory and locks when this returns."""
        end_all(self.find)

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

    def find(self, wanted: Callable[[list[str], Mapping[str, str]], bool]) -> list[psutil.Process]:
        """Those of its processes whose command and environment are wanted."""
        return [process for process in self._guard.find() if wanted(words(process), environment(process))]

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


def ends_with_this_process() -> Callable[[], None]:
    """For `preexec_fn` of a child: SIGTERM comes to it when this process is no more, or the thread that starts it; Linux only."""
    parent = os.getpid()

    def arm() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of ours would take the signal and be forgotten by exec
        _LIBC.prctl(_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before: no signal comes any more
            os._exit(1)

    return arm


def run(words: Sequence[str], **options: object) -> subprocess.CompletedProcess:
    """`subprocess.run` of a program with text for output; what ends the wait, a signal for instance, ends the program first.

    Args:
        words: the command.
        options: of `subprocess.Popen`.
    """
    with subprocess.Popen(words, text=True, preexec_fn=ends_with_this_process(), **options) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            _end_gently(process)
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def _end_gently(process: subprocess.Popen) -> None:
    """Gently at first: Python's programs, pip for one, tidy up after SIGINT and not after SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_PATIENCE_S)
            return


def of_group(number: int) -> list[psutil.Process]:
    """Those of a process group that run."""

    def there(process: psutil.Process) -> bool:
        with contextlib.suppress(OSError):
            return os.getpgid(process.pid) == number and not ended(process)
        return False

    return [process for process in psutil.process_iter() if there(process)]


def send(number: int, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to each; to one that has just ended by itself none."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def end_all(found: Callable[[], Iterable[psutil.Process]], limit_s: float = _GONE_S) -> None:
    """Kill processes until none is found, and wait until the system has taken back what they held.

    One that has been killed cannot be found at once, but its memory and its locks are held until its last thread is gone.

    Args:
        found: called again and again: those that are there.
        limit_s: how long the memory is waited for.
    """
    looks_without, killed = 0, set()
    while looks_without < 2:  # one that executes a program at this moment has neither command nor environment to be known by
        processes = set(found())
        looks_without = 0 if processes else looks_without + 1
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed |= processes
        time.sleep(_LOOK_S)
    deadline = time.monotonic() + limit_s
    while any(map(holds_memory, killed)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def ended(process: psutil.Process) -> bool:
    """Whether it has ended, reaped by its parent or not; its number may be another's by now."""
    try:
        return not process.is_running() or process.status() in _ENDED
    except psutil.Error:
        return True


def holds_memory(process: psutil.Process) -> bool:
    """Whether it runs, or is ending and some of its threads are not gone."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and not (process.status() in _ENDED and process.num_threads() <= 1)
    return False


def environment(process: psutil.Process) -> dict[str, str]:
    """Its variables; none where it has ended, or is not ours."""
    with contextlib.suppress(psutil.Error):
        return process.environ()
    return {}


def words(process: psutil.Process) -> list[str]:
    """Its command; none where it has ended, or is not ours."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if environment(process).get(MARK) == mark]


if __name__ == "__main__":  # the guard of a job: standard input ends when the process that started the job does
    sys.stdin.buffer.read()
    end_all(lambda: _marked(sys.argv[1]))
