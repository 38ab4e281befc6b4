"""The log of NVIDIA's Wide & Deep: its keys, and its steps, beside those of this application."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from utils.config import Config
from utils.errors import UserError
from utils.logging import RunLog

_OF_EVALUATION = {"auc": "auc_val", "test_loss": "loss_val", "validation_loss": "loss_val", "binary_accuracy": "binary_accuracy_val"} | {
    "map_at_12": "streaming_map_val"
}
_OF_THROUGHPUT = {"throughput": "train_throughput", "mean_inference_throughput": "validation_throughput"}


class WideAndDeepLog:
    """Stands in front of a log.

    A step is (step, steps of the whole run). Losses of training are texts with 4 decimals, and what evaluations say is called `auc_val`, `loss_val`,
    `binary_accuracy_val` and, where the dataset has a group column, `streaming_map_val`.

    Args:
        log: that is written.
        steps: of the whole run.
    """

    def __init__(self, log: RunLog, steps: int):
        self._log, self._steps = log, steps
        self.flush: Callable[[], None] = log.flush
        self.close: Callable[[], None] = log.close

    def log(self, step: str | int | Sequence[int], data: Mapping[str, Any]) -> None:
        """As `RunLog.log`."""
        if isinstance(step, tuple) and len(step) == 2:
            step = step[1], self._steps
        found = dict(data)
        if isinstance(found.get("loss"), float):
            found["loss"] = f"{found['loss']:.4f}"
        for known, published in (_OF_EVALUATION | _OF_THROUGHPUT).items():
            if known in found:
                found[published] = found[known]
        self._log.log(step, found)


def write_args(config: Config) -> None:
    """Write every flag and its value to `--args_path`. Raises UserError where that cannot be."""
    path = Path(config.run.args_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config.flat(), indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--args_path {path}: {error.strerror}") from None
