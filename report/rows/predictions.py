"""Statistics of the rows of predictions: two models' metrics on the same rows, and a model's metrics by the values of a feature.

Predictions are the Parquet files of `--mode predict`; a dataset is a tf_raw folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from report.rows.values import grouping
from utils.errors import UserError
from utils.metrics.binary import classes_of
from utils.metrics.delong import area, difference_spreads

LEVEL = 0.95  # of every interval
NORMAL = 1.959963984540054  # standard errors on each side of it
_BLOCK = 1 << 20  # rows
# A float32 probability of 1 stands for all above 1 - 2^-25, and 0 for all below 2^-150: these limits keep a row's loss finite.
_LOWEST, _HIGHEST = 2.0**-150, 1 - 2.0**-25


@dataclass(frozen=True)
class Predictions:
    """The rows of a predictions file."""

    path: Path
    scores: np.ndarray  # [n] float32, probabilities
    positive: np.ndarray  # [n] bool
    rows: np.ndarray | None  # [n] the rows of the split; None for all of them, in order
    weighted: bool = False  # whether the file has the rows' weights, which the statistics here do not use


@dataclass(frozen=True)
class Interval:
    """A figure with its interval of 95%; the limits are None where the rows are too few for one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """A metric of two models on the same rows, and the second's less the first's."""

    first: float
    second: float
    difference: Interval


@dataclass(frozen=True)
class Paired:
    """The comparison of two models on the same rows. AUC and normalised entropy are None where all labels are the same."""

    rows: int
    positives: int
    auc: Difference | None
    log_loss: Difference
    normalized_entropy: Difference | None


@dataclass(frozen=True)
class ValueMetrics:
    """The metrics of the rows that have one value, or one range of values, of a feature; None where they are undefined."""

    value: str
    rows: int
    positives: int
    click_rate: Interval  # Wilson's interval
    mean_prediction: float
    calibration: Interval | None  # mean prediction / click rate; its upper limit is None where the click rate's lower one is 0
    auc: Interval | None
    log_loss: Interval


@dataclass(frozen=True)
class ByValue:
    """A model's metrics by the values of a feature.

    `overlap` is true for a feature with several ids a sample: a row then counts for each of its values. `note` says how the values were chosen.
    """

    feature: str
    split: str
    kind: str  # categorical or numerical
    overlap: bool
    note: str
    whole: ValueMetrics  # of all rows
    values: tuple[ValueMetrics, ...]


def read_predictions(path: str | Path) -> Predictions:
    """Read the rows of a predictions file.

    Raises:
        UserError: it is no predictions file, has no labels, or holds a score or a label that cannot be.
    """
    import polars as pl

    path = Path(path)
    if not path.is_file():
        raise UserError(f"--predictions {path}: {'not a file' if path.exists() else 'no such file'}; expected one that --mode predict wrote")
    try:
        kinds = pl.read_parquet_schema(path)
        missing = [name for name in ("row", "score") if name not in kinds]
        if missing:
            raise UserError(f"--predictions {path}: no column {missing[0]}; expected a file that --mode predict wrote (columns row, score, label)")
        if "label" not in kinds:
            raise UserError(f"--predictions {path}: it has no labels, so there are no metrics; predict a split that has labels")
        frame = pl.read_parquet(path, columns=["row", "score", "label"], glob=False)
        wrong = [name for name in frame.columns if not frame[name].dtype.is_numeric() or frame[name].null_count()]
        if wrong:
            raise UserError(f"--predictions {path}: column {wrong[0]} has missing values or is {frame[wrong[0]].dtype}; expected numbers")
        rows, scores, labels = (frame[name].to_numpy() for name in ("row", "score", "label"))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"--predictions {path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None
    if not len(scores):
        raise UserError(f"--predictions {path}: it has no rows")
    if not np.isin(labels, (0, 1)).all():
        raise UserError(f"--predictions {path}: label {labels[~np.isin(labels, (0, 1))][0]} is neither 0 nor 1")
    if not ((scores >= 0) & (scores <= 1)).all():
        bad = int(np.argmin((scores >= 0) & (scores <= 1)))
        raise UserError(f"--predictions {path}: row {rows[bad]}: score {scores[bad]} is no probability, expected 0 to 1")
    in_order = bool((rows == np.arange(len(rows), dtype=rows.dtype)).all())
    return Predictions(path, scores, labels.astype(bool), None if in_order else rows.astype(np.int64), "weight" in kinds)


def paired(first: Predictions, second: Predictions) -> Paired:
    """Compare two models on the same rows, with intervals of the differences (second less first).

    The AUC's interval is DeLong's for two correlated AUCs. The normalised entropy's treats the click rate, the same for both, as known.

    Raises:
        UserError: the rows or their labels are not the same.
    """
    _check_same(first, second)
    positive, both = first.positive, (first.scores, second.scores)
    count, positives = len(positive), int(np.count_nonzero(positive))
    means, spread = _moments([_losses(scores, positive) for scores in both], count)
    loss = Difference(means[0], means[1], _interval(means[1] - means[0], None if spread is None else spread / count))
    if positives in (0, count):
        return Paired(count, positives, None, loss, None)
    rate = positives / count
    entropy = float(-(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))
    scaled = Interval(*(None if limit is None else limit / entropy for limit in vars(loss.difference).values()))
    return Paired(count, positives, _auc_difference(both, positive), loss, Difference(means[0] / entropy, means[1] / entropy, scaled))


def _check_same(first: Predictions, second: Predictions) -> None:
    if len(first.scores) != len(second.scores):
        raise UserError(
            f"--predictions {second.path}: {len(second.scores):,} rows, {first.path} has {len(first.scores):,}; expected predictions of the same rows"
        )
    here, there = (np.arange(len(one.scores)) if one.rows is None else one.rows for one in (first, second))
    for what, differ in (("row", here != there), ("label", first.positive != second.positive)):
        if differ.any():
            at = int(np.argmax(differ))
            found = (there[at], here[at]) if what == "row" else (int(second.positive[at]), int(first.positive[at]))
            place = f"place {at}" if what == "row" else f"row {here[at]}"
            raise UserError(
                f"--predictions {second.path}: {place}: {what} {found[0]}, in {first.path} {found[1]}; expected predictions of the same rows "
                "of the same dataset"
            )


def _losses(scores: np.ndarray, positive: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the log loss of each row, in blocks."""
    for start in range(0, len(scores), _BLOCK):
        clipped = np.clip(scores[start : start + _BLOCK].astype(np.float64), _LOWEST, _HIGHEST)
        yield -np.where(positive[start : start + _BLOCK], np.log(clipped), np.log1p(-clipped))


def _moments(values: list[Iterator[np.ndarray]], count: int) -> tuple[list[float], float | None]:
    """Return the means of one or two series of blocks, and the variance of the only one or of their difference; None for a single value."""
    totals, differences = [0.0] * len(values), []
    squares = total = 0.0
    for blocks in zip(*values, strict=True):
        totals = [before + float(block.sum()) for before, block in zip(totals, blocks, strict=True)]
        differences = blocks[0] if len(blocks) == 1 else blocks[1] - blocks[0]
        total, squares = total + float(differences.sum()), squares + float(differences @ differences)
    variance = None if count < 2 else max(0.0, squares - total * total / count) / (count - 1)
    return [total / count for total in totals], variance


def _auc_difference(both: tuple[np.ndarray, np.ndarray], positive: np.ndarray) -> Difference:
    first, second = (area(*classes_of(scores, positive)).auc for scores in both)
    spreads = difference_spreads(*both, positive)
    return Difference(first, second, _interval(second - first, None if None in spreads else sum(spreads)))


def _interval(value: float, variance: float | None) -> Interval:
    if variance is None:
        return Interval(value, None, None)
    width = NORMAL * variance**0.5
    return Interval(value, value - width, value + width)


def _of_auc(auc: float, variance: float | None) -> Interval:
    """Return an AUC with its interval, within 0 and 1. Classes that do not overlap have no interval: their variance of 0 says nothing."""
    if not variance:
        return Interval(auc, None, None)
    found = _interval(auc, variance)
    return Interval(auc, max(0.0, found.low), min(1.0, found.high))


def wilson(positives: int, count: int) -> Interval:
    """Return a share with Wilson's score interval, which holds for small shares and few rows, too."""
    share, square = positives / count, NORMAL**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    width = NORMAL * (share * (1 - share) / count + square / (4 * count**2)) ** 0.5 / (1 + square / count)
    return Interval(share, 0.0 if positives == 0 else max(0.0, centre - width), 1.0 if positives == count else min(1.0, centre + width))


def by_value(predictions: Predictions, dataset: str | Path, feature: str) -> ByValue:
    """Compute a model's metrics by the values of a feature: of a categorical one the 20 most frequent and the rest, of a numerical one ten ranges.

    Args:
        predictions: predictions of a split of the dataset.
        dataset: folder of a tf_raw dataset.
        feature: name of a categorical or a numerical feature.

    Raises:
        UserError: the dataset cannot be read, has no such feature, or has no split with these rows and labels.
    """
    values = grouping(Path(dataset), feature, predictions.positive, predictions.rows, predictions.path)
    found = tuple(metrics_of(name, predictions.scores[rows], predictions.positive[rows]) for name, rows in values.groups())
    whole = metrics_of("all rows", predictions.scores, predictions.positive)
    return ByValue(feature, values.split, values.kind, values.overlap, values.note, whole, found)


def metrics_of(value: str, scores: np.ndarray, positive: np.ndarray) -> ValueMetrics:
    """Return the metrics of rows, at least one: scores `[n]` are probabilities, `positive` `[n]` bool."""
    count, positives = len(scores), int(np.count_nonzero(positive))
    (loss,), spread = _moments([_losses(scores, positive)], count)
    rate, mean = wilson(positives, count), float(scores.mean(dtype=np.float64))
    auc = None
    if 0 < positives < count:
        auc = _of_auc(*area(*classes_of(scores, positive)))
    calibration = Interval(mean / rate.value, mean / rate.high, mean / rate.low if rate.low else None) if positives else None
    return ValueMetrics(value, count, positives, rate, mean, calibration, auc, _interval(loss, None if spread is None else spread / count))
