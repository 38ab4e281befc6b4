"""Peers of a small log, on the rows of a tf_raw dataset: logistic regression, biased matrix factorisation, LightGBM.

Each learns from the train split, chooses its penalty, or the number of its trees, by the AUC of the valid split, and is then tested once.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit

SPLITS = ("train", "valid", "test")
PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # scikit-learn's C; a larger C is a weaker penalty
FACTORS, RIDGES, PASSES = 8, (2.0, 5.0, 10.0, 20.0, 50.0), 12
CHILD = Path(__file__).with_name("lightgbm_child.py")


class Rows(NamedTuple):
    """Rows of a split: ids `[n, F]`, numericals `[n, M]`, labels `[n]`."""

    ids: np.ndarray
    numerical: np.ndarray
    labels: np.ndarray


class AllRows(NamedTuple):
    """The rows of all splits by name, and the names of the features in their order."""

    splits: dict[str, Rows]
    features: list[str]


def read_rows(folder: Path) -> AllRows:
    """Return the rows of a dataset whose features have one id each."""
    spec = FeatureSpec.from_yaml(folder / "feature_spec.yaml")
    found = {}
    for name in SPLITS:
        with contextlib.closing(TfRawSplit(spec, name)) as split:
            count = split.num_samples
            ids = np.stack([split.read_ids(feature, 0, count).astype(np.int64) for feature in range(len(spec.categorical))], axis=1)
            found[name] = Rows(ids, split.read_numerical(0, count).astype(np.float64), split.read_labels(0, count))
    return AllRows(found, [feature.name for feature in spec.categorical])


def auc(rows: Rows, scores: np.ndarray) -> float:
    """Return the AUC of scores."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(rows.labels, scores))


def logistic_regression(rows: Mapping[str, Rows]) -> float:
    """Return the test AUC of a logistic regression with a weight for every id of every feature and one for every numerical."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    joined = {name: np.hstack([one.ids, one.numerical]) for name, one in rows.items()}
    ids, columns = rows["train"].ids.shape[1], joined["train"].shape[1]
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), list(range(ids))), (StandardScaler(), list(range(ids, columns))), sparse_threshold=1.0
    ).fit(joined["train"])
    inputs = {name: encoder.transform(one) for name, one in joined.items()}
    best = (-1.0, 0.0)
    for penalty in PENALTIES:
        fitted = LogisticRegression(C=penalty, max_iter=300).fit(inputs["train"], rows["train"].labels)
        scores = {name: fitted.decision_function(inputs[name]) for name in ("valid", "test")}
        best = max(best, (auc(rows["valid"], scores["valid"]), auc(rows["test"], scores["test"])))
    return best[1]


def matrix_factorisation(rows: Mapping[str, Rows], user: int, item: int) -> float:
    """Return the test AUC of mean + user's bias + item's bias + product of their factors, fitted to the labels by alternating least squares.

    Args:
        rows: the splits.
        user: the feature of users, by its index.
        item: the feature of items, by its index.
    """
    train = rows["train"]
    sizes = [1 + max(int(one.ids[:, feature].max()) for one in rows.values()) for feature in (user, item)]
    target = train.labels - train.labels.mean()
    best = (-1.0, 0.0)
    for ridge in RIDGES:
        draw = np.random.default_rng(0)
        # columns: a bias of the side's own, a constant that takes the other side's bias, and the factors
        left, right = (np.hstack([np.zeros((size, 1)), np.ones((size, 1)), draw.normal(scale=0.1, size=(size, FACTORS))]) for size in sizes)
        for _ in range(PASSES):
            for own, own_ids, other, other_ids in (
                (left, train.ids[:, user], right, train.ids[:, item]),
                (right, train.ids[:, item], left, train.ids[:, user]),
            ):
                _solve(own, own_ids, other[other_ids], target, ridge)
            scores = {name: _products(left[rows[name].ids[:, user]], right[rows[name].ids[:, item]]) for name in ("valid", "test")}
            best = max(best, (auc(rows["valid"], scores["valid"]), auc(rows["test"], scores["test"])))
    return best[1]


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left[:, 0] + right[:, 0] + (left[:, 2:] * right[:, 2:]).sum(axis=1)


def _solve(own: np.ndarray, ids: np.ndarray, others: np.ndarray, target: np.ndarray, ridge: float) -> None:
    """Replace bias and factors of each id by the solution of its ridge regression on the other side's factors, in place."""
    order = np.argsort(ids, kind="stable")
    present, starts = np.unique(ids[order], return_index=True)
    inputs, rest = others[order, 1:], target[order] - others[order, 0]  # [n, 1 + factors]: the constant beside the factors; [n]
    grams = np.add.reduceat(inputs[:, :, np.newaxis] * inputs[:, np.newaxis], starts)
    products = np.add.reduceat(inputs * rest[:, np.newaxis], starts)
    solved = np.linalg.solve(grams + ridge * np.eye(inputs.shape[1]), products[:, :, np.newaxis])[:, :, 0]
    own[:, 0], own[:, 2:] = 0.0, 0.0  # an id without rows has neither bias nor factors
    own[present, 0], own[present, 2:] = solved[:, 0], solved[:, 1:]


def lightgbm(rows: Mapping[str, Rows], python: str) -> float:
    """Return the test AUC of LightGBM, stopped early by the valid split, in a process of another Python.

    Raises:
        RuntimeError: it failed; the message holds its last lines.
    """
    with tempfile.TemporaryDirectory() as folder:
        data = {name: np.hstack([one.ids, one.numerical]) for name, one in rows.items()}
        data |= {f"{name} labels": one.labels for name, one in rows.items()}
        given, scores = Path(folder) / "rows.npz", Path(folder) / "scores.npy"
        np.savez(given, ids=rows["train"].ids.shape[1], **data)
        ended = subprocess.run([python, CHILD, given, scores], capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"{python}: LightGBM failed:\n{ended.stderr[-2000:]}")
        return auc(rows["test"], np.load(scores))
