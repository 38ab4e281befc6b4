"""Whether what a manifest says can be: its checksum tells that it is as it was written, not that it was written by this application."""

import math
from collections.abc import Mapping
from typing import Any

_COUNTS = ("step", "epoch", "batch", "samples", "evals_without_gain")


def check_values(manifest: Mapping[str, Any]) -> None:
    """Check the values that a run would act on, where they are there; whether they are the run's own is asked elsewhere.

    Raises:
        ValueError: names the value and what was expected.
    """
    if "step" in manifest:
        _check_count(manifest["step"], "step")
    position = manifest.get("position")
    if isinstance(position, Mapping):
        _check_position(position)
        if position.get("step", manifest.get("step")) != manifest.get("step"):
            raise ValueError(f"position.step is {position['step']}, step is {manifest.get('step')}; expected the same")
        if isinstance(run := manifest.get("run"), Mapping):
            _check_place(position, run)
    if "vocabularies" in manifest:
        _check_vocabularies(manifest["vocabularies"])


def _check_position(position: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        if name in position:
            _check_count(position[name], f"position.{name}")
    for name in ("best_auc", "last_auc"):
        auc = position.get(name)
        if auc is not None and not (type(auc) in (int, float) and 0 <= auc <= 1):
            raise ValueError(f"position.{name} is {_brief(auc)}, expected null or a number from 0 to 1")
    ranking = position.get("best_ranking", {})
    if not isinstance(ranking, Mapping) or not all(type(value) in (int, float) and 0 <= value <= 1 for value in ranking.values()):
        raise ValueError(f"position.best_ranking is {_brief(ranking)}, expected a mapping of metrics to numbers from 0 to 1")
    epoch = position.get("best_epoch")
    if epoch is not None and not (type(epoch) in (int, float) and 0 <= epoch < math.inf):
        raise ValueError(f"position.best_epoch is {_brief(epoch)}, expected null or a number of at least 0")
    if not isinstance(due := position.get("evaluation_due", False), bool):
        raise ValueError(f"position.evaluation_due is {_brief(due)}, expected true or false")


def _check_place(position: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Compare the place in the data with the steps done: an epoch of another length would never end."""
    samples, batch_size = run.get("train_samples"), run.get("batch_size")
    known = all(type(value) is int for value in (samples, batch_size, *(position.get(name) for name in ("step", "epoch", "batch"))))
    if not known or samples < 1 or batch_size < 1:
        return
    steps = run.get("steps_per_epoch")
    batches = steps if type(steps) is int and steps > 0 else math.ceil(samples / batch_size)
    step, epoch, batch = position["step"], position["epoch"], position["batch"]
    if batch > batches or step != epoch * batches + batch:
        raise ValueError(f"position says step {step}, epoch {epoch}, batch {batch}, which is no place in epochs of {batches} batches")


def _check_vocabularies(vocabularies: Any) -> None:
    if not isinstance(vocabularies, Mapping):
        raise ValueError(f"vocabularies is {_brief(vocabularies)}, expected a mapping of features")
    for feature, fact in vocabularies.items():
        if not isinstance(fact, Mapping) or not isinstance(fact.get("digest"), str):
            raise ValueError(f"vocabularies.{feature} is {_brief(fact)}, expected values and digest")
        _check_count(fact.get("values"), f"vocabularies.{feature}.values")


def _check_count(value: Any, name: str) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {_brief(value)}, expected a whole number of at least 0")


def _brief(value: Any) -> str:
    return repr(value)[:60]
