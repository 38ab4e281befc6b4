"""Tests of a launcher that dies: workers notice, save and end; the end of another process is not taken for the launcher's."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from launching import ROOT, environment, launch, processes, wait_for
from small_data import FLAGS, write_dataset

from utils.checkpoint.lock import Lock
from utils.checkpoint.reading import Checkpoint
from utils.cluster.ancestors import Process, launchers
from utils.distributed import World

# False where sh replaces itself with the command of -c instead of waiting for it. There, mpirun replaces horovodrun, as in the second test.
with subprocess.Popen(["/bin/sh", "-c", "cat /proc/self/stat"], stdout=subprocess.PIPE, text=True) as _shell:
    SHELL_WAITS = _shell.stdout.read().split()[0] != str(_shell.pid)
LIMIT_S = 90  # limit from the launcher's end to that of the last worker

# Real workers ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("launcher") / "dataset", {"train": 4800, "test": 100})


@pytest.fixture
def training(data, tmp_path):
    """Return a function that trains on two workers and ends their launcher by a signal after 50 steps.

    It returns the Launch, the process id of the launcher and the step of the checkpoint.
    """
    flags = ("--dataset_path", data, *FLAGS, "--epochs", "100000", "--evals_per_epoch", "0", "--print_freq", "50", "--log_path", tmp_path / "log")
    ended = []

    def run(signum, victim=lambda running: running.process.pid, launcher=()):
        def during(running):
            wait_for(lambda: "step 50/" in running.out, "50 steps", 240)
            ended.append(victim(running))
            os.kill(ended[0], signum)
            wait_for(lambda: not processes(running.mark), "the workers end", LIMIT_S)

        command = (sys.executable, "-u", ROOT / "dlrm.py", *flags, "--save_checkpoint_path", tmp_path / "c")
        result = launch(1 if launcher else 2, *launcher, *command, during=during, horovodrun=True)
        assert "Traceback" not in result.err, result.err
        Lock(tmp_path / "c").release()  # the constructor raises if a process still holds the lock
        checkpoint = Checkpoint(tmp_path / "c")
        checkpoint.verify(World())
        return result, ended[0], checkpoint.step

    return run


@pytest.mark.costly("workers are started as users do, and lose their launcher")
@pytest.mark.skipif(not SHELL_WAITS, reason="horovodrun becomes mpirun here")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_workers_save_and_end_when_horovodrun_is_gone(training, signum):
    result, number, step = training(signum)
    assert result.code == -signum
    assert len(result.errors) == 1, result.err
    reason = f"the launcher( \\(horovodrun, process {number}\\))? is gone"  # with the process id if the worker that reports noticed it itself
    assert re.search(
        f"dlrm.py: error: stopped because {reason}, after step {step}, which is saved; to resume, run the same command", result.errors[0]
    )


@pytest.mark.costly("workers are started as users do, and lose their launcher")
def test_workers_save_when_mpirun_is_gone(training):
    """Workers save although Open MPI would end them a second after mpirun, and nothing reads their output any more."""

    def mpirun(running):
        return next(number for number, (_, words) in processes(running.mark).items() if words[0] == "mpirun")

    _, _, step = training(signal.SIGKILL, mpirun)
    assert step >= 50


@pytest.mark.costly("workers are started as users do, and lose their launcher")
def test_workers_save_when_the_horovodrun_of_gloo_is_gone(training):
    """Workers save although horovodrun's helper processes end them five seconds later."""
    _, _, step = training(signal.SIGKILL, launcher=("horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"))
    assert step >= 50


# A stub for mpirun, and a worker that does not train --------------------------------------------------

WORKER = f"""
import os, sys, time
sys.path[0] = {str(ROOT)!r}
from utils import launch
from utils.cluster import launcher
from utils.signals import StopRequest

launcher.watch("worker")
launcher.GRACE_S = 3.0 if sys.argv[1] == "trains" else 1.0
if sys.argv[1] == "evaluates":
    print("up", flush=True)
    time.sleep(600)
with StopRequest() as stop:
    print("up", flush=True)
    if sys.argv[1] == "hangs":
        time.sleep(600)
    while not stop.signum:
        time.sleep(0.05)
    end = time.monotonic() + launcher.GRACE_S + 0.5  # saves for longer than it may hang
    while time.monotonic() < end:
        launch.progressed()
        time.sleep(0.05)
os.write(2, f"saved: {{stop.reason}}".encode())
"""
BY_HOROVODRUN = "mpirun --allow-run-as-root --tag-output -np 1 -H localhost:1 "


class Standin:
    """A launch of the worker in a session of its own, by a shell and a stub for mpirun. If AFTER names a file, mpirun first waits for it."""

    def __init__(self, folder, text, **variables):
        mpirun = folder / "mpirun"
        waits = 'until [ -z "$AFTER" ] || [ -e "$AFTER" ]; do sleep 0.1; done'
        mpirun.write_text(f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift 2; done\n{waits}\n{sys.executable} {folder}/worker.py "$1"\n')
        mpirun.chmod(0o755)
        (folder / "worker.py").write_text(WORKER)
        self.mark = f"DLRM_TEST_LAUNCH={os.getpid()}-{time.monotonic_ns()}"
        env = environment(self.mark) | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"} | variables
        env["PATH"] = f"{folder}:{env['PATH']}"
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["/bin/sh", "-c", text], env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        while found := processes(self.mark):
            for number in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def up(self):
        assert self.process.stdout.readline() == "up\n"

    def last_words(self):
        """Wait until no process is left and return the worker's standard error."""
        wait_for(lambda: not processes(self.mark), "all end", 90)
        return self.process.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("trains", r"saved: the launcher \((horovodrun|mpirun), process {0}\) is gone"),
        ("evaluates", r"worker: error: the launcher \((horovodrun|mpirun), process {0}\) is gone, so this run ends\n"),
        ("hangs", r"worker: error: worker 0: the launcher \((horovodrun|mpirun), process {0}\) is gone, and no progress was made for 1 s: .*\n"),
    ],
)
def test_worker_saves_or_ends_when_its_launcher_is_gone(tmp_path, state, words):
    with Standin(tmp_path, BY_HOROVODRUN + state) as standin:
        standin.up()
        standin.process.kill()
        assert re.fullmatch(words.format(standin.process.pid), standin.last_words())


def test_a_launcher_that_is_gone_before_the_worker_starts_is_noticed(tmp_path):
    with Standin(tmp_path, BY_HOROVODRUN + "trains", AFTER=str(tmp_path / "gone")) as standin:
        wait_for(lambda: any(str(tmp_path / "mpirun") in words for _, words in processes(standin.mark).values()), "mpirun starts", 60)
        standin.process.kill()
        standin.process.wait()
        (tmp_path / "gone").touch()
        assert standin.last_words() in (
            "saved: the launcher (horovodrun) is gone",
            "worker: error: the launcher (horovodrun) is gone, so this run ends\n",
            "",
        )


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("mpirun -np 1 trains; true", {}),  # the user's shell may end while mpirun goes on
        ("nohup mpirun -np 1 trains & wait", {}),
        (f"{sys.executable} $FOLDER/worker.py trains; true", {}),  # no launcher
    ],
)
def test_end_of_a_shell_is_not_taken_for_the_launchers(tmp_path, text, variables):
    with Standin(tmp_path, text, FOLDER=str(tmp_path), **variables) as standin:
        standin.up()
        standin.process.kill()
        standin.process.wait()
        time.sleep(1.5)
        assert any(str(tmp_path / "worker.py") in words for _, words in processes(standin.mark).values())


def line(*commands):
    return [
        Process(100 - i, 99 - i, 1, tuple(command.split(None, 2) if "sh -c " in command else command.split())) for i, command in enumerate(commands)
    ]


MPI, GLOO, SRUN = {"OMPI_COMM_WORLD_SIZE": "2"}, {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, {"PMI_SIZE": "2"}
SHELL = "/bin/sh -c mpirun --allow-run-as-root --tag-output -np 2 -H a:2 python dlrm.py"
SPAWN = "python -c from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork"


@pytest.mark.parametrize(
    ("variables", "commands", "watched"),
    [
        (MPI, ["mpirun -np 2 x", SHELL, "-bash", "sshd: me"], [0, 1]),
        (MPI, ["mpirun --allow-run-as-root --tag-output -np 2 x", "-bash"], [0]),  # a shell replaced itself with its command
        (MPI, ["bash -c run.sh", "/usr/bin/mpirun -np 2 x", "bash -c mpirun -np 2 x"], [1]),  # a wrapper of the worker; the user's own shell
        (MPI, ["mpirun.real -np 2 x", "bash /opt/bin/mpirun -np 2 x", SHELL], [1, 2]),
        (MPI, ["mpirun -np 2 x", "/bin/sh -c mpirun -l -np 2 -ppn 2 x"], [0, 1]),  # MPICH
        (MPI, ["orted -mca ess env", "bash -c orted -mca", "sshd: me@notty", "sshd"], [0]),
        (MPI, ["orted -mca ess slurm", "slurmstepd: [7.0]"], [0]),
        (SRUN, ["slurmstepd: [7.0]", "init"], []),
        (MPI, ["python worker.py", "-bash"], []),  # a worker whose launcher is not visible
        (GLOO, ["sh -c env HOROVOD_RANK=0 x", SPAWN, "python /v/bin/horovodrun --gloo x", "-bash"], [1, 2]),
        (GLOO, [SPAWN, "python -m horovod.runner.launch --gloo x", "-bash"], [0, 1]),
        (GLOO, ["bash -c cd /x; env HOROVOD_RANK=1 y", "sshd: me@notty"], []),
        ({}, ["mpirun -np 2 x", SHELL], []),
    ],
)
def test_launcher_processes_are_found(variables, commands, watched):
    found = line(*commands)
    assert launchers(found, variables) == [found[i] for i in watched]


def test_ended_process_is_detected_before_it_is_reaped():
    me = Process.of(os.getpid())
    assert not me.ended and Process.of(2**22 + 1) is None
    with subprocess.Popen(["sleep", "100"]) as child:
        other = Process.of(child.pid)
        child.kill()
        wait_for(lambda: other.ended, "noticed although not reaped", 60)
