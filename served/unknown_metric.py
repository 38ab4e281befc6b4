"""Triton metrics that count the raw values unknown to a served model: a rising share means that a column has changed since training."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

VALUES, UNKNOWN = "dlrm_raw_values_total", "dlrm_unknown_raw_values_total"
_SECONDS = 1.0  # between reports: each exchanges messages with Triton's process, which must not delay answers
_MEANINGS = {
    VALUES: "Values of requests that were looked up in a feature's vocabulary",
    UNKNOWN: "Values of requests that a feature's vocabulary does not know",
}


class UnknownMetric:
    """Two counters for each feature, with labels `model`, `version` and `feature`. A thread reports changes once a second.

    Args:
        triton: the module `triton_python_backend_utils`.
        model: name of the model.
        version: number of the version.
        features: the features that have a vocabulary.
        taken: returns the counts since its last call, by feature: values and unknown values.

    Raises:
        Exception: this Triton has no such metrics, or they are off (`--allow-metrics false`).
    """

    def __init__(self, triton: Any, model: str, version: str, features: Iterable[str], taken: Callable[[], Mapping[str, tuple[int, int]]]):
        self._families = {
            name: triton.MetricFamily(name=name, description=text, kind=triton.MetricFamily.COUNTER) for name, text in _MEANINGS.items()
        }
        self._metrics = {
            (name, feature): family.Metric(labels={"model": model, "version": version, "feature": feature})
            for feature in features
            for name, family in self._families.items()
        }
        self._taken, self._closed = taken, threading.Event()
        self._thread = threading.Thread(target=self._run, name="unknown values", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the remaining counts and stop the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_SECONDS):
            self._report()
        self._report()

    def _report(self) -> None:
        for feature, counts in self._taken().items():
            for name, count in zip(_MEANINGS, counts, strict=True):
                if count:
                    self._metrics[name, feature].increment(count)


def unknown_metric(triton: Any, args: Mapping[str, str], scorer: Any) -> UnknownMetric | None:
    """Return the metric of a model of raw values; None, with a line in the server's log, where this Triton has no such metrics."""
    scorer.unknown.taken()  # drops the counts of the self-check's rows
    try:
        return UnknownMetric(triton, args["model_name"], args["model_version"], scorer.looked_up, scorer.unknown.taken)
    except Exception as error:  # Triton's own exception class, or AttributeError where the name is missing
        print(f"{args['model_name']}: unknown values are not counted, this Triton has no such metrics: {error}", file=sys.stderr)
        return None
