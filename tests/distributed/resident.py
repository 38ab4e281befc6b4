"""Workers that stay: groups of 1, 2 and 4 which run command lines and functions of many tests in turn, as a launch takes longer than most of them.

All test processes of a run share the groups. A group starts with its first job, is stopped (SIGSTOP) between jobs, since Horovod's threads would use
the processors, and is killed when the run ends. A worker that ends during a job ends its group, as in a launch; the next job starts another one.
Only tests that kill nobody use them; a launch (`launching.py`) is for tests of starts, ends and signals.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(Path(__file__).parent)]  # as pytest has it

from tests.distributed.launching import MPI, Launch, environment, wait_for  # noqa: E402
from tests.left_out import starts  # noqa: E402

FOLDER, CONTROLLER = "DLRM_TEST_RESIDENTS", "DLRM_TEST_CONTROLLER"  # of a run: the folder of its groups, the process that ends last
NUMBERS = (1, 2, 4)  # of workers
_OF_MPI = ("OMPI_", "PMIX_", "OPAL_", "PRTE_", "HYDRA_")
spent_s = 0.0  # processor seconds of the groups' workers for jobs of this process


def do_in_turn(workers: int, commands: Iterable[Sequence[object]], program: Path = ROOT / "dlrm.py", limit_s: float = 480) -> Launch:
    """Run command lines of a program in turn on N workers that stay; the first that fails ends them.

    Args:
        workers: their number, N: 1, 2 or 4.
        commands: the words of each command line, without the program.
        program: the program's file.
        limit_s: seconds after which the workers are killed and the test fails.
    """
    return _Group(workers).run({"program": str(program), "commands": [list(map(str, words)) for words in commands]}, limit_s)


def call(workers: int, function: str, *arguments: object, limit_s: float = 480) -> Launch:
    """Call a function, named "module:function", with words on N workers that stay; see `do_in_turn`."""
    return _Group(workers).run({"function": function, "arguments": list(map(str, arguments))}, limit_s)


def begin() -> None:
    """Make this process the one with whose end all groups end; pytest's processes that it starts inherit this."""
    os.environ |= {FOLDER: tempfile.mkdtemp(prefix="residents-"), CONTROLLER: str(os.getpid())}
    atexit.register(_remove, os.environ[FOLDER], os.getpid())


def run_folder() -> Path:
    """Return a folder that the test processes of this run share, and that goes with it."""
    if FOLDER not in os.environ:
        begin()
    return Path(os.environ[FOLDER])


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # no fork
        shutil.rmtree(folder, ignore_errors=True)


class _Group:
    """The workers of one number, of which one job at a time is asked; see `_serve` for the files between them and this process."""

    def __init__(self, workers: int):
        assert workers in NUMBERS, f"{workers} workers: start them by `launch`"
        self._workers, self._base = workers, run_folder() / str(workers)
        self._base.mkdir(parents=True, exist_ok=True)

    def run(self, job: dict, limit_s: float) -> Launch:
        starts("workers")
        with (self._base / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._run(job, limit_s)

    def _run(self, job: dict, limit_s: float) -> Launch:
        global spent_s
        begin, folder = time.monotonic(), self._folder()
        number = 1 + len(list(folder.glob("job-*.json")))
        files = [folder / f"{name}-{number}" for name in ("out", "err")]
        for file in files:
            file.touch()
        mark = f"{FOLDER}={os.environ[FOLDER]}"  # no launch's mark: none of these processes belongs to one
        whole = job | {"environment": environment(mark), "files": list(map(str, files))}
        _write(folder / f"job-{number}.json", json.dumps(whole))
        self._signal(folder, signal.SIGCONT)
        answers = [folder / f"answer-{number}-{rank}.json" for rank in range(self._workers)]
        while not all(answer.exists() for answer in answers) and not (folder / "ended").exists():
            if self._gone(folder, answers):
                self._signal(folder, signal.SIGKILL)  # where one exits with 0 before it meets the others, mpirun waits for them
            if time.monotonic() - begin > limit_s:
                self._signal(folder, signal.SIGKILL)
                wait_for((folder / "ended").exists, "the workers' end")
                raise AssertionError(f"{self._workers} workers took more than {limit_s} s: {job}\n{files[1].read_text()}")
            time.sleep(0.01)
        known = [json.loads(answer.read_text()) for answer in answers if answer.exists()]
        spent_s += sum(answer["cpu_s"] for answer in known)
        if len(known) == self._workers:
            self._signal(folder, signal.SIGSTOP)
            code = max(answer["code"] for answer in known)
        else:
            code = int((folder / "ended").read_text()) or 1  # one that ends without an answer has failed
        out, err = (file.read_text() for file in files)
        log = (folder / "log").read_text()[-3000:] if len(known) < self._workers else ""
        return Launch(code, out, err + log, time.monotonic() - begin)

    def _folder(self) -> Path:
        """Return the folder of the group that lives; start one where there is none."""
        folders = sorted(self._base.glob("group-*"))
        if folders and not (folders[-1] / "ended").exists():
            return folders[-1]
        folder = self._base / f"group-{len(folders):04d}"
        folder.mkdir()
        words = [sys.executable, "-u", __file__, "serve", str(folder)]
        if self._workers > 1:
            words = [*MPI.replace("--tag-output ", "").split(), "-np", str(self._workers), "-H", f"localhost:{self._workers}", *words]
        variables = environment(f"{FOLDER}={os.environ[FOLDER]}")
        variables = {name: value for name, value in variables.items() if not name.startswith((*_OF_MPI, "PYTEST_CURRENT_TEST"))}
        keep = [sys.executable, __file__, "keep", os.environ[CONTROLLER], str(folder), *words]
        none = subprocess.DEVNULL
        subprocess.run(keep, cwd=ROOT, env=variables, stdin=none, stdout=none, stderr=none, start_new_session=True, check=True)
        wait_for(lambda: len(list(folder.glob("pid-*"))) == self._workers or (folder / "ended").exists(), f"{self._workers} workers that stay")
        return folder

    @staticmethod
    def _gone(folder: Path, answers: Sequence[Path]) -> bool:
        """Return True if a worker has ended without an answer, and its end is not yet the group's."""
        ended = [not Path(f"/proc/{path.read_text()}").exists() for path in sorted(folder.glob("pid-*"))]
        if not any(ended):
            return False
        time.sleep(1)
        return not all(answer.exists() for answer in answers) and not (folder / "ended").exists()

    @staticmethod
    def _signal(folder: Path, number: int) -> None:
        for path in folder.glob("pid-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), number)


def _write(path: Path, text: str) -> None:
    """Write a file that others see whole only."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(text)
    partial.rename(path)


def _keep(controller: int, folder: Path, words: Sequence[str]) -> None:
    """Run a group in a fork until it ends, and write its exit code; kill it when the controller has ended."""
    if os.fork():
        os._exit(0)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    poll = select.poll()
    for number in (process.pid, controller):
        with contextlib.suppress(ProcessLookupError):
            poll.register(os.pidfd_open(number), select.POLLIN)
    with contextlib.suppress(ProcessLookupError):
        os.kill(controller, 0)
        poll.poll()
    if process.poll() is None:
        process.kill()
        _Group._signal(folder, signal.SIGKILL)
    code = process.wait()
    if folder.exists():
        _write(folder / "ended", str(128 - code if code < 0 else code))


def _serve(folder: Path) -> None:
    """Run the jobs of a folder in the order of their numbers, each in the environment of its test; write an answer to each."""
    from utils import launch

    own = {name: value for name, value in os.environ.items() if name.startswith(_OF_MPI)}
    processors, path, argv = os.sched_getaffinity(0), list(sys.path), list(sys.argv)
    _write(folder / f"pid-{launch.rank()}", str(os.getpid()))
    number = 0
    while True:
        number += 1
        file = folder / f"job-{number}.json"
        while not file.exists():
            time.sleep(0.005)
        job = json.loads(file.read_text())
        begin = _cpu_s()
        os.environ.clear()
        os.environ.update(job["environment"] | own)
        os.chdir(ROOT)
        os.sched_setaffinity(0, processors)
        sys.path[:], sys.argv[:] = path, argv
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for one in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, signal.SIG_DFL)
        for descriptor, name in enumerate(job["files"], 1):
            where = os.open(name, os.O_WRONLY | os.O_APPEND)
            os.dup2(where, descriptor)
            os.close(where)
        # Where the campaign of mutants measures which lines each test executes. Nothing is saved at the end, as these processes are killed.
        measured = sys.modules["coverage"].Coverage.current() if "coverage" in sys.modules else None
        if measured:
            measured.switch_context(os.environ.get("PYTEST_CURRENT_TEST", ""))
        code = _done(job)
        if measured:
            measured.save()
        sys.stdout.flush()
        sys.stderr.flush()
        if code and launch.size() > 1:
            launch.leave(code)  # as a worker of a launch
        gc.collect()
        _write(folder / f"answer-{number}-{launch.rank()}.json", json.dumps({"code": code, "cpu_s": _cpu_s() - begin}))


def _done(job: dict) -> int:
    try:
        if "function" in job:
            module, _, name = job["function"].partition(":")
            getattr(importlib.import_module(module), name)(*job["arguments"])
            return 0
        for words in job["commands"]:
            sys.argv[:] = [job["program"], *words]
            try:
                runpy.run_path(job["program"], run_name="__main__")
            except SystemExit as end:
                if end.code:
                    return end.code if isinstance(end.code, int) else 1
        return 0
    except BaseException:
        traceback.print_exc()
        return 70


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        _keep(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    else:
        _serve(Path(sys.argv[2]))
