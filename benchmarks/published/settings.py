"""The contenders and their settings. The peers' processes import this file too, so it imports no package.

`PEER` are the settings that BARS publishes for Frappe_x1 (reczoo/BARS on GitHub), each the best of those that it tried on the valid split.
`PUBLISHED` are its test AUCs.
"""

from typing import Any

MODELS = ("lr", "fm", "wide_and_deep", "deepfm", "dlrm", "dcnv2", "finalmlp")
OURS, PEER_NAME, REGRESSION, TREES = "ours", "peer", "logistic_regression", "lightgbm"
CONTENDERS = (OURS, PEER_NAME, REGRESSION, TREES)
SHOWN = {OURS: "this project", PEER_NAME: "FuxiCTR 2.3.10", REGRESSION: "logistic regression", TREES: "LightGBM 4.7.0"}
LABEL, SPLITS = "label", ("train", "valid", "test")

PROGRAMS = {"lr": "fm"}  # programs of models that have none of their own

PUBLISHED = {
    "dcnv2": "0.98382 (mean of 5), 0.98448 (best)",
    "dlrm": "0.98400 (one run)",
    "wide_and_deep": "0.98307 (mean of 5), 0.98412 (best)",
    "lr": "0.9356 (one run)",
    "fm": "0.96711 (one run)",
    "deepfm": "0.98395 (mean of 5)",
    "finalmlp": "0.98607 (one run)",
    REGRESSION: "0.9356",
}
# rows of each split: as published; with the negatives of `train` drawn again
FRAPPE_ROWS = ({"train": 202_027, "valid": 57_722, "test": 28_860}, {"train": 202_812, "valid": 57_722, "test": 28_860})

_MLP: dict[str, Any] = {"hidden_units": [400, 400, 400], "batch_norm": True, "embedding_dim": 10}
_TRAINING: dict[str, Any] = {"batch_size": 4096, "optimizer": "adam", "learning_rate": 1e-3, "early_stop_patience": 2, "epochs": 100}
PEER: dict[str, dict[str, Any]] = {
    "dcnv2": {"regularizer": 0.05, "dropout": 0.4, "cross_layers": 4, **_MLP, **_TRAINING},
    "dlrm": {"regularizer": 0.1, "dropout": 0.4, **_MLP, **_TRAINING},
    "wide_and_deep": {"regularizer": 0.1, "dropout": 0.6, **_MLP, **_TRAINING},
    "fm": {"regularizer": 5e-6, "dropout": 0.0, **_MLP, **_TRAINING, "hidden_units": []},
    "deepfm": {"regularizer": 0.05, "dropout": 0.2, **_MLP, **_TRAINING},
    "finalmlp": {
        "regularizer": 0.05,
        "dropout": 0.4,
        **_MLP,
        **_TRAINING,
        "hidden_units": [[400], [100]],
        "gate_units": [400],
        "gated_by": [["user"], ["item"]],
        "heads": 5,
    },
}
# scikit-learn's C, a larger C is a weaker penalty; the best on the valid split is tested
PENALTIES: dict[str, Any] = {"penalties": [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]}
# the best on the valid split is tested; it also ends the training
LIGHTGBM: dict[str, Any] = {
    "learning_rate": 0.1,
    "num_leaves": [63, 255],
    "cat_smooth": [1.0, 10.0],
    "rounds": 2000,
    "early_stopping_rounds": 50,
}

_PLATEAU = ("lr_schedule", "plateau_factor", "plateau_patience", "plateau_min_lr")
# Parts of a recipe that `--leave_out` leaves out: values that replace the recipe's, None for a flag that is dropped.
PARTS: dict[str, dict[str, Any]] = {
    "batch normalisation": {"batch_norm": None, "batch_norm_momentum": None, "batch_norm_epsilon": None},
    "whole tables and their decay": {"dense_update_rows": None, "table_l2": None},
    "decay of the tables": {"table_l2": None},
    "learning rate on a plateau": {**dict.fromkeys(_PLATEAU), "deep_warmup_epochs": "none"},
    "clipped gradients": {"clip_norm": None},
    "dropout": {"dropout": 0.0},
    "shuffled rows": {"shuffle_window": None, "shuffle_batch_order": None},
    "small initial rows": {"embedding_initializer": None, "embedding_initializer_scale": None},
    "cross layers beside the MLP": {"structure": None},
}
