"""Look for leaks in a long run: memory, file descriptors and threads of every worker, as steps and saves go on.

  python -m benchmarks.resources
  python -m benchmarks.resources --workers 1 --steps 20000 --checkpoint_every_steps 200

A run of dlrm.py on small synthetic data, which saves often, is inspected ten times; figures without a leak are constant over the second half.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil

from benchmarks.children import ROOT
from benchmarks.options import Options, run
from benchmarks.report import Report
from utils.config.option import option

LOOKS = 10


@dataclass(frozen=True)
class ResourcesOptions(Options):
    """Resources of a long run."""

    QUICK: ClassVar[dict[str, Any]] = {"workers": 1, "steps": 40, "checkpoint_every_steps": 10}

    num_rounds: int = option(1, "number of runs, one after another", unit="runs")
    workers: int = option(3, "number of workers")
    steps: int = option(3000, "training steps", unit="steps")
    checkpoint_every_steps: int = option(50, "steps between two checkpoints", unit="steps")


def command(options: ResourcesOptions, folder: Path) -> list[str]:
    """Return the command of the observed run."""
    model = ["--embedding_dim", "8", "--bottom_mlp_dims", "16,8", "--top_mlp_dims", "16,1", "--synthetic_dataset_cardinalities", "5000,300,50"]
    batch = 32 * options.workers
    data = ["--dataset_type", "synthetic", "--batch_size", batch, "--valid_batch_size", batch, "--synthetic_dataset_valid_batches", "2"]
    data += ["--synthetic_dataset_train_batches", options.steps, "--evals_per_epoch", "4"]
    often = ["--print_freq", "1", "--checkpoint_every_steps", options.checkpoint_every_steps, "--save_checkpoint_path", folder / "checkpoint"]
    training = ["--cpu", "--optimizer", "adam", "--learning_rate", "0.001", "--warmup_steps", "0", "--log_path", folder / "log.json"]
    words = [sys.executable, "-u", ROOT / "dlrm.py", *model, *data, *often, *training]
    if options.workers > 1:
        words = ["horovodrun", "-np", options.workers, "-H", f"localhost:{options.workers}", "--mpi-args=--oversubscribe", *words]
    return list(map(str, words))


def look(process: psutil.Process) -> list[dict[str, float]]:
    """Return the memory in MiB, the file descriptors and the threads of each worker in a process tree."""
    workers = [one for one in (process, *process.children(recursive=True)) if str(ROOT / "dlrm.py") in one.cmdline() and "python" in one.name()]
    return [{"MiB": one.memory_info().rss / (1 << 20), "descriptors": one.num_fds(), "threads": one.num_threads()} for one in workers]


def measure(options: ResourcesOptions) -> dict[int, list[dict[str, float]]]:
    """Run the command and return the resources of each worker, by step."""
    marks = [options.steps * (i + 1) // LOOKS for i in range(LOOKS)]
    marks[-1] -= 1  # before the last step, while the run has not ended
    found: dict[int, list[dict[str, float]]] = {}
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command(options, Path(folder)), env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        for line in process.stdout:
            step = re.search(r"step (\d+)/", line)
            while step and marks and int(step[1]) >= marks[0]:
                found[int(step[1])] = look(psutil.Process(process.pid))
                marks = [mark for mark in marks if mark > int(step[1])]
        if process.wait():
            errors.seek(0)
            raise RuntimeError(f"the run ended with code {process.returncode}:\n{errors.read().decode()[-2000:]}")
    return found


def main(options: ResourcesOptions, report: Report) -> None:
    """Measure and report."""
    report.figures |= {"by_step": [], "rounds": []}
    for number in range(options.num_rounds):
        found = measure(options)
        report.figures["by_step"].append(found)
        report.figures["rounds"].append({f"worker {i}, last memory_mib": worker["MiB"] for i, worker in enumerate(found[max(found)])})
        for kind in ("MiB", "descriptors", "threads"):
            rows = [(f"step {step}", *(worker[kind] for worker in workers)) for step, workers in found.items()]
            report.table(f"run {number + 1}: {kind}, by worker", ["", *(f"worker {i}" for i in range(options.workers))], rows)


if __name__ == "__main__":
    sys.exit(run(ResourcesOptions, main, __doc__))
