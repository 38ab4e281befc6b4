"""This project's runs, by the commands that a user types, and the figures in their logs."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.children import ROOT
from benchmarks.published.processes import ended
from benchmarks.published.settings import PARTS, PROGRAMS
from utils.errors import UserError
from utils.yaml_file import load_yaml

RECIPES = ROOT / "recipes"


def recipe_of(folder: Path, model: str) -> tuple[Path, dict[str, Any]]:
    """Return the recipe of a model: its file, and what it says. Raises UserError where it cannot be read."""
    path = folder / f"frappe_{model}.yaml"
    if not path.is_file():
        raise UserError(f"{path}: no such recipe; expected the YAML file of {model}.py --config")
    content = load_yaml(str(path))
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: expected flags and their values")
    return path, content


def without(recipe: Mapping[str, Any], part: str) -> dict[str, Any] | None:
    """Return a recipe without one of its parts; None where the recipe does not have it."""
    changes = PARTS[part]
    reduced = {name: value for name, value in recipe.items() if name not in changes}
    if len(reduced) == len(recipe):
        return None
    return reduced | {name: value for name, value in changes.items() if value is not None}


def run(model: str, seed: int, recipe: Path | Mapping[str, Any], dataset: Path, folder: Path, epochs: int | None = None) -> dict[str, Any]:
    """Train and test a model on the CPU, and return the figures of its log.

    Args:
        model: a program, without `.py`, or a key of `PROGRAMS`.
        seed: its seed.
        recipe: the file of the recipe; or what it says, which is then written to a file.
        dataset: the tf_raw dataset.
        folder: folder for the log, and while training for the checkpoints.
        epochs: the greatest number of epochs in place of the recipe's.
    """
    work = (folder / "run").absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    if not isinstance(recipe, Path):
        text = yaml.safe_dump(dict(recipe), sort_keys=False)
        recipe = work / "recipe.yaml"
        recipe.write_text(text)
    # a line of every step: the first one says when the first step began
    flags = ["--log_path", work / "log.json", "--log_steps", "--benchmark_warmup_steps", 0, "--save_checkpoint_path", work / "checkpoints", "--cpu"]
    flags += ["--epochs", epochs] if epochs else []
    found = ended(
        sys.executable,
        f"{PROGRAMS.get(model, model)}.py",
        "--config",
        recipe.absolute(),
        "--dataset_path",
        dataset.absolute(),
        "--seed",
        seed,
        *flags,
    )
    figures = figures_of(work / "log.json") | found.figures
    shutil.rmtree(work)
    return figures


def figures_of(log: Path) -> dict[str, Any]:
    """Return the figures of a finished run's log. The seconds of an epoch run from the beginning of the first step to the end of its evaluation.

    Raises:
        UserError: the log lacks some of them.
    """
    begun, about, epochs, last = None, {}, [], {}
    for when, step, data in _entries(log):
        if step == "RUN":
            about = data
        elif "batch_samplesps" in data and begun is None:
            begun = when - min(about["batch_size"], about["samples"]["train"]) / data["batch_samplesps"]
        elif step == "EVALUATION" and data["split"] == "valid" and begun is not None:
            epochs.append({"auc": data["auc"], "seconds": when - begun})
        elif step == []:
            last = data
    if not epochs or last.get("auc") is None:
        raise UserError(f"{log}: no evaluations of the valid split and test AUC; expected the log of a finished run")
    parameters = sum(about["parameters"].values())
    return {"auc": last["auc"], "log_loss": last["validation_loss"], "epochs": epochs, "parameters": parameters, "step_ms": last["mean_step_time_ms"]}


def _entries(log: Path) -> Iterator[tuple[float, Any, Mapping[str, Any]]]:
    """Yield time, step and data of a log's entries."""
    for line in log.read_text().splitlines():
        entry = json.loads(line.partition(" ")[2])
        if entry["type"] == "LOG":
            yield float(entry["timestamp"]), entry["step"], entry["data"]
