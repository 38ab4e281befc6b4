"""LightGBM on CSV files, in a process of the peers' own Python. Its last line is as `fuxictr_child`'s; its
argument is a JSON object: data, seed, threads.

Every column is categorical. Of the settings the one with the best AUC on the valid split is tested; the same split ends the training.
"""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import polars
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.published.settings import LABEL, LIGHTGBM, SPLITS


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Train with each setting and test the best. The seconds are those of the best setting's training."""
    frames = {split: polars.read_csv(Path(task["data"], f"{split}.csv.gz"), infer_schema_length=None) for split in SPLITS}
    names = [name for name in frames["train"].columns if name != LABEL]
    known = {name: np.unique(frames["train"][name].to_numpy()) for name in names}
    rows = {split: np.stack([_codes(frame[name].to_numpy(), known[name]) for name in names], axis=1) for split, frame in frames.items()}
    labels = {split: frame[LABEL].to_numpy() for split, frame in frames.items()}
    best: dict[str, Any] = {"valid_auc": -1.0}
    for leaves, smooth in itertools.product(LIGHTGBM["num_leaves"], LIGHTGBM["cat_smooth"]):
        setting = {"num_leaves": leaves, "cat_smooth": smooth}
        fixed = {"objective": "binary", "metric": "auc", "learning_rate": LIGHTGBM["learning_rate"], "verbose": -1, "deterministic": True}
        given = fixed | setting | {"num_threads": task["threads"], "seed": task["seed"]}
        sets = {split: lightgbm.Dataset(rows[split], labels[split], categorical_feature=list(range(len(names)))) for split in ("train", "valid")}
        begun, stop = time.perf_counter(), lightgbm.early_stopping(LIGHTGBM["early_stopping_rounds"], verbose=False)
        booster = lightgbm.train(given, sets["train"], LIGHTGBM["rounds"], valid_sets=[sets["valid"]], callbacks=[stop])
        auc = booster.best_score["valid_0"]["auc"]
        if auc > best["valid_auc"]:
            best = {"valid_auc": auc, "seconds": time.perf_counter() - begun, "booster": booster, "setting": setting}
    scores = best["booster"].predict(rows["test"])
    return {
        "auc": float(roc_auc_score(labels["test"], scores)),
        "log_loss": float(log_loss(labels["test"], scores)),
        "epochs": [{"auc": best["valid_auc"], "seconds": best["seconds"]}],
        "parameters": None,
        "setting": best["setting"] | {"rounds": best["booster"].best_iteration},
    }


def _codes(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return places in the values of `train`; -1, which LightGBM takes for missing, where a value is not among them."""
    places = np.searchsorted(known, values).clip(max=len(known) - 1)
    return np.where(known[places] == values, places, -1).astype(np.float32)


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
