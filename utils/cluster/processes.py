"""Process trees: starting, finding, reading and ending a process together with all its descendants."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import psutil

MARK = "DLRM_JOB"  # environment variable of the processes that a guard ends
_GONE_S = 120.0  # how long to wait for the system to reclaim memory; it takes a second for some 15 GiB
_LOOK_S = 0.02
_LIBC = ctypes.CDLL(None)  # opened here: a child should open no library between fork and exec
_PDEATHSIG = 1  # PR_SET_PDEATHSIG of prctl
_PATIENCE_S = 5.0
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Guard:
    """A guard process, started first, which ends the process trees started through it when this process is killed."""

    def __init__(self):
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        words = [sys.executable, "-I", __file__, self._mark]  # -I: this folder's logging.py is not Python's
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def start(self, words: Sequence[str] | str, env: Mapping[str, str], **options: Any) -> subprocess.Popen:
        """Start a command that Ctrl-C does not reach; a mark in the environment identifies its processes, whatever their parents.

        Args:
            words: the command.
            env: its environment.
            options: options of `subprocess.Popen`.

        Raises:
            OSError: the command cannot be started; the guard is ended.
        """
        try:
            return subprocess.Popen(words, env={**env, MARK: self._mark}, start_new_session=True, **options)
        except BaseException:
            self.end()
            raise

    def find(self) -> list[psutil.Process]:
        """Return the guarded processes on this host."""
        return _marked(self._mark)

    def kill(self) -> None:
        """Kill the guarded processes and wait until the system has reclaimed their memory and locks, `end_all`'s limit at most."""
        end_all(self.find)

    def end(self) -> None:
        """End the guard itself."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


class Job:
    """A command that Ctrl-C does not reach, with its process tree; a mark in the environment identifies the processes, whatever their parents.

    Use it as a context manager: on exit, and when this process is killed, all of its processes on this host are ended.

    Args:
        words: the command.
        env: its environment.
        hear: called with every line that it writes to standard error; the line is also copied to this process's standard error.
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
        """Wait at most so long for the command to end; return whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        return self._process.returncode is not None

    @property
    def code(self) -> int:
        """The command's exit code in the shell's form: 128 + s where signal s ended it."""
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def find(self, wanted: Callable[[list[str], Mapping[str, str]], bool]) -> list[psutil.Process]:
        """Return the command's processes for whose command line and environment `wanted` returns true."""
        return [process for process in self._guard.find() if wanted(words(process), environment(process))]

    def kill(self) -> None:
        """Kill all of its processes on this host. Those that mpirun started on other hosts end with mpirun."""
        self._guard.kill()
        self._process.wait()

    def _pass_on(self) -> None:
        with self._process.stderr as lines:
            for line in lines:
                with contextlib.suppress(OSError, ValueError):  # nothing reads ours any more: read on, or the command would block
                    sys.stderr.buffer.write(line)
                    sys.stderr.buffer.flush()
                self._hear(line.decode(errors="replace").rstrip())


def start_bound(words: Sequence[str], gives_way: bool = False, **options: Any) -> subprocess.Popen:
    """Start a program that gets SIGTERM when this process, or the thread that starts it, ends; Linux only.

    Args:
        words: the command.
        gives_way: whether the program, with all that it starts, waits for other work on the machine, and has one processor.
        options: options of `subprocess.Popen`.
    """
    process = None
    try:
        with _handlers_wait():
            process = subprocess.Popen(words, preexec_fn=_bound_to(os.getpid(), gives_way), **options)
    except BaseException:
        if process is not None:
            _end_gently(process)
        raise
    if gives_way:
        with contextlib.suppress(OSError, psutil.Error):
            psutil.Process(process.pid).ionice(psutil.IOPRIO_CLASS_IDLE)
    return process


def run(words: Sequence[str], gives_way: bool = False, **options: Any) -> subprocess.CompletedProcess:
    """Run a program like `subprocess.run`, with output as text; an exception during the wait, by a signal for instance, first ends the program.

    Args:
        words: the command.
        gives_way: see `start_bound`.
        options: options of `subprocess.Popen`.
    """
    with start_bound(words, gives_way, text=True, **options) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            _end_gently(process)
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def _bound_to(parent: int, gives_way: bool) -> Callable[[], None]:
    if gives_way:
        from utils.priority import LAST  # here, because a guard runs this file without the project

    last = max(os.sched_getaffinity(0))

    def arm() -> None:
        if gives_way:
            os.setsid()  # where Linux groups processes by session, niceness counts within a session, so it has one of its own with this niceness
            with contextlib.suppress(OSError):
                group = os.open("/proc/self/autogroup", os.O_WRONLY)
                os.write(group, str(LAST).encode())
                os.close(group)
            os.setpriority(os.PRIO_PROCESS, 0, LAST)
            os.sched_setaffinity(0, {last})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # before exec, an inherited handler would swallow the signal
        _LIBC.prctl(_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent was killed before prctl: no signal will come
            os._exit(1)

    return arm


@contextlib.contextmanager
def _handlers_wait() -> Iterator[None]:
    """Call the handlers of SIGHUP, SIGINT and SIGTERM at the end of this block only.

    With a `preexec_fn`, Python runs functions after the fork and ignores what is raised in them: there, a handler's exception would be lost.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    with contextlib.ExitStack() as after:  # does all of it, even where a handler raises meanwhile
        after.callback(lambda: [handlers[number](number, None) for number in came])
        for number, handler in handlers.items():
            if callable(handler):
                after.callback(signal.signal, number, handler)
                signal.signal(number, lambda number, _: came.append(number))
        yield


def _end_gently(process: subprocess.Popen) -> None:
    """End a process by SIGINT, then SIGTERM, then SIGKILL: Python programs, such as pip, clean up after SIGINT but not after SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_PATIENCE_S)
            return


def of_group(number: int) -> list[psutil.Process]:
    """Return the running processes of a process group."""

    def there(process: psutil.Process) -> bool:
        with contextlib.suppress(OSError):
            return os.getpgid(process.pid) == number and not ended(process)
        return False

    return [process for process in psutil.process_iter() if there(process)]


def send(number: int, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to each process; skip those that have ended meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def end_all(found: Callable[[], Iterable[psutil.Process]], limit_s: float = _GONE_S) -> None:
    """Kill processes until none is found, and wait until the system has reclaimed their memory and locks.

    A killed process is no longer found, but its memory and its locks are held until its last thread has ended.

    Args:
        found: returns the processes that exist; called repeatedly.
        limit_s: how long to wait for the memory.
    """
    looks_without, killed = 0, set()
    while looks_without < 2:  # twice, for a process in the middle of exec has no command and no environment to be found by
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
    """Return whether a process has ended, reaped by its parent or not; its number may belong to another process by now."""
    try:
        return not process.is_running() or process.status() in _ENDED
    except psutil.Error:
        return True


def holds_memory(process: psutil.Process) -> bool:
    """Return whether a process runs, or is ending while some of its threads still exist."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and not (process.status() in _ENDED and process.num_threads() <= 1)
    return False


def environment(process: psutil.Process) -> dict[str, str]:
    """Return a process's environment variables; none where it has ended or access is denied."""
    with contextlib.suppress(psutil.Error):
        return process.environ()
    return {}


def words(process: psutil.Process) -> list[str]:
    """Return the words of a process's command line; none where it has ended or access is denied."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if environment(process).get(MARK) == mark]


if __name__ == "__main__":  # the guard process: its standard input ends when the process that started it does
    sys.stdin.buffer.read()
    end_all(lambda: _marked(sys.argv[1]))
