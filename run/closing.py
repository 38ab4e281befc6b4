"""The last lines of a training run: its data, model, time and metrics, where everything lies, and the next command."""

import math
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model.architectures import architecture_of
from run.prepare import Prepared
from run.scoring import shown
from utils.checkpoint.folder import pointed
from utils.config.options import BEST, LATEST
from utils.console import clock

REPORT = "report.html"


def closing(run: Prepared, figures: Mapping[str, Any], seconds: float) -> Iterator[str]:
    """Yield the lines, ten at most.

    Args:
        run: the run that has ended.
        figures: the figures of the log's last line.
        seconds: the time of this process, from its start of training.
    """
    options, config = run.config.training, run.config
    rate = f": {figures['throughput']:,.0f} samples/s" if math.isfinite(figures["throughput"]) else ""
    yield f"trained on {figures['samples']:,} samples in {figures['steps']:,} steps{rate}"
    rows = ", ".join(f"{name} {run.splits[name].num_samples:,}" for name in ("train", "valid", "test") if name in run.splits)
    yield f"data: {' '.join(config.data.places) or 'synthetic'}, {rows} rows"
    elements = sum(table.rows * table.dim for table in run.placement.tables)
    yield f"model: {architecture_of(config.model).name}, {len(run.placement.tables):,} tables, {elements:,} embedding parameters"
    yield f"time: {clock(seconds)} with evaluations and saves"
    yield from _metrics(run, figures)
    if options.save_checkpoint_path:
        yield f"checkpoint: {_saved(Path(options.save_checkpoint_path))}"
    if log := _log(run):
        yield f"log: {log}"
    if config.run.tensorboard_path:
        yield f"TensorBoard: tensorboard --logdir {shlex.quote(config.run.tensorboard_path)}"
    if following := _next(run):
        yield f"next: {following}"


def _metrics(run: Prepared, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for the split that chooses the best weights, where it is not the test split, and one for the test split."""
    kept = figures.get("tested_step")
    of_best = f", of the best weights (step {kept:,})" if kept is not None else ""
    for split, auc, loss in (("valid", "valid_auc", "valid_loss"), ("test", "auc", "validation_loss")):
        if figures.get(loss) is not None:
            yield f"{split}: AUC {shown(figures[auc], 6)}, log loss {figures[loss]:.6f}{of_best}"


def _saved(folder: Path) -> str:
    """Describe the folder of checkpoints by its best or newest step."""
    best, newest = pointed(folder / BEST), pointed(folder / LATEST)
    if best == newest:
        return f"{folder}" + (f", the newest is the best: {best.name}" if best else "")
    return f"{folder}" + (f", best {best.name}" if best else "") + (f", newest {newest.name}" if newest else "")


def _log(run: Prepared) -> str:
    """Return the log's file by the user's name for it; empty where there is none, or no regular one."""
    return run.config.run.log_path if run.in_log["path"] else ""


def _next(run: Prepared) -> str:
    """Return the command to type next: the run's report or, without a log, an export; or the flag that keeps the model."""
    place = run.config.training.save_checkpoint_path
    if log := _log(run):
        return f"python -m report {shlex.quote(place or log)} -o {REPORT}"
    if not place:
        return "--save_checkpoint_path CHECKPOINT keeps the model"
    if not run.console.program.endswith(".py") or run.config.names:  # Python's `dlrm.train`; flags of another system
        return ""
    return f"python {run.console.program} --mode export --restore_checkpoint_path {shlex.quote(place)} --export_path REPOSITORY"
