"""Compare test AUC and time of training on a published split with the literature and with well-kept peers, which train on the same files.

  python -m benchmarks.published --data FRAPPE --models dcnv2 dlrm wide_and_deep --seeds 2021 2022 2023 2024 2025
  python -m benchmarks.published --data FRAPPE --models dcnv2 --seeds 2021 --only ours --leave_out

FRAPPE holds train.csv.gz, valid.csv.gz and test.csv.gz, with a column label and columns of ids. This project trains with recipes/frappe_MODEL.yaml,
FuxiCTR and LightGBM in a Python environment of their own, which is made in the cache folder (--peer_python takes another). A finished run is a line
in --folder at once, and the same command goes on where it was ended. Seconds are those of the epochs with their evaluations, from the first step to
the end of the last evaluation, on the CPU.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from benchmarks.options import Options, run
from benchmarks.published import data, ours, peers, tables
from benchmarks.published.results import Key, Results, digest
from benchmarks.published.settings import CONTENDERS, LIGHTGBM, MODELS, OURS, PARTS, PEER, PEER_NAME, PENALTIES, REGRESSION, SHOWN, TREES
from benchmarks.report import Report
from benchmarks.workload import check_words
from utils.config.option import option
from utils.errors import UserError

_LISTS = ("--models", "--seeds", "--only")
_SEEDS = 2**32  # NumPy's generators, which FuxiCTR seeds, take no larger ones


@dataclass(frozen=True)
class PublishedOptions(Options):
    """Published accuracy."""

    QUICK: ClassVar[dict[str, Any]] = {"models": ("dcnv2",), "seeds": (2021,), "only": (OURS, REGRESSION), "max_rows": 600, "epochs": 1}

    data: str | None = option(None, "folder of train.csv.gz, valid.csv.gz and test.csv.gz, with columns of ids and a column label")
    models: tuple[str, ...] = option(MODELS, f"models, some of {', '.join(MODELS)}, separated by commas or blanks")
    seeds: tuple[int, ...] = option((2021, 2022, 2023, 2024, 2025), "seeds that each model is trained with, separated by commas or blanks")
    only: tuple[str, ...] = option(CONTENDERS, f"contenders, some of {', '.join(CONTENDERS)}, separated by commas or blanks")
    leave_out: bool = option(False, "also train this project's recipes with one part left out at a time")
    folder: str = option("published_results", "folder of the results and of the dataset; made where it is missing")
    recipes: str | None = option(None, "folder of the recipes, frappe_MODEL.yaml; the default is this project's")
    peer_python: str | None = option(None, f"Python that has the packages of benchmarks/{peers.REQUIREMENTS.name}, in place of the cached one")
    max_rows: int | None = option(None, "first rows of each split to use; the default is all", unit="rows")
    epochs: int | None = option(None, "greatest number of epochs in place of the recipes'", unit="epochs")

    def __post_init__(self):
        super().__post_init__()
        check_words("models", self.models, MODELS)
        check_words("only", self.only, CONTENDERS)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(0 <= seed < _SEEDS for seed in self.seeds):
            raise ValueError(f"--seeds {','.join(map(str, self.seeds))}: expected different whole numbers from 0 to {_SEEDS - 1}")


class Task(NamedTuple):
    """A contender and a model.

    Attributes:
        who, model, part: as in `results.Key`.
        settings: all that decides the result beside data and seed.
        train: trains and tests with a seed.
    """

    who: str
    model: str
    part: str
    settings: Mapping[str, Any]
    train: Callable[[int], dict[str, Any]]


class Campaign:
    """The runs of a command.

    Args:
        chosen: the options.
        report: prints a line for each run.
    """

    def __init__(self, chosen: PublishedOptions, report: Report):
        self._chosen, self._say, self._folder = chosen, report.say, Path(chosen.folder)
        self._recipes = {model: ours.recipe_of(Path(chosen.recipes or ours.RECIPES), model) for model in chosen.models if OURS in chosen.only}
        self._results = Results(self._folder)
        self._files = data.read(Path(chosen.data), chosen.max_rows, self._folder / "first_rows")
        self._say(self._files.note())
        self._python: str | None = None
        self.runs: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}

    def run(self) -> None:
        """Do the runs that are not done yet. Contenders take turns seed by seed, because a machine's speed changes from hour to hour."""
        for _, some in itertools.groupby(self._tasks(), lambda task: (task.model, bool(task.part))):
            group = list(some)
            seeds = self._chosen.seeds[:1] if group[0].model == group[0].who else self._chosen.seeds
            for seed in seeds:
                for task in group:
                    self._one(Key(task.who, task.model, seed, task.part, self._files.digest, digest(task.settings)), task.train)

    def _tasks(self) -> Iterator[Task]:
        chosen, limit = self._chosen, {"epochs": self._chosen.epochs} if self._chosen.epochs else {}
        if REGRESSION in chosen.only:
            yield Task(REGRESSION, REGRESSION, "", PENALTIES, lambda seed: peers.logistic_regression(self._dataset()))
        if TREES in chosen.only:
            yield Task(TREES, TREES, "", LIGHTGBM, partial(self._peer, TREES, TREES, 1))
        for model in chosen.models:
            if PEER_NAME in chosen.only and model in PEER:
                settings = PEER[model] | limit
                yield Task(PEER_NAME, model, "", settings, partial(self._peer, PEER_NAME, model, settings["epochs"]))
            if OURS not in chosen.only:
                continue
            path, recipe = self._recipes[model]
            yield Task(OURS, model, "", recipe | limit, partial(self._ours, model, path))
            for part in PARTS if chosen.leave_out else ():
                if (reduced := ours.without(recipe, part)) is not None:
                    yield Task(OURS, model, part, reduced | limit, partial(self._ours, model, reduced))

    def _one(self, key: Key, train: Callable[[int], dict[str, Any]]) -> None:
        model, part = f", {key.model}" if key.model != key.who else "", f" without {key.left_out}" if key.left_out else ""
        name = f"{SHOWN[key.who]}{model}{part}, seed {key.seed}"
        figures, done = self._results.get(key), " (done before)"
        if figures is None:
            figures, done = train(key.seed), ""
            self._results.add(key, figures)
        self.runs.setdefault((key.model, key.who, key.left_out), {})[key.seed] = figures
        shown = f"test AUC {figures['auc']:.5f}, log loss {figures['log_loss']:.4f}, {figures['epochs'][-1]['seconds']:.0f} s"
        self._say(f"{name}: {shown}, valid AUC {tables.best_valid(figures):.5f} in epoch {_best_epoch(figures)} of {len(figures['epochs'])}{done}")

    def _dataset(self) -> Path:
        return data.dataset(self._files, self._folder)

    def _ours(self, model: str, recipe: Path | dict[str, Any], seed: int) -> dict[str, Any]:
        return ours.run(model, seed, recipe, self._dataset(), self._folder, self._chosen.epochs)

    def _peer(self, who: str, model: str, epochs: int, seed: int) -> dict[str, Any]:
        self._python = self._python or peers.peer_python(self._chosen.peer_python, self._say)
        return peers.run(who, model, seed, self._files.folder, self._python, epochs)


def main(chosen: PublishedOptions, report: Report) -> None:
    """Train, compare, print."""
    if chosen.data is None:
        raise UserError("--data is missing; expected the folder of train.csv.gz, valid.csv.gz and test.csv.gz")
    Path(chosen.folder).mkdir(parents=True, exist_ok=True)
    campaign = Campaign(chosen, report)
    campaign.run()
    report.figures |= {"results": tables.summary(campaign.runs), "left_out": tables.parts(campaign.runs)}
    report.figures["runs"] = [
        {"model": model, "who": who, "left_out": part, "seed": seed} | figures
        for (model, who, part), by_seed in campaign.runs.items()
        for seed, figures in by_seed.items()
    ]
    for line in ("", *tables.lines(campaign.runs)):
        report.say(line)


def joined(words: Sequence[str]) -> list[str]:
    """Return a command line whose lists are one word each, separated by commas: `--seeds 1 2` becomes `--seeds 1,2`."""
    found: list[str] = []
    listed = False
    for word in words:
        if listed and not word.startswith("-") and found[-1] not in _LISTS:
            found[-1] += f",{word}"
        else:
            found.append(word)
            listed = word in _LISTS if word.startswith("-") else listed
    return found


def _best_epoch(figures: dict[str, Any]) -> int:
    aucs = [epoch["auc"] for epoch in figures["epochs"]]
    return aucs.index(max(aucs)) + 1


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.argv[1:] = joined(sys.argv[1:])
    sys.exit(run(PublishedOptions, main, __doc__))
