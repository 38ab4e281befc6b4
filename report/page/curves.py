"""Plots of training: loss, metrics, learning rates, speed and its parts, norms, by step, samples or time."""

from collections.abc import Iterator, Sequence

from report.log.record import Record
from report.log.thinning import POINTS, Curve
from report.page.measures import auc_interval, normal_interval
from report.page.plots import Plot, Series, of_curve, thin

_METRICS = {
    "auc": "AUC",
    "log_loss": "log loss",
    "normalized_entropy": "normalised entropy",
    "calibration": "calibration (predicted / observed)",
}
_VARIANCES = {"auc": ("auc_variance", auc_interval), "log_loss": ("log_loss_variance", normal_interval)}
_PARTS = {"input_ms": "waiting for the reader", "exchange_ms": "exchanges", "saving_ms": "saving"}
_KNOWN = {"loss", "mean_loss", "samples_per_s", "step_time_ms", "learning_rate", "embedding_learning_rate", "memory_gib", "batch_samplesps", *_PARTS}
_COUNTS = {
    "skipped_steps": "skipped steps",
    "clipped_steps": "clipped steps",
    "weightless_steps": "steps without weight",
    "ids_out_of_range": "ids out of range",
}
SPLIT_COLOURS = {"valid": 1, "test": 2}


def training_plots(record: Record, most: int = POINTS) -> Iterator[tuple[str, Plot]]:
    """Yield the name of a section and each of its plots; those without figures in the log are left out.

    Args:
        record: the run.
        most: the most points of a curve.
    """
    for heading, plot in (*_learning(record, most), *_rates(record, most), *_speed(record, most), *_others(record, most)):
        if plot.series:
            yield heading, plot


def _curves(record: Record, named: dict[str, str], most: int) -> list[Series]:
    found = ((label, record.training.get(key)) for key, label in named.items())
    return [of_curve(label, curve, most) for label, curve in found if curve is not None and curve.last]


def loss_key(record: Record) -> str:
    """Return the key of the mean loss since the line before; in the form of Wide & Deep `loss` is that of one batch."""
    return "mean_loss" if "mean_loss" in record.training else "loss"


def undefined(curves: Sequence[tuple[str, Curve]]) -> str:
    """Return a sentence about figures that are not finite; empty without any."""
    found = [f"{label}: {curve.undefined:,} not finite, the first at step {curve.undefined_step:,}" for label, curve in curves if curve.undefined]
    return "; ".join(found) + ("." if found else "")


def _learning(record: Record, most: int) -> Iterator[tuple[str, Plot]]:
    heading = "Loss and metrics"
    loss = record.training.get(loss_key(record))
    if loss is not None:
        named = {"mean_loss": "training loss", "loss": "of one batch"} if loss_key(record) == "mean_loss" else {"loss": "training loss"}
        told = undefined([("loss", loss)])
        if loss.thinned or loss.count > most:
            told += f" Of {loss.count:,} figures the lowest and highest of each part are shown."
        said = "The mean loss of the training batches since the line before. " + told
        yield heading, Plot("loss", "Training loss", "log loss", _curves(record, named, most), note=said.strip())
    for key, label in _METRICS.items():
        series = [metric(record, split, key, split, most) for split in _splits(record)]
        yield heading, Plot(f"metric-{key}", label[:1].upper() + label[1:], label, [one for one in series if one], note=_sure(key, series))
    groups = sorted({key for _, key in record.metrics if key not in _METRICS and not key.endswith("_variance")})
    for key in groups:
        series = [metric(record, split, key, split, most) for split in _splits(record)]
        yield heading, Plot(f"metric-{key}", key.replace("_at_", "@").replace("_", " "), key, [one for one in series if one])


def _sure(key: str, series: Sequence[Series | None]) -> str:
    if not any(one and one.low for one in series):
        return ""
    how = "DeLong's interval" if key == "auc" else "the normal interval of a mean"
    return f"The band is {how} of 95%: it says how sure the figure is as one of other rows of the same kind."


def _splits(record: Record) -> list[str]:
    return sorted({split for split, _ in record.metrics}, key=lambda split: (split != "valid", split))


def metric(record: Record, split: str, key: str, label: str, most: int = POINTS, **options: int) -> Series | None:
    """Return a metric of a split by step, with its interval where the log has one; None without figures."""
    curve = record.metrics.get((split, key))
    if curve is None or curve.last is None:
        return None
    colour = {"colour": SPLIT_COLOURS[split]} if split in SPLIT_COLOURS and not options else {}
    variance_key, limits = _VARIANCES.get(key, ("", None))
    variances = record.metrics.get((split, variance_key))
    points = thin(curve.points(), most)
    low, high = (), ()
    if variances is not None and limits is not None:
        of_step = {point.step: point.value for point in variances.points()}
        pairs = [limits(point.value, of_step.get(point.step)) for point in points]
        low, high = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    alone = {"points": True} if len(points) == 1 else {}  # its interval is drawn as a line
    return Series(label, [point[:3] for point in points], [point.value for point in points], low, high, **{**colour, **alone, **options})


def _rates(record: Record, most: int) -> Iterator[tuple[str, Plot]]:
    named = {"learning_rate": "dense layers", "embedding_learning_rate": "tables"}
    named |= {key: key.removeprefix("learning_rate/") for key in record.training if key.startswith("learning_rate/")}
    if "embedding_learning_rate" not in record.training:
        named["learning_rate"] = "all weights" if len(named) == 2 else "dense layers and tables"
    yield "Learning rates", Plot("rates", "Learning rates", "learning rate", _curves(record, named, most), whole=True)


def _speed(record: Record, most: int) -> Iterator[tuple[str, Plot]]:
    heading = "Speed and memory"
    so_far = "The mean of its process so far, without evaluations and saving."
    named = {"samples_per_s": "over all workers", "batch_samplesps": "single steps"}
    yield heading, Plot("throughput", "Throughput", "samples/s", _curves(record, named, most), note=so_far, whole=True)
    parts = step_parts(record, most)
    if parts:
        said = (
            "Milliseconds of a step: waiting for the reader, exchanges between workers, saving, each the mean since the line before. The rest is "
            "computing: the time of a step, which is the mean of its process so far, less these parts, so it is approximate, and never below 0."
        )
        yield heading, Plot("parts", "Where a step's time goes", "ms a step", parts, kind="stack", note=said, whole=True)
    yield heading, Plot("step-time", "Time of a step", "ms", _curves(record, {"step_time_ms": "mean time of a step"}, most), whole=True)
    yield heading, Plot("memory", "Memory of the first worker", "GiB", _curves(record, {"memory_gib": "resident set"}, most), whole=True)


def step_parts(record: Record, most: int) -> list[Series]:
    """Return the parts of a step's time at the steps where the log has all of them; an empty list without parts."""
    keys = [key for key in _PARTS if key in record.training]
    whole = record.training.get("step_time_ms")
    if not keys or whole is None:
        return []
    of_step = {key: {point.step: point.value for point in record.training[key].points()} for key in keys}
    points = thin([point for point in whole.points() if all(point.step in of_step[key] for key in keys)], most)
    places = [point[:3] for point in points]
    inside = [key for key in keys if key != "saving_ms"]  # the time of a step is without saving
    rest = [max(0.0, point.value - sum(of_step[key][point.step] for key in inside)) for point in points]
    found = [Series(_PARTS[key], places, [of_step[key][point.step] for point in points]) for key in keys]
    return [*found, Series("the rest", places, rest)]


def _others(record: Record, most: int) -> Iterator[tuple[str, Plot]]:
    for prefix, title in (("gradient_norm", "Norms of the gradients"), ("weight_norm", "Norms of the weights")):
        named = {key: key.partition("/")[2] or "all" for key in record.training if key.partition("/")[0] == prefix}
        yield "Norms", Plot(prefix.replace("_", "-"), title, "L2 norm", _curves(record, named, most))
    yield "Counts", Plot("counts", "Skipped steps and ids out of range", "so far", _curves(record, _COUNTS, most), whole=True)
    prefixes = ("gradient_norm", "weight_norm", "learning_rate")
    rest = [key for key in record.training if key not in _KNOWN and key not in _COUNTS and key.partition("/")[0] not in prefixes]
    for place, key in enumerate(rest[:20]):
        yield "Other figures", Plot(f"other-{place}", key, key, _curves(record, {key: key}, most))
