"""`--mode explain`: the importance of each feature, measured by permuting its values among rows of a split."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataloading.training_only import as_served, served_values, shown_served
from model.embedding.table import Feature
from run.explain_importance import Estimate, Importance, Score, Scored, importances
from run.explain_sample import Sample, draw
from run.explain_units import Copies, Inputs, Unit, copies_among, joint_units, places_of, units_of
from run.native_engine import mapped_array, native_precision, stored_scorer
from run.prepare import Prepared
from run.restoring import restoring
from run.scoring import shown
from run.trained import evaluator_of
from training.features import ModelFeatures
from utils.checkpoint.mapped import MappedArray
from utils.config.serving import FLOAT32
from utils.console import Progress
from utils.encoding import transforms
from utils.errors import AgreedError, UserError

_AT_ONCE = 16_384  # samples in one call of the engine
_LONG = 60.0  # seconds
_LISTED = 60  # features on the console; the log has all


def explain(run: Prepared) -> None:
    """Measure the importance of each feature; print them in order, and log them.

    Raises:
        UserError: there are several workers, the sample holds less than 2 rows, or the model gives logits that are not finite.
    """
    if run.world.size > 1:
        raise AgreedError(f"--mode explain runs on one worker, {run.world.size} were started; start it without horovodrun")
    options, split, start = run.config.run, as_served(run.splits[run.config.run.split]), time.perf_counter()
    rows = {table.name: table.rows for table in run.tables}
    sources = [feature for feature in run.features if feature.name == feature.source]
    tables, weighted = [rows[feature.table] for feature in sources], run.spec.weight is not None
    sample = draw(split, options.explain_samples, options.seed, tables, run.config.data.out_of_range, weighted)
    count = len(sample.labels)
    _tell_sample(run, sample, split.num_samples)
    if count < 2:
        raise UserError(
            f"--mode explain: the sample of the {options.split} split holds {count} row; expected at least 2, whose values can be permuted"
        )
    if weighted and not sample.weights.any():
        raise UserError(f"--mode explain: all {count:,} rows of the sample have weight 0 (column {run.spec.weight}); --explain_samples asks for more")
    features = ModelFeatures.of(run.tables, run.features, run.spec.numerical, run.spec.numerical_dtype, served_values(run.spec))
    copies = copies_among(features, sample.inputs)
    units = units_of(features, run.checkpoint.manifest.get(transforms.NAME))
    units += joint_units(copies, units)
    permutations = [np.random.default_rng([options.seed, 1, turn]).permutation(count) for turn in range(options.explain_repeats)]
    score = _score(run, features)
    positive, places = sample.labels.astype(bool), [places_of(features, unit.features) for unit in units]
    turns = len(units) * len(permutations)
    with run.console.progress(count * (1 + turns), "importance", "rows") as progress:
        whole, found = importances(score, sample.inputs, positive, places, permutations, _advance(run, progress, count, turns), sample.weights)
    ranked = sorted(zip(units, found, strict=True), key=lambda pair: -(pair[1].auc_lost or pair[1].log_loss_lost).mean)
    _tell(run, whole, count, ranked, copies)
    if features.served:
        run.console.say(f"for training only, so without effect on scores: {shown_served(features.served)} in every row")
    figures = {"auc": whole.auc, "log_loss": whole.log_loss, "samples": count} | ({"weight": float(sample.weights.sum())} if weighted else {})
    by_unit = [
        {
            "name": unit.name,
            "columns": list(unit.features),
            "auc_lost": _plain(importance.auc_lost),
            "log_loss_lost": _plain(importance.log_loss_lost),
        }
        for unit, importance in ranked
    ]
    named = {"split": options.split, "repeats": len(permutations)} | ({"served": dict(features.served)} if features.served else {})
    run.log.log("IMPORTANCE", named | figures | {"features": by_unit, "copies": [list(pair) for pair in copies]})
    run.log.log((), figures | {"seconds": time.perf_counter() - start})


def _advance(run: Prepared, progress: Progress, count: int, turns: int) -> Callable[[], None]:
    """Return a callback for each scoring of the sample. After the first it says how long the others take, if that is long, for files have no bar."""
    started, first = time.perf_counter(), [True]

    def advance() -> None:
        progress.advance(count)
        seconds = (time.perf_counter() - started) * turns
        if first and first.pop() and seconds >= _LONG:
            run.console.say(
                f"about {seconds / 60:,.0f} min: {turns:,} scorings of the sample (--explain_samples and --explain_repeats set their number)"
            )

    return advance


def _score(run: Prepared, features: ModelFeatures) -> Score:
    """Return a function that scores inputs: by the C++ scorer where it can replace TensorFlow. The tables stay in the checkpoint's files."""
    checkpoint = run.checkpoint
    tables = restoring(lambda: {table.name: mapped_array(checkpoint, table.name) for table in run.tables})
    engine: Any = None
    if native_precision(run.config) == FLOAT32:  # in bfloat16 it rounds elsewhere than TensorFlow
        engine = restoring(lambda: stored_scorer(checkpoint, run.config, len(features.numerical), run.features, _of(tables, run.features)))
    if engine is None:
        engine = evaluator_of(checkpoint, run.config, features, tables)
    run.console.say(f"the model is read from {checkpoint.folder} (step {checkpoint.step})")

    def score(inputs: Inputs) -> np.ndarray:
        starts = range(0, len(inputs.ids), _AT_ONCE)
        parts = [engine.logits_of(inputs.numerical[first : first + _AT_ONCE], inputs.ids[first : first + _AT_ONCE]) for first in starts]
        logits = np.concatenate(parts)
        if not np.isfinite(logits).all():
            raise UserError(
                f"{checkpoint.folder}: the model gives logits that are not finite ({np.count_nonzero(~np.isfinite(logits)):,} of {len(logits):,} "
                "rows); its training diverged: train again with a lower --learning_rate"
            )
        return logits

    return score


def _of(tables: dict[str, MappedArray], features: Sequence[Feature]) -> list[MappedArray]:
    return [tables[feature.table] for feature in features]


def _tell_sample(run: Prepared, sample: Sample, rows: int) -> None:
    options, count = run.config.run, len(sample.labels)
    which = f"{count:,} of {rows:,} rows" if count < rows else f"all {rows:,} rows" if rows > 1 else "the only row"
    few = f" (--explain_samples {options.explain_samples:,} asks for more)" if count < options.explain_samples else ""
    run.console.say(f"{which} of the {options.split} split: the sample{few}")
    if sample.out_of_range:
        run.console.say(f"{options.split}: {sample.out_of_range:,} ids out of range (--out_of_range {run.config.data.out_of_range})")
    labels = sample.labels if sample.weights is None else sample.labels[sample.weights > 0]
    if sample.weights is not None:
        run.console.say(f"rows count by their weights (column {run.spec.weight}), as in training; {count - len(labels):,} have weight 0")
    if count > 1 and len(labels) and (labels.all() or not labels.any()):
        run.console.warn("all labels of the sample are the same: the AUC is undefined, and features are ranked by the log loss")


def _tell(run: Prepared, whole: Scored, count: int, ranked: Sequence[tuple[Unit, Importance]], copies: Sequence[Copies]) -> None:
    say, repeats = run.console.say, run.config.run.explain_repeats
    times = f"{repeats} permutations" if repeats > 1 else "1 permutation"
    say(f"{run.config.run.split} AUC {shown(whole.auc, 6)}, log loss {whole.log_loss:.6f} on {count:,} rows. Lost where the values of a feature are")
    say(f"permuted among the rows ({times} each; ± 95% interval; ~ where it holds 0):")
    width = max([len("feature"), *(len(unit.name) for unit, _ in ranked[:_LISTED])])
    say(f"  {'feature':{width}}  {'AUC lost':>22}  {'log loss lost':>22}")
    for unit, importance in ranked[:_LISTED]:
        moved = f"  moves {', '.join(unit.features)}" if len(unit.features) > 1 else ""
        say(f"  {unit.name:{width}}  {_shown(importance.auc_lost):>22}  {_shown(importance.log_loss_lost):>22}{moved}".rstrip())
    if len(ranked) > _LISTED:
        say(f"  and {len(ranked) - _LISTED} more, in {run.config.run.log_path or 'the log'}")
    for copy in copies:
        say(
            f"{copy.first} and {copy.second} are copies of each other (normalised mutual information {copy.information:.4f}): "
            "each hides the importance of the other; see the line in which both move"
        )


def _shown(estimate: Estimate | None) -> str:
    if estimate is None:
        return "undefined"
    if estimate.half is None:
        return f"{estimate.mean:+.6f}  "
    return f"{estimate.mean:+.6f} ± {estimate.half:.6f} {'~' if estimate.low <= 0 <= estimate.high else ' '}"


def _plain(estimate: Estimate | None) -> list[float | None]:
    return [None, None, None] if estimate is None else [estimate.mean, estimate.low, estimate.high]
