"""Runs of pytest in children of this process, which has imported TensorFlow for all of them: this saves seconds in each of hundreds of runs."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

_MOST_BYTES = 6 * 2**30  # memory limit: a mutant may loop and allocate without end
_PR_SET_PDEATHSIG = 1
_MARK = "DLRM_MUTANT_RUN"  # variable of a run's processes, by which those in other sessions are found
_END_S = 60
_PAGE = os.sysconf("SC_PAGE_SIZE")
OURS = ("benchmarks", "dataloading", "model", "preproc", "report", "run", "served", "serving", "training", "utils", "tests")


class Outcome(NamedTuple):
    """The result of a run of tests."""

    code: int | None  # pytest's exit code; None where the run reached its limit, or was killed by a signal
    seconds: float
    failed: str  # the first test that failed, or another cause of failure
    durations: Mapping[str, float]  # of the tests that passed


class Chosen:
    """A pytest plugin that runs the given tests of the files only, in the given order, and records each result."""

    def __init__(self, tests: Sequence[str] | None):
        self._order = None if tests is None else {name: i for i, name in enumerate(tests)}
        self.durations: dict[str, float] = {}
        self.failed = ""
        self._setup_s = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        if self._order is not None:
            items[:] = sorted((item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.failed:
            self.failed = report.nodeid
        if report.when == "setup":
            self._setup_s = report.duration
        elif report.when == "call" and report.passed:
            self.durations[report.nodeid] = self._setup_s + report.duration

    def pytest_collectreport(self, report):
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid}: cannot be collected"


def run_tests(
    tree: Path,
    files: Collection[str],
    tests: Sequence[str] | None,
    limit_s: float,
    log: Path,
    environment: Mapping[str, str],
    plugins=lambda: (),
    each_s: float = 600,
) -> Outcome:
    """Run tests of a tree in a child process, and kill all processes and remove all temporary files that are left of it.

    Args:
        tree: the repository to run them in.
        files: the files of tests.
        tests: the tests to run, in order, up to the first failure; None for all tests, without a stop at failures.
        limit_s: time limit in seconds, after which the run is killed.
        log: the file for its output.
        environment: variables added to those of this process.
        plugins: makes further plugins of pytest, in the child.
        each_s: the limit of one test in seconds.
    """
    began, answer, mark = time.monotonic(), log.with_suffix(".answer"), uuid.uuid4().hex
    answer.unlink(missing_ok=True)
    temporary = tempfile.mkdtemp(prefix="mutant-")
    pid = os.fork()
    if pid == 0:
        _child(tree, files, tests, log, answer, {**environment, _MARK: mark, "TMPDIR": temporary}, plugins, each_s)
    code = None
    try:
        while time.monotonic() - began < limit_s:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                break
            # The second field of statm: the resident pages.
            if int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE > _MOST_BYTES:
                break
            time.sleep(0.05)
    finally:  # also where a signal ends this process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # the processes that tests have left running, too
        if code is None:
            os.waitpid(pid, 0)
        _end_all(mark)
        shutil.rmtree(temporary, ignore_errors=True)
    seconds = time.monotonic() - began
    try:
        failed, durations = json.loads(answer.read_text())
    except (OSError, ValueError):
        failed, durations = ("ran longer than its limit, or needed too much memory" if code is None else f"ended with code {code}"), {}
    if code == 4:
        failed = failed or "pytest cannot start: a conftest.py file fails"
    return Outcome(None if code is None or code < 0 else code, seconds, failed, durations)


def _end_all(mark: str) -> None:
    """Kill the processes of a run that have left its process group, as workers that stay from test to test."""
    deadline = time.monotonic() + _END_S
    while found := [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if f"{_MARK}={mark}".encode() in _variables(path)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {found} of a run do not end")
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)


def _variables(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # it has just ended, or is another user's
        return []


def _child(tree, files, tests, log, answer, environment, plugins, each_s) -> None:
    code = 70
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(environment)
        tempfile.tempdir = None  # the parent's
        os.chdir(tree)
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        own = Path(__file__).resolve().parents[2]
        sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path).resolve() not in (own, Path(__file__).resolve().parent))]
        chosen = Chosen(tests)
        stop = ["-x"] if tests is not None else []
        arguments = [
            *files,
            *stop,
            f"--timeout={each_s:.0f}",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            "--rootdir",
            str(tree),
            "-c",
            str(tree / "pyproject.toml"),
        ]
        code = int(pytest.main(arguments, plugins=[chosen, *plugins()]))
        answer.write_text(json.dumps([chosen.failed, chosen.durations]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
