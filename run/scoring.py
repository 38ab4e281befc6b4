"""Reading of a split on the device, and its scores and metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dataloading.batches import BatchReader, Ids, Order, Share
from dataloading.ranges import ERROR
from dataloading.row_range import RowRange
from dataloading.training_only import as_served, served_values, shown_served
from model.compilation import compiled
from model.sharded_model import ShardedModel
from run.ahead import to_score
from run.negatives import weight_of_negatives
from run.prepare import Prepared
from training.device_batch import TensorBatch
from training.evaluator import AfterBatch, Evaluator, SplitScores
from utils.config.config import Config
from utils.config.options import TRAIN
from utils.metrics.binary import Metrics
from utils.metrics.ranking import Ranking, rank
from utils.metrics.ranking_metric import RankingMetric
from utils.metrics.summary import evaluate_in_full


def reader_of(run: Prepared, model: ShardedModel, split: str, batch_size: int, short_last: bool = False, as_logged: bool = False) -> BatchReader:
    """Return the reader of this worker's share of a split's batches; `short_last` as in `BatchReader`.

    Features for training only have their logged values where the split is trained on, or with `as_logged`.
    """
    train = split == "train"
    view, options, seed = model.embedding.view, run.config.data, run.config.run.seed
    share = Share(view.global_features, view.local_features, view.uncounted, view.uncounted_local, run.world.rank, run.world.size)
    order = Order(seed if options.shuffle_batch_order else None, options.shuffle_window, seed) if train else Order()
    rows = {table.name: table.rows for table in run.tables}
    ids = Ids([rows[feature.table] for feature in run.features if feature.name == feature.source], options.out_of_range)
    trains, rows = run.config.run.mode == TRAIN, run.splits[split]
    sampled = trains and isinstance(rows, RowRange) and rows.name != rows.whole.name
    rows = rows if as_logged or (train and trains) else as_served(rows)
    negatives = weight_of_negatives(run.config, run.spec, split, sampled) if trains else 1.0
    return BatchReader(rows, batch_size, share, order, ids, short_last, for_training=train and trains, weight_of_negatives=negatives)


class Batches:
    """The batches of a split on the device, in file order, for a model to score; each iteration starts from the beginning."""

    def __init__(self, reader: BatchReader, model: ShardedModel):
        self._reader, self._model = reader, model

    def __iter__(self) -> Iterator[TensorBatch]:
        return to_score(self._reader.epoch(0, 0), self._model.embedding.lazy)


def pads_short(config: Config) -> bool:
    """Return whether a split's last batch is padded to `padded_rows` only. With XLA a full batch is faster than compiling for that size."""
    return not compiled(config.device.xla).dense


def score(
    run: Prepared,
    model: ShardedModel,
    evaluator: Evaluator,
    split: str,
    groups: bool = False,
    after: AfterBatch | None = None,
    as_logged: bool = False,
) -> SplitScores | None:
    """Score a split; return all rows on the first worker, with their groups where these are wanted, else None.

    `after` as in `Evaluator.score`, `as_logged` as in `reader_of`.
    """
    reader = reader_of(run, model, split, run.config.data.valid_batch_size, pads_short(run.config), as_logged)
    samples = reader.split.num_samples
    with run.console.progress(samples, "evaluation", "samples") as progress:
        scores = evaluator.score(Batches(reader, model), samples, progress.advance, groups=groups, after=after)
    if run.config.data.out_of_range != ERROR:
        count = sum(run.world.everyone(reader.out_of_range, "out_of_range"))
        how = ", as logged" if as_logged else ""
        run.console.say(f"{split}{how}: {count:,} ids out of range (--out_of_range {run.config.data.out_of_range})")
    return scores


def metrics_of(run: Prepared, model: ShardedModel, evaluator: Evaluator, split: str, after: AfterBatch | None = None) -> Metrics:
    """Compute a split's metrics, return them on every worker, and print a line about them. `after` as in `Evaluator.score`."""
    thresholds, ranked_by = run.config.training.auc_thresholds, run.ranked_by
    scores = score(run, model, evaluator, split, groups=bool(ranked_by), after=after)
    metrics = run.world.from_first(_measured(scores, thresholds, ranked_by) if scores is not None else None, "metrics")
    served = served_values(run.spec)
    if served:
        del scores  # the next ones take as much memory
        logged = score(run, model, evaluator, split, groups=bool(ranked_by), as_logged=True)
        logged = run.world.from_first(_measured(logged, thresholds, ranked_by) if logged is not None else None, "metrics_as_logged")
        metrics = replace(metrics, as_logged=logged)
    kind = "exact" if thresholds is None else f"{thresholds} thresholds"
    run.console.say(
        f"{split} AUC {shown(metrics.auc)} ({kind}), log loss {metrics.log_loss:.6f}, "
        f"normalised entropy {shown(metrics.normalized_entropy, 6)}, calibration {shown(metrics.calibration, 6)}, {metrics.samples:,} samples"
    )
    if metrics.unweighted is not None:
        plain = metrics.unweighted
        column = f" of column {run.spec.weight}" if run.spec.weight else ""
        run.console.say(
            f"{split} by the weights{column}, {metrics.weight:,.6g} in all; unweighted: AUC {shown(plain.auc)}, log loss {plain.log_loss:.6f}, "
            f"normalised entropy {shown(plain.normalized_entropy, 6)}, calibration {shown(plain.calibration, 6)}"
        )
    if metrics.as_logged is not None:
        logged = metrics.as_logged
        run.console.say(
            f"{split} as served ({shown_served(served)}); as logged: AUC {shown(logged.auc)}, log loss {logged.log_loss:.6f}, "
            f"normalised entropy {shown(logged.normalized_entropy, 6)}, calibration {shown(logged.calibration, 6)}"
        )
    if metrics.auc is None:
        run.console.warn(f"all labels of the {split} split are the same: its AUC is undefined")
    if metrics.ranking is not None:
        _tell(run, split, metrics.ranking)
    return metrics


def _measured(scores: SplitScores, auc_thresholds: int | None, ranked_by: Sequence[RankingMetric]) -> Metrics:
    metrics = evaluate_in_full(scores.logits, scores.labels, auc_thresholds, scores.weights)
    if not ranked_by:
        return metrics
    columns = scores.logits, scores.labels, scores.groups, ranked_by
    if metrics.unweighted is None:
        return replace(metrics, ranking=rank(*columns))
    return replace(metrics, ranking=rank(*columns, weights=scores.weights), unweighted=replace(metrics.unweighted, ranking=rank(*columns)))


def _tell(run: Prepared, split: str, ranking: Ranking) -> None:
    values = ", ".join(f"{metric} {shown(value)}" for metric, value in ranking.values.items())
    run.console.say(f"{split} {values}; {ranking.with_positive:,} of {ranking.groups:,} groups have a positive")
    if not ranking.with_positive:
        run.console.warn(f"no group of the {split} split has a positive: its metrics by group are undefined")


def shown(value: float | None, digits: int = 10) -> str:
    """Format a metric that may be undefined."""
    return "undefined" if value is None else f"{value:.{digits}f}"
