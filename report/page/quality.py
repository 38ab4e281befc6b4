"""The quality of a run's predictions: calibration by decile, ROC, precision-recall and the scores of each class."""

from report.page.html import UNWEIGHTED, WEIGHTED, Markup, code, note, section
from report.page.measures import Bins, bins, deciles
from report.page.outcome import Outcome
from report.page.plots import Plot, Series, plotted


def quality(outcome: Outcome | None, command: str) -> tuple[Markup, list[Plot]]:
    """Return the section about a split's predictions, and its plots.

    Args:
        outcome: the evaluation; None where the log has none.
        command: the command that evaluates the run's checkpoint, for logs without a summary.
    """
    summary = outcome.figures if outcome else {}
    tenths, histogram = deciles(summary), bins(summary)
    if not tenths and histogram is None:
        text = (
            "This log has no summary of an evaluation, which calibration, ROC and precision-recall need. This command writes one to a log of its own:"
        )
        return section("quality", "Calibration and ranking", note(text), code(command)), []
    plots, parts = (
        [],
        [note(f"Of the {outcome.split} split, weights of step {outcome.step:,}." if outcome.step is not None else f"{outcome.split} split.")],
    )
    weighted = any(len(part) > 5 for part in summary.get("deciles") or ())
    if weighted or summary.get("auc_unweighted") is not None:
        parts.append(note(WEIGHTED if weighted else UNWEIGHTED))  # logs of earlier versions are not weighted
    if tenths:
        plots.append(_calibration(tenths, "weight" if weighted else "rows"))
    if histogram:
        plots += _curves(histogram)
    parts.append(plotted(plots))
    return section("quality", "Calibration and ranking", *parts), plots


def _calibration(tenths: list, counted: str) -> Plot:
    predicted = [one.predicted for one in tenths]
    observed = Series(
        "observed share of positives",
        predicted,
        [one.observed for one in tenths],
        [one.low for one in tenths],
        [one.high for one in tenths],
        colour=0,
        points=True,
    )
    ends = [min(predicted), max(predicted)]
    ideal = Series("perfectly calibrated", ends, ends, colour=7, dashed=1)
    columns = {
        counted: [one.samples for one in tenths],
        "positives": [one.positives for one in tenths],
        "lowest": [one.lowest for one in tenths],
        "highest": [one.highest for one in tenths],
    }
    said = "Rows sorted by predicted probability, in tenths of equal size. The bars are Wilson's intervals of 95%."
    return Plot("calibration", "Calibration by decile", "observed share", [observed, ideal], "mean predicted probability", note=said, columns=columns)


def _curves(found: Bins) -> list[Plot]:
    exact = (
        f"Exact at the edges of the 200 bins of the logits that the log keeps; the area between them is uncertain by at most {found.resolution:.2g}."
    )
    roc = Series("ROC", found.false_positive, found.true_positive, colour=0, dashed=0)
    chance = Series("chance", [0.0, 1.0], [0.0, 1.0], colour=7, dashed=1)
    kept = [(recall, precision) for recall, precision in zip(found.true_positive, found.precision, strict=True) if precision is not None]
    rate = sum(found.positive) / (sum(found.positive) + sum(found.negative))
    curve = Series("precision", [one[0] for one in kept], [one[1] for one in kept], colour=0, dashed=0)
    base = Series("click rate", [0.0, 1.0], [rate, rate], colour=7, dashed=1)
    totals = (sum(found.negative), sum(found.positive))
    middle = [(one + other) / 2 for one, other in zip(found.edges, found.edges[1:], strict=False)]
    shares = [
        Series(label, middle, [100 * count / total for count in counts], colour=colour, dashed=dashed)
        for label, counts, total, colour, dashed in (("negative", found.negative, totals[0], 0, 0), ("positive", found.positive, totals[1], 1, 1))
    ]
    columns = {"from": found.edges[:-1], "to": found.edges[1:], "negative rows": found.negative, "positive rows": found.positive}
    return [
        Plot("roc", "ROC", "true positive rate", [roc, chance], "false positive rate", note=exact),
        Plot("precision-recall", "Precision and recall", "precision", [curve, base], "recall", note=exact),
        Plot(
            "scores",
            "Scores by class",
            "% of the class's rows",
            shares,
            "logit",
            "steps",
            note="The further apart the classes, the higher the AUC.",
            columns=columns,
            whole=True,
        ),
    ]
