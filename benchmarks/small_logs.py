"""Compare recipes for small logs with a logistic regression, biased matrix factorisation and LightGBM: test AUC on drawn logs of many kinds.

  python -m benchmarks.small_logs
  python -m benchmarks.small_logs --kinds ratings,wide --seed 7 --lightgbm_python /somewhere/gbm/bin/python
  python -m benchmarks.small_logs --criteo CRITEO

Each log is written as CSV and converted by `python -m preproc.table`: the latest fifth of the rows is for testing, the tenth before it is for
validation. `dlrm.py --config` trains with each recipe, recipes/small.yaml and recipes/small_fm.yaml, in a process of its own; the model of the higher
valid AUC is tested. The last column is ours minus the better of logistic regression and matrix factorisation (which needs a column of users and one
of items). CRITEO is a folder with day_0.tsv of the Criteo form: it is cut into five folds of consecutive rows, each tested once with a model of the
other four, whose last tenth is for validation. LightGBM needs a Python that has it:
  python -m venv gbm
  gbm/bin/pip install lightgbm==4.7.0
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from benchmarks import small_peers
from benchmarks.children import ROOT, start
from benchmarks.drawn_logs import KINDS, LABEL, MIN_ROWS, TIME, write_log
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from benchmarks.workload import check_words
from utils.config.option import option
from utils.errors import UserError

FOLDS = 5
VALID, TEST = 0.1, 0.2
COLUMNS = ("log", "rows", "logistic regression", "matrix factorisation", "LightGBM", "ours", "difference")
RECIPES = tuple(str(ROOT / "recipes" / name) for name in ("small.yaml", "small_fm.yaml"))
_DAY = "day_0.tsv"


@dataclass(frozen=True)
class SmallLogsOptions(Options):
    """Benchmark of small logs."""

    QUICK: ClassVar[dict[str, Any]] = {"kinds": ("ratings",), "rows": MIN_ROWS, "epochs": 1}

    num_rounds: int = option(1, "logs of each kind, of the seeds from --seed on", unit="logs")
    seed: int = option(1, "seed of the first logs")
    kinds: tuple[str, ...] = option(tuple(KINDS), f"kinds of drawn logs: {', '.join(KINDS)}")
    rows: int | None = option(None, "rows of every drawn log; the default is a number of its kind", unit="rows")
    criteo: str | None = option(None, f"folder with {_DAY} of the Criteo form, whose folds are compared in place of drawn logs")
    recipes: tuple[str, ...] = option(RECIPES, "files of flags for dlrm.py, of which the one with the best valid AUC is tested")
    epochs: int | None = option(None, "epochs in place of the recipe's", unit="epochs")
    lightgbm_python: str | None = option(None, "Python with lightgbm; without it LightGBM is not measured")
    folder: str | None = option(None, "folder for the logs; the default is the system's temporary folder")

    def __post_init__(self):
        super().__post_init__()
        check_words("kinds", self.kinds, tuple(KINDS))
        if self.rows is not None and self.rows < MIN_ROWS:
            raise UserError(f"--rows {self.rows}: expected at least {MIN_ROWS}")
        if self.lightgbm_python and not shutil.which(self.lightgbm_python):
            raise UserError(f"--lightgbm_python {self.lightgbm_python}: no such program; expected a Python with lightgbm")
        for recipe in self.recipes:
            if not Path(recipe).is_file():
                raise UserError(f"--recipes {recipe}: no such file")
        if self.criteo is not None and not (Path(self.criteo) / _DAY).is_file():
            raise UserError(f"--criteo {self.criteo}: it holds no {_DAY}")


class Dataset(NamedTuple):
    """A converted log: its name, its folder, and the columns of users and items, where it has both."""

    name: str
    folder: Path
    pair: tuple[str, str] | None


def main(chosen: SmallLogsOptions, report: Report) -> None:
    """Convert, train, print a line for each log as it is done, and the table."""
    if not chosen.lightgbm_python:
        report.say("LightGBM is not measured: set --lightgbm_python to a Python that has it")
    report.figures["logs"] = {}
    with scratch(chosen.folder, 1 << 30, "the logs") as work:
        for log in _criteo(Path(chosen.criteo), work) if chosen.criteo else _drawn(chosen, work):
            figures = report.figures["logs"][log.name] = _compare(chosen, log)
            passes = f"{figures['recipe']}, best epoch {figures['best_epoch']:.0f}, {figures['seconds']:.0f} s"
            report.say(f"{log.name}: {', '.join(f'{name} {text}' for name, text in zip(COLUMNS[1:], _texts(figures), strict=True))}; {passes}")
    found = report.figures["logs"]
    report.figures["lowest_difference"] = min(one["difference"] for one in found.values())
    report.table("test AUC", COLUMNS, [(name, *_texts(one)) for name, one in found.items()])


def _texts(figures: Mapping[str, float | None]) -> list[str]:
    aucs = (_digits(figures[peer]) for peer in ("logistic", "factorisation", "lightgbm", "ours"))
    return [f"{figures['rows']:,}", *aucs, f"{figures['difference']:+.4f}"]


def _digits(auc: float | None) -> str:
    return "-" if auc is None else f"{auc:.4f}"


def _compare(chosen: SmallLogsOptions, log: Dataset) -> dict[str, Any]:
    """Return the AUCs of a log, its rows, ours minus the better of the two peers, and the seconds of our trainings."""
    rows = small_peers.read_rows(log.folder)
    logistic, factorisation = small_peers.logistic_regression(rows.splits), None
    if log.pair is not None:
        factorisation = small_peers.matrix_factorisation(rows.splits, *map(rows.features.index, log.pair))
    trees = small_peers.lightgbm(rows.splits, chosen.lightgbm_python) if chosen.lightgbm_python else None
    by_recipe = [_train(chosen, log.folder, Path(recipe).absolute()) for recipe in chosen.recipes]
    trained = max(by_recipe, key=lambda one: one["valid_auc"])
    return {
        "rows": sum(len(one.labels) for one in rows.splits.values()),
        "logistic": logistic,
        "factorisation": factorisation,
        "lightgbm": trees,
        "ours": trained["auc"],
        "difference": trained["auc"] - max(logistic, factorisation or 0.0),
        "valid": trained["valid_auc"],
        "recipe": trained["recipe"],
        "best_epoch": trained["best_epoch"],
        "by_recipe": [{name: one[name] for name in ("recipe", "auc", "valid_auc", "seconds")} for one in by_recipe],
        "seconds": sum(one["seconds"] for one in by_recipe),
    }


def _train(chosen: SmallLogsOptions, dataset: Path, recipe: Path) -> dict[str, Any]:
    """Train by a recipe; return the last figures, which are of the weights that were best on the valid split, and the seconds of the process."""
    log, model = dataset / "log.json", dataset / "model"
    epochs = ("--epochs", chosen.epochs) if chosen.epochs else ()
    for old in (log, model):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    flags = ("--config", recipe, "--dataset_path", dataset, "--save_checkpoint_path", model, "--log_path", log, *epochs)
    ended = start(sys.executable, "dlrm.py", *flags, "--cpu", "--inter_op_parallelism", 1, "--intra_op_parallelism", 1)
    lines = [json.loads(line.partition(" ")[2]) for line in log.read_text().splitlines()]
    best = max(line["data"]["auc"] for line in lines if line.get("step") == "EVALUATION" and line["data"]["split"] == "valid")
    return [line["data"] for line in lines if line.get("step") == []][-1] | {"recipe": recipe.name, "valid_auc": best, "seconds": ended.seconds}


def _drawn(chosen: SmallLogsOptions, work: Path) -> Iterator[Dataset]:
    """Draw and convert the logs, one at a time."""
    for seed in range(chosen.seed, chosen.seed + chosen.num_rounds):
        for kind in chosen.kinds:
            log, folder = work / "log.csv", work / f"{kind}_{seed}"
            columns = write_log(log, kind, seed, chosen.rows)
            split = ("--split_by", TIME, "--valid_fraction", VALID, "--test_fraction", TEST, "--ignore", TIME)
            start(
                sys.executable, "-m", "preproc.table", "--train", log, "--label", LABEL, "--categorical", ",".join(columns), *split, "--dst", folder
            )
            yield Dataset(folder.name, folder, KINDS[kind].pair)


def _criteo(source: Path, work: Path) -> Iterator[Dataset]:
    """Cut a day into folds and convert each with the rest of the day."""
    lines = (source / _DAY).read_bytes().splitlines(keepends=True)
    for fold in range(FOLDS):
        first, last = (len(lines) * place // FOLDS for place in (fold, fold + 1))
        rest = lines[:first] + lines[last:]
        cut = int(len(rest) * (1 - VALID))
        files = {"train": rest[:cut], "valid": rest[cut:], "test": lines[first:last]}
        for name, some in files.items():
            (work / f"{name}.tsv").write_bytes(b"".join(some))
        folder = work / f"criteo_fold_{fold}"
        splits = (word for name in files for word in (f"--{name}", work / f"{name}.tsv"))
        start(sys.executable, "-m", "preproc.criteo", *splits, "--frequency_threshold", 3, "--dst", folder)
        yield Dataset(folder.name, folder, None)


if __name__ == "__main__":
    sys.exit(run(SmallLogsOptions, main, __doc__))
