"""The score of the best possible model on synthetic data: the true probabilities evaluated against the drawn labels."""

import numpy as np

from utils.metrics.binary import exact_auc


def bayes_metrics(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return AUC and log loss of the true probabilities, the bounds that a model's scores approach.

    Args:
        probabilities: `[n]` float32, P(click) of each row.
        labels: `[n]`, 0 or 1, the labels drawn from them; if all are equal, the AUC is NaN.
    """
    clicked = np.asarray(labels, bool)
    auc = exact_auc(probabilities, clicked) if 0 < clicked.sum() < len(clicked) else float("nan")
    happened = np.where(clicked, probabilities, np.float32(1) - probabilities)
    losses = np.log(np.maximum(happened, np.finfo(np.float32).tiny))
    return {"bayes_auc": auc, "bayes_log_loss": float(-np.mean(losses, dtype=np.float64))}
