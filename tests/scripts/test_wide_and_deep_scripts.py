"""Tests that the scripts of Wide & Deep pass main.py the flags that match their options, and start a worker for each GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import write_dataset
from tests.left_out import starts

ROOT = Path(__file__).parents[2]
SCRIPTS = ("training_full.sh", "training_benchmark.sh", "evaluating_benchmark.sh")
ON_CPU = "no GPU was found: {} on the CPU (--cpu)"


@pytest.fixture
def said(tmp_path):
    """Return a function that runs a script with `echo` in place of Python and mpiexec; its output is the command that it would run."""

    def call(script, *options, gpus=8):
        for name, text in (("nvidia-smi", f"for i in $(seq {gpus}); do echo GPU $i; done"), ("mpiexec", "echo mpiexec $*")):
            (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
            (tmp_path / name).chmod(0o755)
        environment = os.environ | {"PYTHON": "echo", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", str(ROOT / "scripts" / script), *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)

    return call


@pytest.mark.parametrize(
    ("script", "options", "flags"),
    [
        ("training_full.sh", "-g 1 -a -x -- --dataset_path D", "--amp --xla --dataset_path D"),
        ("training_full.sh", "--gpu 1 --amp --xla", "--amp --xla"),
        ("training_full.sh", "-axg1", "--amp --xla"),
        ("training_full.sh", "-g 1", ""),
        ("training_full.sh", "-g 4 -g 1", ""),
        ("training_benchmark.sh", "-x -g 1", "--xla --benchmark"),
        ("training_benchmark.sh", "-g 1 -- --benchmark_steps 20", "--benchmark --benchmark_steps 20"),
        ("evaluating_benchmark.sh", "-g 1 -a", "--amp --evaluate --benchmark --eval_batch_size 131072"),
        ("evaluating_benchmark.sh", "--bs 64 --gpu 1 -- --dataset_path D", "--evaluate --benchmark --eval_batch_size 64 --dataset_path D"),
        ("evaluating_benchmark.sh", "-b 64 -g 1 -- -b 3", "--evaluate --benchmark --eval_batch_size 64 -b 3"),
    ],
)
def test_options_become_flags(said, script, options, flags):
    result = said(script, *options.split())
    assert (result.returncode, result.stdout.strip()) == (0, f"main.py {flags}".strip())
    assert result.stderr.startswith("+ exec echo main.py")  # the command is shown


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_gpu_has_a_worker(said, script):
    result = said(script, "-g", "8")
    assert result.stdout.startswith("mpiexec --allow-run-as-root --bind-to socket -np 8 echo main.py") and "GPU was found" not in result.stderr


@pytest.mark.parametrize(("workers", "named"), [(1, "1 worker"), (4, "4 workers")])
def test_without_gpus_the_workers_are_on_the_cpu(said, workers, named):
    result = said("training_full.sh", "-g", str(workers), "-a", gpus=0)
    launcher = "" if workers == 1 else f"mpiexec --allow-run-as-root --bind-to none --oversubscribe -np {workers} echo "
    assert result.stdout.strip() == f"{launcher}main.py --cpu --amp"
    assert result.stderr.splitlines()[0] == f"training_full.sh: {ON_CPU.format(named)}"


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("options", ["", "-a", "-g none", "-g 0", "-g -1", "-q -g 1", "-g", "-g 1 extra", "-g 1 -aq", "-g 1 --evaluate", "-g 1 -b 0"])
def test_invalid_options_are_one_line_with_the_usage(said, script, options):
    result = said(script, *options.split())
    assert result.returncode == 1 and result.stdout == "" and result.stderr.count("\n") == 1 and "expected" in result.stderr
    assert result.stderr.startswith(f"{script}: error: ") and f"usage: {script} -g|--gpu N" in result.stderr
    assert ("[-b|--bs BATCH]" in result.stderr) == (script == "evaluating_benchmark.sh")


def test_more_workers_than_gpus_are_an_error(said):
    result = said("training_full.sh", "-g", "8", gpus=2)
    assert result.returncode == 1 and result.stdout == "" and "-g 8: expected at most 2, the GPUs of this machine" in result.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_usage_on_request(said, script):
    result = said(script, "--help")
    assert result.returncode == 0 and result.stdout.startswith(f"usage: {script} -g|--gpu N") and result.stderr == ""


def test_two_workers_measure_training_on_the_cpu(tmp_path):
    """The command as its owner types it, on a machine without GPUs."""
    starts("workers")
    data = write_dataset(tmp_path / "data", rows={"train": 700, "test": 300})
    small = "--deep_hidden_units 16 --embedding_dim 8 --global_batch_size 128 --benchmark_steps 6 --benchmark_warmup_steps 2".split()
    flags = ["--dataset_path", str(data), "--results_dir", str(tmp_path / "r"), *small]
    command = ["bash", str(ROOT / "scripts/training_benchmark.sh"), "--gpu", "2", "--amp", "--", *flags]
    path = os.pathsep.join([str(Path(sys.executable).parent), *(folder for folder in os.environ["PATH"].split(":") if "nvidia" not in folder)])
    environment = os.environ | {"PYTHON": sys.executable, "PATH": path}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert "train on 2 workers (" in result.stdout and "train_throughput" in (tmp_path / "r/log.json").read_text()
