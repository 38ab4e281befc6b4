"""Commands of the program, run in a child process as users do, or in this process, which saves the seconds that imports take."""

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 300  # of a child


def run(*words: object, program: object = sys.executable, **options) -> subprocess.CompletedProcess[str]:
    """Run Python, or another program, with these words in a child process; its folder is the repository where `cwd` names no other."""
    options = {"cwd": ROOT, "timeout": LIMIT_S, "check": False} | options
    return subprocess.run([str(program), *map(str, words)], capture_output=True, text=True, **options)


def run_limited(limit: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a child process inside a limit of the shell, such as `ulimit -f 20`."""
    return run("-c", f'{limit}; exec "$@"', "sh", sys.executable, *words, program="sh")


def help_of(module: str) -> str:
    """Return what `python -m MODULE --help` prints; check that the child has loaded no TensorFlow, and nothing of the rooms that need it."""
    heavy = {"tensorflow", "horovod", "model"}
    show = f"print(sorted({heavy} & set(sys.modules)))"
    code = f"import runpy, sys\ntry: runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\nfinally: {show}"
    ended = run("-c", code, "--help")
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.endswith("\n[]\n"), ended
    return ended.stdout


def run_here(*words: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run what `python WORDS` runs, `-m MODULE FLAGS` or `SCRIPT FLAGS`, in this process: its module is `__main__` meanwhile.

    The output is Python's: what libraries write in C++ is not in it. A proof about signals, forks, imports or the exit of a process needs `run`.
    """
    options = list(takewhile(("-u", "-m").__contains__, words))
    first, *flags = map(str, words[len(options) :])
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, pytest.MonkeyPatch.context() as patch, _process_kept():
        patch.chdir(cwd)
        patch.setattr(sys, "argv", [first, *flags])
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)  # a test has imported the module already
            code = _code_of(runpy.run_module if "-m" in options else runpy.run_path, first)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([first, *flags], code, out.read(), err.read())


@contextmanager
def _process_kept() -> Iterator[None]:
    """Restore the environment and the signal handlers that a command sets for the rest of its process."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    variables, handlers = dict(os.environ), [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _code_of(execute, first: str) -> int:
    """Return the exit code of a module or script; Python prints what `sys.exit` is given and is no number."""
    alter = {"alter_sys": True} if execute is runpy.run_module else {}
    try:
        execute(first, run_name="__main__", **alter)
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


def do(command: ModuleType, *words: object) -> int:
    """Call a command's main with these words, of whatever type; return its exit code."""
    return command.main([str(word) for word in words])
