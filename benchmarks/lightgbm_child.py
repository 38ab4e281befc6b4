"""LightGBM on the rows of a small log, in a process of a Python that has it: `lightgbm_child.py ROWS.npz SCORES.npy`, see `benchmarks.small_peers`.

The ids are categorical features. The AUC of the valid rows ends the training, and the scores of the test rows are written.
"""

import sys

import lightgbm
import numpy as np

ROUNDS, PATIENCE = 1000, 50
SETTINGS = {"objective": "binary", "metric": "auc", "learning_rate": 0.05, "num_leaves": 31, "verbosity": -1, "num_threads": 1}


def main(rows: str, scores: str) -> None:
    """Train and write the scores."""
    data = np.load(rows)
    categorical = list(range(int(data["ids"])))
    train, valid = (lightgbm.Dataset(data[name], data[f"{name} labels"], categorical_feature=categorical) for name in ("train", "valid"))
    ends = lightgbm.early_stopping(PATIENCE, verbose=False)
    trees = lightgbm.train(SETTINGS, train, ROUNDS, valid_sets=[valid], callbacks=[ends])
    np.save(scores, trees.predict(data["test"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
