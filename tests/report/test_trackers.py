"""The lines of docs/tracking.md that send a log to MLflow and to Weights & Biases, run as they stand there, in the trackers' own environment."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT, run
from tests.left_out import left_out
from utils.logging import RunLog

PYTHON = Path(sys.prefix) / "trackers/bin/python"
FLAGS = {"learning_rate": 0.1, "optimizer": "adam", "bottom_mlp_dims": [16, 8], "embedding_dim": None} | {
    f"flag_{number}": number for number in range(150)
}
TRAINING = {"samples": 256, "samples_per_s": 1000.0, "learning_rate": 0.1, "learning_rate/wide": 0.5, "skipped_steps": 0}
EVALUATION = {"split": "valid", "epoch": 0, "final": False, "samples": 900, "positives": 90, "auc": 0.7, "log_loss": 0.5, "calibration": None}


def block(title):
    """Return the lines of Python in a section of the page."""
    found = re.search(rf"^## {title}\n.*?^```python\n(.*?)^```", (ROOT / "docs/tracking.md").read_text(), re.M | re.S)
    return found[1]


@pytest.fixture
def log(tmp_path):
    """Return the log of a run that was killed after step 40 in the middle of a line, and resumed from step 20."""
    path = tmp_path / "log.json"
    for resumed, steps in ((None, (10, 20, 30, 40)), (20, (30, 40, 50))):
        log = RunLog(str(path), FLAGS | {"print_freq": 10}, resumes="0" * 16 if resumed else None)
        log.log("RUN", {"id": "0" * 16, "resumed_step": resumed, "step_form": "epoch,step"})
        for step in steps:
            log.log((0, step), TRAINING | {"loss": (step + (50 if resumed else 0)) / 100})
            if step == 20:
                log.log((0, step), {"valid_auc": 0.7, "valid_loss": 0.5, "samples": 900})
                log.log("EVALUATION", EVALUATION | {"step": step})
        log.close()
        if not resumed:
            with path.open("a") as file:
                file.write('DLLL {"timestamp": "1", "step": [0, 5')
    return path


def run_section(title, log, folder, **variables):
    """Run the lines of a section on a log."""
    if not PYTHON.exists():
        left_out("MLflow and Weights & Biases are not installed; ./scripts/install --trackers")
    program = folder / "program.py"
    program.write_text(block(title))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = run(program, log, program=PYTHON, cwd=folder, env=clean | variables)
    assert result.returncode == 0, result.stderr


LOSSES = [(10, 0.1), (20, 0.2), (30, 0.8), (40, 0.9), (50, 1.0)]


def test_mlflow_has_each_figure_once(log, tmp_path):
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    run_section("MLflow", log, tmp_path, MLFLOW_TRACKING_URI=(tmp_path / "mlruns").as_uri(), MLFLOW_ALLOW_FILE_STORE="true", **quiet)
    (store,) = (path.parent for path in (tmp_path / "mlruns").rglob("metrics"))

    def metric(name):
        """Return the lines of a metric's file: time, value, step."""
        lines = [line.split() for line in (store / "metrics" / name).read_text().splitlines()]
        return [(int(step), float(value)) for _, value, step in (line[:3] for line in lines)]

    assert metric("train/loss") == LOSSES
    assert metric("train/learning_rate.wide") == [(step, 0.5) for step, _ in LOSSES]
    assert metric("valid/auc") == [(20, 0.7)] and metric("valid/log_loss") == [(20, 0.5)]
    assert not (store / "metrics/valid/calibration").exists()
    assert {path.name: path.read_text() for path in (store / "params").iterdir()} == {name: str(value) for name, value in FLAGS.items()} | {
        "print_freq": "10"
    }


def test_wandb_has_each_figure_once(log, tmp_path):
    run_section(
        "Weights & Biases", log, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=str(tmp_path), HOME=str(tmp_path), DO_NOT_TRACK="true"
    )
    (stored,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    result = run(Path(__file__).with_name("wandb_reader.py"), stored, program=PYTHON)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(point["_step"], point["train/loss"]) for point in found["history"]] == LOSSES
    assert [(point["_step"], point["valid/auc"]) for point in found["history"] if "valid/auc" in point] == [(20, 0.7)]
    assert {name: value for name, value in found["config"].items() if name != "_wandb"} == FLAGS | {"print_freq": 10}
