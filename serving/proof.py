"""The proof that an export scores as its checkpoint does."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from utils.config.serving import BFLOAT16, FLOAT16, FLOAT32, INT8
from utils.errors import UserError
from utils.metrics.binary import exact_auc
from utils.metrics.delong import difference_spreads

ROWS = 2000
# Limits of the difference of probabilities; int8 has none. In bfloat16 TensorFlow and the C++ scorer both round: of a model whose scores lie between
# 0 and 1, they differed by up to 0.009 from each other and from its scores in float32.
DIFFERENCE = {FLOAT32: 1e-6, BFLOAT16: 2e-2, FLOAT16: 2e-3}
_AUC = {INT8: 1e-3}
_AUC_OTHERWISE = 1e-4


class ExportScores(NamedTuple):
    """The scores of an export.

    Attributes:
        scores: scores of all rows.
        seconds: time of scoring all rows.
        again: scores of some rows in batches of other sizes.
        places: indices of these rows.
    """

    scores: np.ndarray
    seconds: float
    again: np.ndarray = np.empty(0, np.float32)
    places: np.ndarray = np.empty(0, np.int64)


class Proof(NamedTuple):
    """The result of a proof.

    Attributes:
        rows: number of scored rows.
        difference: largest difference of two probabilities.
        expected_s: seconds that the checkpoint took.
        seconds: seconds that the export took.
        auc: AUC of the checkpoint; None unless there are labels of both kinds.
        auc_change: AUC of the export minus AUC of the checkpoint.
        auc_error: standard error of this change: its expected variation on other rows.
    """

    rows: int
    difference: float
    expected_s: float
    seconds: float
    auc: float | None
    auc_change: float | None
    auc_error: float | None

    def figures(self) -> dict[str, float | int | None]:
        """Return the figures for the log, by name."""
        return self._asdict()

    def __str__(self) -> str:
        quality = "" if self.auc is None else f"; AUC {self.auc:.6f}, changed by {self.auc_change:+.1e} (standard error {self.auc_error:.1e})"
        return (
            f"{self.rows:,} rows: largest difference {self.difference:.2e}; checkpoint {1e3 * self.expected_s:.0f} ms, "
            f"export {1e3 * self.seconds:.0f} ms{quality}"
        )


def prove(expected: Callable[[], np.ndarray], found: Callable[[], ExportScores], labels: np.ndarray | None) -> Proof:
    """Score with the checkpoint, timed on a second run, and with the export; compare. `labels` is `[n]` of 0 and 1, or None."""
    first, expected_s = twice(expected)[:2]
    second, seconds, again, places = found()
    second = second.reshape(-1)
    auc = change = error = None
    if labels is not None and 0 < labels.mean() < 1:
        positive = labels.astype(bool)
        auc = exact_auc(first, positive)
        change, error = exact_auc(second, positive) - auc, _standard_error(first, second, positive)
    # A NaN on either side counts as an infinite difference.
    differences = np.concatenate([first.astype(np.float64) - second, first[places].astype(np.float64) - again])
    difference = float(np.nan_to_num(np.abs(differences), nan=np.inf).max(initial=0.0))
    return Proof(len(first), difference, expected_s, seconds, auc, change, error)


def check(proof: Proof, what: str, precision: str) -> None:
    """Raise UserError where the differences exceed the limits of the precision."""
    limit = DIFFERENCE.get(precision, np.inf)
    if proof.difference > limit or not np.isfinite(proof.difference):
        raise UserError(
            f"{what}: a score differs by {proof.difference:.2e} from the checkpoint's, {precision} allows {limit:g}; nothing is exported"
            + ("" if precision == FLOAT32 else "; --precision float32 keeps the scores")
        )
    limit = _AUC.get(precision, _AUC_OTHERWISE)
    # Few rows cannot prove a small change: the change counts only where it exceeds two standard errors.
    if proof.auc_change is not None and abs(proof.auc_change) - 2 * proof.auc_error > limit:
        raise UserError(
            f"{what}: the AUC of {proof.rows:,} rows is off by {proof.auc_change:+.2e}, {precision} allows {limit:g}; nothing is exported"
            + ("" if precision == FLOAT32 else "; --precision float32 keeps it")
        )


def _standard_error(first: np.ndarray, second: np.ndarray, positive: np.ndarray) -> float:
    """Return the standard error of the AUC difference of two scores on the same rows. The part of a class with a single row is bounded by 1/4."""
    return float(np.sqrt(sum(0.25 if spread is None else spread for spread in difference_spreads(first, second, positive))))


def twice(score: Callable[[], np.ndarray]) -> ExportScores:
    """Score with a function of this process: call it twice and time the second call."""
    score()
    start = time.perf_counter()
    found = score()
    return ExportScores(found, time.perf_counter() - start)
