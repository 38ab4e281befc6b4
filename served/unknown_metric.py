"""How many raw values a served model does not know, as metrics of Triton: a share that rises says that a column has changed since training."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

VALUES, UNKNOWN = "dlrm_raw_values_total", "dlrm_unknown_raw_values_total"
_SECONDS = 1.0  # between reports: each costs a word with Triton's process, for which no answer is to wait
_MEANINGS = {
    VALUES: "Values of requests that were looked up in a feature's vocabulary",
    UNKNOWN: "Values of requests that a feature's vocabulary does not know",
}


class UnknownMetric:
    """Two counters of each feature, with labels `model`, `version` and `feature`; a thread reports once a second what has changed.

    Args:
        triton: the module `triton_python_backend_utils`.
        model: name of the model.
        version: its number.
        features: those that have a vocabulary.
        taken: gives the counts since it was called last, by feature: values, and unknown ones.

    Raises:
        Exception: Triton has no such metrics, or none at all (`--allow-metrics false`).
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
        """Report the rest, and end."""
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
    """The metric of a model of raw values; None, with a line in the server's log, where this Triton has no such metrics."""
    scorer.unknown.taken()  # of the rows that the version has checked itself with
    try:
        return UnknownMetric(triton, args["model_name"], args["model_version"], scorer.looked_up, scorer.unknown.taken)
    except Exception as error:  # Triton's own class, or none of the name
        print(f"{args['model_name']}: unknown values are not counted, this Triton has no such metrics: {error}", file=sys.stderr)
        return None
