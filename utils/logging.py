"""The log file: 'DLLL' JSON lines, as the `dllogger` package writes them."""

import atexit
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from utils.errors import UserError
from utils.log_file import open_log

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
    "step_time_ms": "ms",
    "input_ms": "ms",
    "exchange_ms": "ms",
    "saving_ms": "ms",
    "memory_gib": "GiB",
}

Warn = Callable[[str], None]
Units = Mapping[str, str | None]
NO_UNITS: Units = MappingProxyType({})


class Observer(Protocol):
    """A reader of a log's lines in the same process, TensorBoard's files for instance."""

    def line(self, step: str | int | list[int], data: Mapping[str, Any]) -> None:
        """Take a line as it is logged."""

    def close(self) -> None:
        """Take note that no line follows."""


class RunLog:
    """A writer of log lines; `path` is empty on every worker but the first.

    A line is `DLLL ` and a JSON object with `timestamp` (seconds, as text), `datetime`, `elapsedtime`, `type`, `step`, `data`.
    Where `dllogger` can be imported, it writes the lines.

    Args:
        path: the file; empty for no log. Another run's file of this name is renamed, see `log_file`.
        parameters: logged first, as `step: "PARAMETER"`.
        resumes: the id of the run that goes on and appends to its file, see `log_file.open_log`; None for a new run.
        warn: called once, when a line cannot be written (a full disk); the run then goes on without a log.
        units: the units of the run's own metrics, in addition to UNITS.
        observers: called for every line, with or without a file.

    Attributes:
        path: the file's absolute path without links; None without a file, and for devices and pipes.

    Raises:
        UserError: the file cannot be opened.
    """

    def __init__(
        self,
        path: str,
        parameters: Mapping[str, Any],
        resumes: str | None = None,
        warn: Warn = lambda text: None,
        *,
        units: Units = NO_UNITS,
        observers: Iterable[Observer] = (),
    ):
        self._file = self._dllogger = None
        self._given, self._warn, self._observers = path, warn, list(observers)
        self._start = time.time()
        self.path: Path | None = None
        if path:
            self._open(path, resumes)
        self.log("PARAMETER", parameters)
        for metric, unit in (UNITS | units).items():
            self._metadata(metric, {"unit": unit})

    def _open(self, path: str, resumes: str | None) -> None:
        try:
            self._file, self.path, appends = open_log(path, resumes)
        except OSError as error:
            raise UserError(f"--log_path {path}: {error.strerror}") from None
        try:
            import dllogger

            self._dllogger = dllogger  # it opens the file once more; this process keeps its own, which is locked
            dllogger.init(backends=[dllogger.JSONStreamBackend(dllogger.Verbosity.VERBOSE, path, **({"append": True} if appends else {}))])
        except ImportError:
            atexit.register(self.close)

    def log(self, step: str | int | Sequence[int], data: Mapping[str, Any]) -> None:
        """Write a line of data; `step` is the training step, a text, or `()` for the run's final figures."""
        step = list(step) if isinstance(step, tuple) else step
        data = {key: _finite(value) for key, value in data.items()}
        for observer in list(self._observers):
            self._observed(observer, lambda: observer.line(step, data))  # noqa: B023 - called at once
        if self._dllogger:
            self._try(lambda: self._dllogger.log(step=tuple(step) if isinstance(step, list) else step, data=data))
        else:
            self._line({"type": "LOG", "step": step, "data": data})

    def flush(self) -> None:
        """Flush the lines that `dllogger` buffers to the file."""
        if self._dllogger:
            self._try(self._dllogger.flush)

    def close(self) -> None:
        """Flush and close the file, and close the observers."""
        self.flush()
        self._dllogger = None
        for observer in list(self._observers):
            self._observed(observer, observer.close)
        self._observers = []
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
            self._warn(f"--log_path {self._given}: {error.strerror}; nothing more is logged, the run continues")

    def _observed(self, observer: Observer, action: Callable[[], object]) -> None:
        """Call an observer; after an error it is not called any more."""
        try:
            action()
        except OSError as error:
            self._observers.remove(observer)
            self._warn(f"{error.filename or type(observer).__name__}: {error.strerror}; nothing more is written there, the run continues")

    def _line(self, content: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        now = time.time()
        elapsed = now - self._start
        head = {"timestamp": f"{now:.6f}", "datetime": str(datetime.fromtimestamp(now, UTC)), "elapsedtime": f"{elapsed:.6f}"}
        self._try(lambda: self._write(f"DLLL {json.dumps(head | content)}\n"))

    def _write(self, line: str) -> None:
        self._file.write(line)
        self._file.flush()


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None, in lists and mappings too, for JSON has neither: an undefined figure is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
