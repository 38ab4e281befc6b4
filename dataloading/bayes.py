"""How well the best possible model scores on synthetic data: the true probabilities judged against the drawn labels."""

import numpy as np


def exact_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a click scores above a non-click, ties counting half.

    Args:
        scores: `[n]` float32 or float64.
        labels: `[n]`, 0 or 1.

    Returns:
        the area; NaN where only one class is present.
    """
    if len(labels) == 0:
        return float("nan")
    order = np.argsort(scores)
    ordered = scores[order]
    clicks_up_to = np.cumsum(labels[order], dtype=np.int64)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # last row of each group of equal scores
    clicks = np.diff(clicks_up_to[ends], prepend=0)
    rows = np.diff(ends, prepend=-1)
    total_clicks, total = int(clicks_up_to[-1]), len(labels)
    others = rows - clicks
    others_below = np.cumsum(others) - others
    # Twice the number of (click, non-click) pairs in the right order, in whole numbers: 2 · 10^18 still fits int64.
    twice = int(np.sum(clicks * (2 * others_below + others)))
    pairs = total_clicks * (total - total_clicks)
    return twice / (2 * pairs) if pairs else float("nan")


def bayes_metrics(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """AUC and log loss of the true probabilities: the bound that a model's scores approach.

    Args:
        probabilities: `[n]` float32, P(click) of each row.
        labels: `[n]`, 0 or 1, the labels drawn from them.
    """
    happened = np.where(np.asarray(labels, bool), probabilities, np.float32(1) - probabilities)
    losses = np.log(np.maximum(happened, np.finfo(np.float32).tiny))
    return {"bayes_auc": exact_auc(probabilities, labels), "bayes_log_loss": float(-np.mean(losses, dtype=np.float64))}
