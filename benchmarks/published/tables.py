"""The tables of the benchmark: means over seeds, single seeds, and what each part of a recipe gives."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.published.settings import OURS, PEER_NAME, PUBLISHED, SHOWN

BELOW_PEER = 0.0005  # the goal is the peer's mean less this
Runs = Mapping[tuple[str, str, str], Mapping[int, Mapping[str, Any]]]
"""The figures of the runs by (model, contender, part left out), and then by seed."""


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table; columns after the second are numbers."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    ruler = ["---" if number < 2 else "---:" for number in range(len(columns))]
    return [f"| {' | '.join(row)} |" for row in (list(columns), ruler, *cells)]


def summary(runs: Runs) -> list[dict[str, Any]]:
    """Return the figures of each contender with each model over its seeds.

    `goal` is the peer's mean test AUC less `BELOW_PEER`. Training sees the valid split only, so `seconds_to_peer` goes by it: the time until the
    valid AUC is at least the mean of the peer's best valid AUCs less `BELOW_PEER`, a mean over the seeds that come so far; `reached` is their number.
    `of_peers_time` is this time divided by the peer's. `cpu_seconds` is the processor time of the whole process.
    """
    rows = []
    for (model, who, part), by_seed in runs.items():
        if part or not by_seed:
            continue
        peer = list(runs.get((model, PEER_NAME, ""), {}).values())
        wanted = statistics.fmean(best_valid(run) for run in peer) - BELOW_PEER if peer else None
        times = [seconds for run in by_seed.values() if (seconds := seconds_to(run, wanted)) is not None]
        rows.append(
            _means(by_seed)
            | {"model": model, "who": who, "seeds": list(by_seed), "published": PUBLISHED.get(model)}
            | {"goal": statistics.fmean(run["auc"] for run in peer) - BELOW_PEER if peer else None}
            | {"valid_auc_to_reach": wanted, "seconds_to_peer": statistics.fmean(times) if times else None, "reached": len(times)}
        )
    theirs = {row["model"]: row["seconds_to_peer"] for row in rows if row["who"] == PEER_NAME}
    for row in rows:
        known = theirs.get(row["model"]) and row["seconds_to_peer"]
        row["of_peers_time"] = row["seconds_to_peer"] / theirs[row["model"]] if known else None
    return rows


def parts(runs: Runs) -> list[dict[str, Any]]:
    """Return the figures of this project's recipes without one part each, beside those of the whole recipes with the same seeds."""
    rows = []
    for (model, who, part), by_seed in runs.items():
        whole = runs.get((model, OURS, ""), {})
        seeds = [seed for seed in by_seed if seed in whole]
        if who == OURS and part and seeds:
            found, usual = _means({seed: by_seed[seed] for seed in seeds}), _means({seed: whole[seed] for seed in seeds})
            rows.append(found | {"model": model, "part": part, "seeds": seeds, "difference": found["auc"] - usual["auc"]})
    return rows


def best_valid(run: Mapping[str, Any]) -> float:
    """Return the best valid AUC of a run."""
    return max(epoch["auc"] for epoch in run["epochs"])


def seconds_to(run: Mapping[str, Any], auc: float | None) -> float | None:
    """Return the seconds of training until an evaluation of the valid split reaches an AUC; None where none does."""
    return next((epoch["seconds"] for epoch in run["epochs"] if auc is not None and epoch["auc"] >= auc), None)


def lines(runs: Runs) -> list[str]:
    """Return the tables as Markdown."""
    found = summary(runs)
    columns = ("model", "who", "seeds", "test AUC, mean", "deviation", "log loss", "seconds", "to the peer's AUC", "of the peer's time")
    columns += ("processor s", "parameters", "published")
    said = markdown(columns, [_row(row) for row in found])
    seeds = sorted({seed for row in found for seed in row["seeds"]})
    by_seed = [
        (_model(row), SHOWN[row["who"]], *(_auc(runs[row["model"], row["who"], ""].get(seed, {}).get("auc")) for seed in seeds)) for row in found
    ]
    said += ["", *markdown(("model", "who", *map(str, seeds)), by_seed)]
    if left_out := parts(runs):
        columns = ("model", "left out", "seeds", "test AUC, mean", "difference", "log loss", "seconds")
        shown = [(row["model"], row["part"], len(row["seeds"]), _auc(row["auc"]), f"{row['difference']:+.5f}", *_costs(row)) for row in left_out]
        said += ["", *markdown(columns, shown)]
    return said


def _means(by_seed: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    runs = list(by_seed.values())
    spent = [run["cpu_seconds"] for run in runs if run.get("cpu_seconds") is not None]
    aucs = [run["auc"] for run in runs]
    return {
        "auc": statistics.fmean(aucs),
        "deviation": statistics.stdev(aucs) if len(aucs) > 1 else None,
        "log_loss": statistics.fmean(run["log_loss"] for run in runs),
        "seconds": statistics.fmean(run["epochs"][-1]["seconds"] for run in runs),
        "cpu_seconds": statistics.fmean(spent) if len(spent) == len(runs) else None,
        "parameters": runs[0].get("parameters"),
    }


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    deviation = None if row["deviation"] is None else f"{row['deviation']:.5f}"
    count = len(row["seeds"])
    some = f" ({row['reached']} of {count})" if 0 < row["reached"] < count else ""
    reached = f"{row['seconds_to_peer']:.0f}{some}" if row["reached"] else "never" if row["valid_auc_to_reach"] is not None else None
    parameters = None if row["parameters"] is None else f"{row['parameters']:,}"
    share = None if row["of_peers_time"] is None else f"{row['of_peers_time']:.2f}"
    spent = None if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.0f}"
    figures = (_auc(row["auc"]), deviation, *_costs(row), reached, share, spent, parameters, row["published"])
    return _model(row), SHOWN[row["who"]], count, *figures


def _model(row: Mapping[str, Any]) -> str:
    return "" if row["model"] == row["who"] else row["model"]


def _costs(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['log_loss']:.4f}", f"{row['seconds']:.0f}"


def _auc(value: float | None) -> str | None:
    return None if value is None else f"{value:.5f}"
