"""The log of NVIDIA's Wide & Deep: its keys, and its steps, beside those of this application."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.evaluations import logged
from utils.config import Config
from utils.errors import UserError
from utils.logging import RunLog
from utils.metrics.binary import Metrics

_OF_THROUGHPUT = {"throughput": "train_throughput", "mean_inference_throughput": "validation_throughput"}
_VAL, _MAP = "_val", "map_at_12"


def published(metrics: Metrics) -> dict[str, float | None]:
    """An evaluation by NVIDIA's keys; MAP@12 where the dataset has a group column."""
    found = {"binary_accuracy_val": metrics.binary_accuracy, "auc_val": metrics.auc, "loss_val": metrics.log_loss}
    by_group = metrics.ranking.figures() if metrics.ranking else {}
    return found | ({"streaming_map_val": by_group[_MAP]} if _MAP in by_group else {})


def logged_evaluation(split: str, metrics: Metrics) -> dict[str, Any]:
    """What the log has of an evaluation while training."""
    return logged(split, metrics) | published(metrics)


class WideAndDeepLog:
    """Stands in front of a log.

    A step is (step, steps of the whole run), losses of training are texts with 4 decimals, and the last line has what the last evaluation said.

    Args:
        log: that is written.
        steps: of the whole run.
    """

    def __init__(self, log: RunLog, steps: int):
        self._log, self._steps = log, steps
        self._evaluated: dict[str, Any] = {}
        self.flush: Callable[[], None] = log.flush
        self.close: Callable[[], None] = log.close

    def log(self, step: str | int | Sequence[int], data: Mapping[str, Any]) -> None:
        """As `RunLog.log`."""
        if isinstance(step, tuple) and len(step) == 2:
            step = step[1], self._steps
        found = {**(self._evaluated if step == () else {}), **data}
        self._evaluated |= {name: value for name, value in data.items() if name.endswith(_VAL)}
        if isinstance(found.get("loss"), float):
            found["loss"] = f"{found['loss']:.4f}"
        found |= {name: found[known] for known, name in _OF_THROUGHPUT.items() if known in found}
        self._log.log(step, found)


def write_args(config: Config) -> None:
    """Write every flag and its value to `--args_path`. Raises UserError where that cannot be."""
    path = Path(config.run.args_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config.flat(), indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--args_path {path}: {error.strerror}") from None
