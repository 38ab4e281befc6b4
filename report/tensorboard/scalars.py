"""The scalars that TensorBoard shows of a log's lines: their tags, their values and their steps. Imports nothing but the standard library."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

FINAL = "final"
_OF_RUN = "final_run"  # final figures beside the metrics: TensorBoard's table of hyper-parameters shows the first five tags, in alphabetical order
_SINGLE_STEP = "batch_samplesps"
_TRAINING = {
    "loss": "train/loss",
    "samples": "train/samples",
    "samples_per_s": "speed/samples_per_s",
    _SINGLE_STEP: "speed/samples_per_s_of_step",
    "step_time_ms": "speed/step_ms",
    "input_ms": "speed/input_ms",
    "exchange_ms": "speed/exchange_ms",
    "saving_ms": "speed/saving_ms",
    "learning_rate": "learning_rate/dense",
    "embedding_learning_rate": "learning_rate/tables",
    "memory_gib": "memory/first_worker_gib",
    "skipped_steps": "skipped_steps",
    "clipped_steps": "clipped_steps",
    "weightless_steps": "weightless_steps",
    "ids_out_of_range": "ids_out_of_range",
}
_BY_GROUP = ("learning_rate/", "gradient_norm/", "weight_norm/")  # keys that are tags as they stand
_OF_SPEED = {_SINGLE_STEP, "samples_per_s", "step_time_ms"}  # a line with one of these is no evaluation
_EVALUATED = {"loss": "log_loss", "auc_roc": "auc", "streaming_map": "map_at_12"}  # names in other logs: the name here
_SUMMARISED = ("auc", "log_loss", "normalized_entropy", "calibration", "samples", "positives")
_BESIDE = ("best_", "last_", "valid_", "average_", "avg_", "steps", "samples", "tested_step", "mean_step_time_ms")  # beginnings of final keys
_FINAL = {"validation_loss": "log_loss", "test_loss": "log_loss", "throughput": "samples_per_s"}


class Scalars(NamedTuple):
    """The scalars of a line.

    Attributes:
        step: the training step; None where the line has none, because it is the run's last.
        values: a value by tag.
    """

    step: int | None
    values: dict[str, float]


def scalars_of(step: str | Sequence[int], data: Mapping[str, Any], form: str, training: bool) -> Scalars:
    """Return the scalars of a line; none for a kind of line that has no scalars.

    Args:
        step, data: the line.
        form: the run's `step_form`: "epoch,step", "step,steps" or "1,step".
        training: false for a run that does not train; its lines with numbers as step are about parts of an evaluation.
    """
    if step == "EVALUATION":
        return Scalars(data.get("step"), _numbers(dict(_summarised(data))))
    if step == "TABLES":
        return Scalars(data.get("step"), _numbers(dict(_of_tables(data))))
    if step == "CHECKPOINT":
        return Scalars(data.get("step"), _numbers({f"saving/{name}": data.get(name) for name in ("seconds", "waited_seconds")}))
    if isinstance(step, str):
        return Scalars(data.get("step") if step == "FAULT" else None, {})
    if not step:
        tags = {f"{_OF_RUN if _is_beside(name) else FINAL}/{_FINAL.get(name, name)}": value for name, value in data.items()}
        return Scalars(data.get("tested_step"), _numbers(tags))
    if not training:
        return Scalars(None, {})
    tags = _evaluated(data) if _is_evaluation(data) else _trained(data)
    return Scalars(number_of(step, data, form), _numbers(tags))


def is_final(tag: str) -> bool:
    """Return whether a tag is a metric of the finished run."""
    return tag.startswith(f"{FINAL}/")


def number_of(step: Sequence[int], data: Mapping[str, Any], form: str) -> int:
    """Return the training step of a line whose step is a list of numbers; see `scalars_of`."""
    return step[0] if form == "step,steps" and _SINGLE_STEP not in data else step[-1]


def _numbers(tags: Mapping[str, Any]) -> dict[str, float]:
    """Keep the figures; numbers that a log has as text, as NVIDIA's of Wide & Deep does, become numbers, and undefined ones are left out."""
    found = {}
    for tag, value in tags.items():
        try:
            if value is not None and not isinstance(value, bool | list | dict):
                found[tag] = float(value)
        except (ValueError, OverflowError):
            continue
    return found


def _trained(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a training line by tag. In the log of Wide & Deep `loss` is that of the last batch, and `mean_loss` the mean."""
    tags = {_TRAINING.get(name) or (name if name.startswith(_BY_GROUP) else f"train/{name}"): value for name, value in data.items()}
    if "train/mean_loss" in tags:
        tags["train/loss_of_batch"], tags["train/loss"] = tags.pop("train/loss", None), tags.pop("train/mean_loss")
    return tags


def _is_beside(name: str) -> bool:
    return name.startswith(_BESIDE) or name.endswith(("_val", "_throughput"))


def _is_evaluation(data: Mapping[str, Any]) -> bool:
    return data.keys().isdisjoint(_OF_SPEED) and any(name.endswith(("_loss", "_val")) or name in ("auc", "auc_roc") for name in data)


def _evaluated(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of an evaluation by tag. The first of two names of one figure counts."""
    split = next((name.removesuffix("_loss") for name in data if name.endswith("_loss")), "test")
    found: dict[str, Any] = {}
    for name, value in data.items():
        name = name.removeprefix(f"{split}_").removesuffix("_val")
        found.setdefault(f"{split}/{_EVALUATED.get(name, name)}", value)
    return found


def _summarised(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    split = data.get("split", "test")
    for name in _SUMMARISED:
        count = data.get("final") and name in ("samples", "positives")
        yield f"{_OF_RUN}/{split}_{name}" if count else f"{FINAL if data.get('final') else split}/{name}", data.get(name)


def _of_tables(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, room in (("touched", "touched"), ("norms", "table_norm")):
        yield from ((f"{room}/{table}", value) for table, value in (data.get(key) or {}).items())
    for worker, peak in enumerate(data.get("memory_gib") or ()):
        yield f"memory/peak_gib_of_worker_{worker}", peak
