"""Child processes of tests: started with the signal dispositions that a test needs, and always ended."""

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
    """Start children inside this block with default dispositions of SIGHUP, SIGINT and SIGTERM, except that they ignore those of `ignored`.

    A child inherits ignored signals: SIGINT where a script started the suite in the background, SIGHUP under nohup. Signals
    with a handler are reset to their default in the child, so a handler is set here for the time of the block. `preexec_fn`
    would do the same, but may hang in a process with threads.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            if number in ignored:
                signal.signal(number, signal.SIG_IGN)
            elif before[number] == signal.SIG_IGN:
                signal.signal(number, lambda *_: None)  # this process keeps ignoring it
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def child(words: Sequence[object], ignored: Sequence[int] = (), cwd: Path = ROOT, **options) -> Iterator[subprocess.Popen]:
    """Run a command with the signal dispositions of one started in a terminal; kill it if it still runs when the block is left."""
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
    """Return the paths in a folder that match a pattern; none where another process removes a folder during the search."""
    try:
        return set(folder.glob(pattern))
    except FileNotFoundError:
        return set()


def wait_for(condition: Callable[[], object], process: subprocess.Popen, limit_s: float = 60) -> None:
    """Wait until a condition holds; fail where the process ends first or the time limit passes."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}: {process.communicate()}"
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.01)
