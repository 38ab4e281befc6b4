"""Compare settings on a small dataset: the mean test AUC over seeds, and the AUC of a logistic regression on the same rows.

  python -m benchmarks.small_sample --dataset_path SAMPLE

SAMPLE is the dataset of the recipe in docs/training.md. `benchmarks.small_sample.SETTINGS` are the compared flags; every setting is trained
with every seed before the next. The logistic regression has a weight for every id of every feature and one for every numerical, its penalty chosen on
the last fifth of the training rows.
"""

import contextlib
import io
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.options import Options, run
from benchmarks.report import Report
from dataloading.contract import check_quick
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from utils.config.option import option
from utils.errors import UserError

COMMON = {"optimizer": "adam", "learning_rate": 0.001, "warmup_steps": 0, "batch_size": 64, "valid_batch_size": 2000}
RECIPE = {"embedding_learning_rate": 0.003, "decay_start_step": 75, "decay_steps": 100}
SETTINGS = {
    "constant learning rate": {},
    "recipe": RECIPE,
    "recipe, --mlp_l2 0.003": RECIPE | {"mlp_l2": 0.003},
    "recipe, --embedding_l2 0.01": RECIPE | {"embedding_l2": 0.01},
    "recipe, --dropout 0.1": RECIPE | {"dropout": 0.1},
}
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)  # scikit-learn's C; a larger C is a weaker penalty


@dataclass(frozen=True)
class SmallSampleOptions(Options):
    """Benchmark of a small dataset."""

    QUICK: ClassVar[dict[str, Any]] = {"num_seeds": 1, "max_steps": 3}

    dataset_path: str | None = option(None, "folder of a tf_raw dataset with a train and a test split")
    num_seeds: int = option(10, "number of seeds, beginning with seed 0")
    max_steps: int | None = option(None, "steps after which each run ends; the default is the whole training", unit="steps")


def main(chosen: SmallSampleOptions, report: Report) -> None:
    """Train, compare, print."""
    import dlrm

    if chosen.dataset_path is None:
        raise UserError("--dataset_path is missing; expected the folder of the dataset in docs/training.md's recipe")
    spec = FeatureSpec.from_yaml(Path(chosen.dataset_path) / DEFAULT_FILE_NAME, "--dataset_path")
    check_quick(spec, ("train", "test"))
    found: dict[str, list[float]] = {}
    for name, flags in SETTINGS.items():
        for seed in range(chosen.num_seeds):
            given = (
                COMMON | flags | {"dataset_path": chosen.dataset_path, "cpu": True, "seed": seed, "log_path": "", "max_steps": chosen.max_steps or -1}
            )
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found.setdefault(name, []).append(dlrm.train(**given).figures["auc"])
    regression = logistic_regression(Path(chosen.dataset_path))
    report.figures |= {"auc": found, "settings": SETTINGS, "logistic_regression": regression}
    rows = [(name, statistics.mean(aucs), min(aucs), max(aucs), " ".join(f"{auc:.4f}" for auc in aucs[:3])) for name, aucs in found.items()]
    rows.append((f"logistic regression, C {regression['penalty']}", regression["auc"], regression["auc"], regression["auc"], "-"))
    shown = [(name, *(f"{value:.4f}" for value in values), first) for name, *values, first in rows]
    report.table(f"test AUC over {chosen.num_seeds} seeds", ["", "mean", "lowest", "highest", "seeds 0, 1, 2"], shown)


def logistic_regression(folder: Path) -> dict[str, float]:
    """Return the test AUC of a logistic regression, and the penalty that was best on held-out training rows."""
    import numpy as np
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    from dataloading.tf_raw import TfRawSplit

    spec = FeatureSpec.from_yaml(folder / "feature_spec.yaml")
    features = list(range(len(spec.categorical)))

    def rows_of(name: str):
        with contextlib.closing(TfRawSplit(spec, name)) as split:
            count = split.num_samples
            ids = np.stack([split.read_ids(feature, 0, count) for feature in features], axis=1)
            return np.hstack([ids, split.read_numerical(0, count)], dtype=np.float64), split.read_labels(0, count)

    def auc(penalty: float, train, test) -> float:
        encoded = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), features), remainder="passthrough", sparse_threshold=1.0)
        fitted = make_pipeline(encoded, LogisticRegression(C=penalty, solver="liblinear")).fit(*train)
        return float(roc_auc_score(test[1], fitted.decision_function(test[0])))

    (rows, labels), test = rows_of("train"), rows_of("test")
    cut = len(labels) * 4 // 5
    held_out = {penalty: auc(penalty, (rows[:cut], labels[:cut]), (rows[cut:], labels[cut:])) for penalty in PENALTIES}
    best = max(held_out, key=held_out.get)
    return {"auc": auc(best, (rows, labels), test), "penalty": best, "held_out_auc": held_out[best]}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(run(SmallSampleOptions, main, __doc__))
