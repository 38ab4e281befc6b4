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
from utils.metrics.delong import WeightedMoments, area, difference_spreads
from utils.metrics.weighted import area as weighted_area
from utils.metrics.weighted import counted, sorted_keys

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
    weights: np.ndarray | None = None  # [n] float32, how much each row counts; None where every row counts once


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
    """The comparison of two models on the same rows. AUC and normalised entropy are None where the rows that count are of one class."""

    rows: int
    positives: int
    auc: Difference | None
    log_loss: Difference
    normalized_entropy: Difference | None


@dataclass(frozen=True)
class ValueMetrics:
    """The metrics of the rows that have one value, or one range of values, of a feature; None where they are undefined.

    Where rows have weights, all but the counts `rows` and `positives` are weighted.
    """

    value: str
    rows: int
    positives: int
    click_rate: Interval | None  # Wilson's interval
    mean_prediction: float | None
    calibration: Interval | None  # mean prediction / click rate; its upper limit is None where the click rate's lower one is 0
    auc: Interval | None
    log_loss: Interval | None


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
        UserError: it is no predictions file, has no labels, or holds a score, a label or a weight that cannot be.
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
        frame = pl.read_parquet(path, columns=[name for name in ("row", "score", "label", "weight") if name in kinds], glob=False)
        wrong = [name for name in frame.columns if not frame[name].dtype.is_numeric() or frame[name].null_count()]
        if wrong:
            raise UserError(f"--predictions {path}: column {wrong[0]} has missing values or is {frame[wrong[0]].dtype}; expected numbers")
        rows, scores, labels = (frame[name].to_numpy() for name in ("row", "score", "label"))
        weights = frame["weight"].to_numpy().astype(np.float32) if "weight" in kinds else None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"--predictions {path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None
    if not len(scores):
        raise UserError(f"--predictions {path}: it has no rows")
    if not np.isin(labels, (0, 1)).all():
        raise UserError(f"--predictions {path}: label {labels[~np.isin(labels, (0, 1))][0]} is neither 0 nor 1")
    if not ((scores >= 0) & (scores <= 1)).all():
        bad = int(np.argmin((scores >= 0) & (scores <= 1)))
        raise UserError(f"--predictions {path}: row {rows[bad]}: score {scores[bad]} is no probability, expected 0 to 1")
    if weights is not None and not ((weights >= 0) & np.isfinite(weights)).all():
        bad = int(np.argmin((weights >= 0) & np.isfinite(weights)))
        raise UserError(f"--predictions {path}: row {rows[bad]}: weight {weights[bad]} is no finite number of at least 0")
    in_order = bool((rows == np.arange(len(rows), dtype=rows.dtype)).all())
    return Predictions(path, scores, labels.astype(bool), None if in_order else rows.astype(np.int64), weights)


def paired(first: Predictions, second: Predictions) -> Paired:
    """Compare two models on the same rows, with intervals of the differences (second less first).

    The AUC's interval is DeLong's for two correlated AUCs. The normalised entropy's treats the click rate, the same for both, as known. Where rows
    have weights, all but the counts of rows is weighted; see `delong.difference_spreads`.

    Raises:
        UserError: the rows, their labels or their weights are not the same, or no row has weight.
    """
    _check_same(first, second)
    count, positives = len(first.positive), int(np.count_nonzero(first.positive))
    positive, *both, weights = _counted(first.positive, first.scores, second.scores, weights=first.weights)
    if not len(positive):
        raise UserError(f"--predictions {first.path}: no row has weight")
    means, variance = _moments([_losses(scores, positive) for scores in both], len(positive), weights)
    loss = Difference(means[0], means[1], _interval(means[1] - means[0], variance))
    if positive.all() or not positive.any():
        return Paired(count, positives, None, loss, None)
    rate = positives / count if weights is None else float(weights[positive].sum(dtype=np.float64) / weights.sum(dtype=np.float64))
    entropy = float(-(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)))
    scaled = Interval(*(None if limit is None else limit / entropy for limit in vars(loss.difference).values()))
    return Paired(count, positives, _auc_difference(both, positive, weights), loss, Difference(means[0] / entropy, means[1] / entropy, scaled))


def _check_same(first: Predictions, second: Predictions) -> None:
    if len(first.scores) != len(second.scores):
        raise UserError(
            f"--predictions {second.path}: {len(second.scores):,} rows, {first.path} has {len(first.scores):,}; expected predictions of the same rows"
        )
    here, there = (np.arange(len(one.scores)) if one.rows is None else one.rows for one in (first, second))
    if (first.weights is None) != (second.weights is None):
        of = "weights, " if first.weights is None else "no weights, "
        raise UserError(f"--predictions {second.path}: the rows have {of}unlike those of {first.path}; expected predictions of the same rows")
    weighted = first.weights is not None
    columns = {"row": (here, there), "label": (first.positive, second.positive)} | ({"weight": (first.weights, second.weights)} if weighted else {})
    for what, (one, other) in columns.items():
        if (differ := one != other).any():
            at = int(np.argmax(differ))
            found = (int(other[at]), int(one[at])) if what == "label" else (other[at], one[at])
            place = f"place {at}" if what == "row" else f"row {here[at]}"
            raise UserError(
                f"--predictions {second.path}: {place}: {what} {found[0]}, in {first.path} {found[1]}; expected predictions of the same rows "
                "of the same dataset"
            )


def _counted(*columns: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
    """Return the columns and the weights of the rows that count."""
    return (*columns, None) if weights is None else counted(weights, *columns)


def _losses(scores: np.ndarray, positive: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the log loss of each row, in blocks."""
    for start in range(0, len(scores), _BLOCK):
        clipped = np.clip(scores[start : start + _BLOCK].astype(np.float64), _LOWEST, _HIGHEST)
        yield -np.where(positive[start : start + _BLOCK], np.log(clipped), np.log1p(-clipped))


def _moments(values: list[Iterator[np.ndarray]], count: int, weights: np.ndarray | None) -> tuple[list[float], float | None]:
    """Return the means of one or two series of blocks, and the variance of the only mean or of their difference; None for a single value."""
    if weights is not None:
        return _weighted_moments(values, weights)
    totals, differences = [0.0] * len(values), []
    squares = total = 0.0
    for blocks in zip(*values, strict=True):
        totals = [before + float(block.sum()) for before, block in zip(totals, blocks, strict=True)]
        differences = blocks[0] if len(blocks) == 1 else blocks[1] - blocks[0]
        total, squares = total + float(differences.sum()), squares + float(differences @ differences)
    variance = None if count < 2 else max(0.0, squares - total * total / count) / (count - 1) / count
    return [total / count for total in totals], variance


def _weighted_moments(values: list[Iterator[np.ndarray]], weights: np.ndarray) -> tuple[list[float], float | None]:
    each, change, start = [WeightedMoments() for _ in values], WeightedMoments(), 0
    for blocks in zip(*values, strict=True):
        of_block = weights[start : start + len(blocks[0])].astype(np.float64)
        for moments, block in zip(each, blocks, strict=True):
            moments.add(block, of_block)
        change.add(blocks[-1] - (blocks[0] if len(blocks) > 1 else 0.0), of_block)
        start += len(of_block)
    return [moments.mean for moments in each], change.variance


def _area(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> float:
    if weights is None:
        return area(*classes_of(scores, positive)).auc
    return weighted_area(sorted_keys(scores, positive, weights))


def _auc_difference(both: tuple[np.ndarray, np.ndarray], positive: np.ndarray, weights: np.ndarray | None) -> Difference:
    first, second = (_area(scores, positive, weights) for scores in both)
    spreads = difference_spreads(*both, positive, weights=weights)
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


def wilson(positives: float, count: float, effective: float | None = None) -> Interval:
    """Return a share with Wilson's score interval, which holds for small shares and few rows, too.

    Args:
        positives: the number of positive rows, or their weight.
        count: that of all rows.
        effective: the effective number of rows, where these are weights.
    """
    share, square = positives / count, NORMAL**2
    if effective is not None:
        positives, count = share * effective, effective
    centre = (share + square / (2 * count)) / (1 + square / count)
    width = NORMAL * (share * (1 - share) / count + square / (4 * count**2)) ** 0.5 / (1 + square / count)
    return Interval(share, 0.0 if share == 0 else max(0.0, centre - width), 1.0 if share == 1 else min(1.0, centre + width))


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
    weights = predictions.weights
    found = tuple(
        metrics_of(name, predictions.scores[rows], predictions.positive[rows], None if weights is None else weights[rows])
        for name, rows in values.groups()
    )
    whole = metrics_of("all rows", predictions.scores, predictions.positive, weights)
    return ByValue(feature, values.split, values.kind, values.overlap, values.note, whole, found)


def metrics_of(value: str, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> ValueMetrics:
    """Return the metrics of rows, at least one: scores `[n]` are probabilities, `positive` `[n]` bool, and weights `[n]` float32 or None."""
    count, positives = len(scores), int(np.count_nonzero(positive))
    positive, scores, weights = _counted(positive, scores, weights=weights)
    if not len(scores):
        return ValueMetrics(value, count, positives, None, None, None, None, None)
    (loss,), variance = _moments([_losses(scores, positive)], len(scores), weights)
    if weights is None:
        rate, mean = wilson(positives, count), float(scores.mean(dtype=np.float64))
    else:
        wide = weights.astype(np.float64)
        rate = wilson(float(wide[positive].sum()), float(wide.sum()), float(wide.sum() ** 2 / (wide @ wide)))
        mean = float(wide @ scores / wide.sum())
    auc = None
    if positive.any() and not positive.all():
        auc = _of_auc(*(area(*classes_of(scores, positive)) if weights is None else _weighted_area(scores, positive, weights)))
    calibration = Interval(mean / rate.value, mean / rate.high, mean / rate.low if rate.low else None) if rate.value else None
    return ValueMetrics(value, count, positives, rate, mean, calibration, auc, _interval(loss, variance))


def _weighted_area(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> tuple[float, float | None]:
    """Return the weighted AUC and its variance: that of the difference from scores that know nothing."""
    spreads = difference_spreads(np.zeros_like(scores), scores, positive, weights=weights)
    return _area(scores, positive, weights), None if None in spreads else sum(spreads)
