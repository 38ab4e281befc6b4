"""Tests that the scripts of Wide & Deep pass main.py the flags that match their options."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def said(script, *options):
    """Run a script with `echo` in place of Python; its output is the command it would run."""
    command = ["bash", str(ROOT / "scripts" / script), *options]
    return subprocess.run(command, env=os.environ | {"PYTHON": "echo"}, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize(
    ("script", "options", "flags"),
    [
        ("training_full.sh", "-g 1 -a -x -- --dataset_path D", "--amp --xla --dataset_path D"),
        ("training_full.sh", "", ""),
        ("training_benchmark.sh", "-x -g 1", "--xla --benchmark"),
        ("evaluating_benchmark.sh", "-g 1 -a", "--amp --evaluate --benchmark --eval_batch_size 131072"),
        ("evaluating_benchmark.sh", "-b 64 -g 1 -- --dataset_path D", "--evaluate --benchmark --eval_batch_size 64 --dataset_path D"),
    ],
)
def test_options_become_flags(script, options, flags):
    assert said(script, *options.split()).stdout.strip() == f"main.py {flags}".strip()


@pytest.mark.parametrize("options", ["-g none", "-g 0", "-q", "-g"])
def test_invalid_options_are_one_line(options):
    result = said("training_full.sh", *options.split())
    assert result.returncode == 1 and result.stdout == "" and result.stderr.count("\n") == 1 and "expected" in result.stderr
