"""Child processes of tests: with the dispositions of signals that a test needs, whatever it was started with, and ended in any case."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@contextmanager
def dispositions(ignored: Sequence[int] = ()) -> Iterator[None]:
    """What is started inside hears SIGHUP, SIGINT and SIGTERM, or ignores those of `ignored`.

    A child inherits what is ignored: SIGINT where the suite was started in the background of a script, SIGHUP under
    nohup. What has a handler is not inherited, so handlers here are default dispositions there; no `preexec_fn`, which
    may hang in a process with threads.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            if number in ignored:
                signal.signal(number, signal.SIG_IGN)
            elif before[number] == signal.SIG_IGN:
                signal.signal(number, lambda *_: None)  # here it goes on being ignored
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def child(words: Sequence[object], ignored: Sequence[int] = (), cwd: Path = ROOT, **options) -> Iterator[subprocess.Popen]:
    """A command that hears signals as one started in a terminal does; killed when the block is left and it still runs."""
    pipe = subprocess.PIPE
    with dispositions(ignored):
        process = subprocess.Popen(list(map(str, words)), cwd=cwd, stdout=pipe, stderr=pipe, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def found(folder: Path, pattern: str) -> set[Path]:
    """What a folder holds by a pattern; nothing where another process removes a folder while it is looked into."""
    try:
        return set(folder.glob(pattern))
    except FileNotFoundError:
        return set()


def wait_for(condition: Callable[[], object], process: subprocess.Popen, limit_s: float = 60) -> None:
    """Wait until something is so; fails where the process ends before, or never comes to it."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.01)
