"""A training run as a child process, for tests to disturb."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.children import dispositions
from tests.cli.runs import write_dataset as small_dataset
from tests.distributed.launching import MPI
from tests.left_out import starts
from utils.checkpoint.folder import complete_steps
from utils.checkpoint.reading import Checkpoint
from utils.distributed import World

ROOT = Path(__file__).parents[2]
EVERY = 4  # steps between checkpoints
BATCHES = 24  # batches of an epoch
MODEL = ("--embedding_dim", "16", "--bottom_mlp_dims", "16", "--top_mlp_dims", "16,1")
DATA = ("--batch_size", "64", "--valid_batch_size", "128", "--shuffle_batch_order", "--evals_per_epoch", "2")
OPTIMIZER = ("--optimizer", "adam", "--learning_rate", "0.01", "--warmup_steps", "0")
RUN = ("--cpu", *MODEL, *DATA, *OPTIMIZER, "--print_freq", "1", "--gradient_slices", "2")
WIDE_MODEL = ("--interaction", "wide_and_deep", "--embedding_dim", "16", "--top_mlp_dims", "16,1", "--dropout", "0.1")
WIDE_OPTIMIZERS = ("--optimizer", "rmsprop", "--rho", "0.5", "--learning_rate", "0.001", "--linear_learning_rate", "0.02")
WIDE_RUN = ("--cpu", *WIDE_MODEL, *DATA, *WIDE_OPTIMIZERS, "--print_freq", "1", "--gradient_slices", "2")
FM_MODEL = ("--interaction", "fm", "--embedding_dim", "16", "--top_mlp_dims", "16,1", "--batch_norm")
FM_RUN = ("--cpu", *FM_MODEL, *DATA, *OPTIMIZER, "--linear_optimizer", "ftrl", "--print_freq", "1", "--gradient_slices", "2")
TWO_STREAMS = ("--interaction", "finalmlp", "--embedding_dim", "16", "--stream1_dims", "16,8", "--stream2_dims", "16", "--num_heads", "4")
TWO_STREAMS_RUN = ("--cpu", *TWO_STREAMS, "--gate_dims", "8", "--dropout", "0.1", *DATA, *OPTIMIZER, "--print_freq", "1", "--gradient_slices", "2")
LAZY_RUN = (*RUN, "--table_storage", "lazy", "--table_storage_above", "10000", "--table_memory_gb", "0.5")
# Flags of models other than DLRM, and of DLRM with lazy tables.
MODELS = {
    "Wide & Deep": WIDE_RUN,
    "DeepFM": FM_RUN,
    "FinalMLP": TWO_STREAMS_RUN,
    "DLRM, lazy": LAZY_RUN,
    "DLRM, touched rows": (*RUN, "--checkpoint_rows", "touched"),
}
PHASES = {"arrays": "while arrays were written", "manifest": "after the manifest, before the rename", "removal": "while an old one was removed"}


def write_dataset(folder: Path) -> Path:
    """Write a dataset of 24 batches, the last one partial, with tables so large that a save takes a while."""
    return small_dataset(folder, (60_000, 3_000, 9), {"train": 64 * BATCHES - 20, "test": 300})


class Victim:
    """dlrm.py in a child process, on one worker or several; `out` and `err` grow while it runs.

    Args:
        folder: working folder of the run, also for the log.
        flags: flags of dlrm.py.
        workers: the number of workers.
        horovodrun: start several workers with horovodrun, as users do; it imports TensorFlow first, which takes as long as a worker's start.
        around: words of a command that runs the command, such as nohup.
        log: the flag for the log; by default the log is log.json in the folder.
        command: a whole command, which replaces the other arguments.
    """

    started: ClassVar[list["Victim"]] = []

    @classmethod
    def end_all(cls) -> None:
        """Kill the processes that still run after a failed assertion."""
        for victim in cls.started:
            if victim.process.poll() is None:
                victim.kill()
                victim.process.kill()
                victim.process.wait()
            victim.close()
        cls.started.clear()

    def __init__(
        self, folder: Path, *flags, workers: int = 1, horovodrun: bool = False, around: tuple = (), log: tuple = (), command: list | None = None
    ):
        python = [sys.executable, "-u", ROOT / "dlrm.py", *flags, *(log or ("--log_path", folder / "log.json"))]
        start = ["horovodrun", "--mpi-args=--oversubscribe"] if horovodrun else MPI.split()
        launcher = [*start, "-np", workers, "-H", f"localhost:{workers}"] if workers > 1 else []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        starts("runs that are disturbed")
        environment = os.environ | {"PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = list(map(str, command or (*around, *launcher, *python)))
        pipe = subprocess.PIPE
        with dispositions():
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        self.started.append(self)
        self.out, self.err = "", ""
        self._threads = [threading.Thread(target=self._collect, args=(name,), daemon=True) for name in ("out", "err")]
        for thread in self._threads:
            thread.start()

    def _collect(self, name: str) -> None:
        for line in self.process.stdout if name == "out" else self.process.stderr:
            setattr(self, name, getattr(self, name) + re.sub(r"^\[1,\d+\]<std(out|err)>:", "", line))

    @property
    def step(self) -> int:
        """The last step that the run has reported."""
        found = re.findall(r"step (\d+)/", self.out)
        return int(found[-1]) if found else 0

    def wait_until(self, condition: Callable[[], object], limit_s: float = 240) -> bool:
        """Wait until a condition holds; return False where the run ended before."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if condition():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.0005)
        self.kill()
        raise AssertionError(f"hangs:\n{self.out[-2000:]}\n{self.err[-2000:]}")

    def workers(self) -> list[int]:
        """Return the process ids of dlrm.py."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                mine = os.getsid(int(entry.name)) == self.process.pid or self._launched(entry)
                if mine and b"python" in Path(words[0].decode()).name.encode() and str(ROOT / "dlrm.py").encode() in words:
                    found.append(int(entry.name))
        return found

    def _launched(self, entry: Path) -> bool:
        """Return True if a process descends from ours; horovodrun starts a session of its own."""
        number = int(entry.name)
        while number > 1:
            if number == self.process.pid:
                return True
            # The parent's id is the second field behind the command's name, which is in parentheses and may hold blanks itself.
            number = int((Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()[1])
        return False

    def kill(self, which: int | None = None) -> None:
        """Kill (kill -9) one worker, or all."""
        found = sorted(self.workers())
        for number in found if which is None else found[which % len(found) :][:1] if found else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def end(self, limit_s: float = 240) -> int:
        """Wait until the run ends; return its exit code."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"hangs:\n{self.out[-2000:]}\n{self.err[-2000:]}") from None
        self.close()
        return code

    def close(self) -> None:
        """Close the pipes once all output has been read; pipes that another process holds stay open."""
        for thread, pipe in zip(self._threads, (self.process.stdout, self.process.stderr), strict=True):
            thread.join(60)
            if not thread.is_alive():
                pipe.close()

    @property
    def errors(self) -> list[str]:
        """The error lines; a traceback fails the test."""
        assert "Traceback" not in self.err, self.err
        return [line for line in self.err.splitlines() if "error: " in line and line.startswith("dlrm.py")]


def interrupted_in(folder: Path) -> str:
    """Return the part of a save in which a kill interrupted it, judged by the files left; empty outside a save."""
    names = [entry.name for entry in folder.iterdir()] if folder.exists() else []
    if any(name.endswith(".removing") for name in names):
        return "removal"
    writing = [name for name in names if name.startswith(".step-") and name.endswith(".writing")]
    if not writing:
        return ""
    return "manifest" if (folder / writing[0] / "manifest.json").exists() else "arrays"


def check_all(folder: Path) -> list[int]:
    """Read every byte of every checkpoint; return their steps, newest first."""
    found = [Checkpoint(step) for step in complete_steps(folder)] if folder.exists() else []
    for checkpoint in found:
        checkpoint.verify(World())
    return [checkpoint.step for checkpoint in found]


def contents(path: Path) -> dict[str, np.ndarray]:
    """Return every array of the newest checkpoint."""
    checkpoint = Checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names("")}


def differing(one: Path, other: Path) -> list[str]:
    """Return the names of the arrays that differ in any bit between the newest checkpoints of two folders."""
    first, second = contents(one), contents(other)
    assert first.keys() == second.keys()
    return [name for name in first if not np.array_equal(first[name].view(np.uint32), second[name].view(np.uint32))]
