"""The log file: 'DLLL' JSON lines, as the `dllogger` package writes them."""

import atexit
import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from utils.errors import UserError

UNITS = {
    "throughput": "samples/s",
    "mean_step_time_ms": "ms",
    "mean_inference_throughput": "samples/s",
    "mean_inference_latency": "s",
    "avg_inference_latency": "s",
    "average_train_throughput": "samples/s",
    "average_test_throughput": "samples/s",
    "best_epoch": "epochs",
    "p90_inference_latency": "s",
    "p95_inference_latency": "s",
    "p99_inference_latency": "s",
    "samples": "samples",
    "samples_per_s": "samples/s",
}

Warn = Callable[[str], None]
Units = Mapping[str, str | None]
NO_UNITS: Units = MappingProxyType({})


class RunLog:
    """A writer of log lines; `path` is empty on every worker but the first.

    A line is `DLLL ` and a JSON object with `timestamp` (seconds, as text), `datetime`, `elapsedtime`, `type`, `step`, `data`.
    Where `dllogger` can be imported, it writes the lines.

    Args:
        path: the file; empty for no log.
        parameters: logged first, as `step: "PARAMETER"`.
        append: append to the file instead of replacing it.
        units: the units of the run's own metrics, in addition to UNITS.
        warn: called once, when a line cannot be written (a full disk); the run then goes on without a log.

    Raises:
        UserError: the file cannot be opened.
    """

    def __init__(self, path: str, parameters: Mapping[str, Any], append: bool = False, warn: Warn = lambda text: None, *, units: Units = NO_UNITS):
        self._file = self._dllogger = None
        self._path, self._warn = path, warn
        self._start = time.time()
        if not path:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a" if append else "w", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        except OSError as error:
            raise UserError(f"--log_path {path}: {error.strerror}") from None
        try:
            import dllogger

            self._file.close()
            self._dllogger = dllogger
            dllogger.init(backends=[dllogger.JSONStreamBackend(dllogger.Verbosity.VERBOSE, path, **({"append": True} if append else {}))])
        except ImportError:
            atexit.register(self.close)
        self.log("PARAMETER", parameters)
        for metric, unit in (UNITS | units).items():
            self._metadata(metric, {"unit": unit})

    def log(self, step: str | int | Sequence[int], data: Mapping[str, Any]) -> None:
        """Write a line of data; `step` is the training step, or `()` for the run's final figures."""
        step = list(step) if isinstance(step, tuple) else step
        data = {key: _finite(value) for key, value in data.items()}
        if self._dllogger:
            self._try(lambda: self._dllogger.log(step=tuple(step) if isinstance(step, list) else step, data=data))
        else:
            self._line({"type": "LOG", "step": step, "data": data})

    def flush(self) -> None:
        """Flush the lines that `dllogger` buffers to the file."""
        if self._dllogger:
            self._try(self._dllogger.flush)

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        self._dllogger = None
        if self._file:
            self._try(self._file.close)
            self._file = None

    def _metadata(self, metric: str, metadata: Mapping[str, Any]) -> None:
        if self._dllogger:
            self._try(lambda: self._dllogger.metadata(metric, metadata))
        else:
            self._line({"type": "METADATA", "metric": metric, "metadata": metadata})

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            file, self._file, self._dllogger = self._file, None, None
            if file:
                with contextlib.suppress(OSError):
                    file.close()
            self._warn(f"--log_path {self._path}: {error.strerror}; nothing more is logged, the run continues")

    def _line(self, content: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        now = time.time()
        elapsed = now - self._start
        head = {"timestamp": f"{now:.6f}", "datetime": str(datetime.fromtimestamp(now, timezone.utc)), "elapsedtime": f"{elapsed:.6f}"}
        self._try(lambda: self._write(f"DLLL {json.dumps(head | content)}\n"))

    def _write(self, line: str) -> None:
        self._file.write(line)
        self._file.flush()


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None, for JSON has neither: an undefined figure is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
