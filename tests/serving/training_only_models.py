"""Datasets with features for training only, a table of them, and requests in which these features have the values that are served."""

import random
from pathlib import Path

import numpy as np
import yaml

from dataloading.feature_spec import Categorical
from preproc.table import command as table
from tests.cli.runs import edit_spec
from tests.serving.weighted_models import write_weighted

FEATURES = (  # a feature for training only stands behind a list with weights, and one behind a list without
    Categorical("user", 200, "int32"),
    Categorical("liked", 90, "int32", 4, weights=True),
    Categorical("position", 12, "int32"),
    Categorical("seen", 60, "int32", 3),
    Categorical("slot", 7, "int32"),
)
NUMERICAL = ("x", "height", "y")
SERVED = {"position": 3, "slot": 6, "height": 0.7}  # float16 holds 0.7001953125
ANYTHING = np.array([np.nan, np.inf, -1e38, 0.0, 3.5], np.float32)


def mark(data: Path, served: dict = SERVED) -> Path:
    """Make features of a dataset those for training only; return its folder."""
    edit_spec(data, lambda spec: [spec["feature_spec"][name].update(training_only={"serve": value}) for name, value in served.items()])
    return data


def write_training_only(folder: Path, categorical=FEATURES, served: dict = SERVED) -> Path:
    """Write a dataset with features for training only; return its folder."""
    return mark(write_weighted(folder, categorical, NUMERICAL), served)


def requests(count: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draw a request whose features for training only hold anything; return it, and as it is to be scored."""
    draw = np.random.default_rng(3)
    ids = np.concatenate([draw.integers(-1 if one.is_list else 0, one.cardinality, (count, one.hotness)) for one in FEATURES], axis=1)
    given = {
        "numerical": draw.gamma(1.0, 1.0, (count, 3)).astype(np.float32),
        "categorical": ids,
        "id_weights": draw.normal(0, 1, (count, 4)).astype(np.float32),
    }
    expected = {name: values.copy() for name, values in given.items()}
    given["numerical"][:, 1] = draw.choice(ANYTHING, count)
    given["categorical"][:, 5], given["categorical"][:, 9] = draw.integers(-(2**62), 2**62, (2, count))
    expected["numerical"][:, 1], expected["categorical"][:, 5], expected["categorical"][:, 9] = 0.7, 3, 6
    return given, expected


def raw_data(folder: Path, served: dict | None = None) -> Path:
    """Prepare a dataset from a random CSV table whose position and height are for training only; return its folder."""
    draw = random.Random(1)
    for split, rows in (("train", 500), ("test", 120)):
        lines = ["label,user,price,position,height"]
        for _ in range(rows):
            place = draw.randint(1, 6)
            label = int(draw.random() < 1 / place)
            lines.append(f"{label},u{draw.randint(0, 20)},{draw.random() * 50:.2f},{place},{draw.random() * 9:.3f}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    kinds = dict.fromkeys(("user", "position"), "categorical") | dict.fromkeys(("price", "height"), "numerical")
    (folder / "columns.yaml").write_text(yaml.safe_dump({"label": "label", "features": kinds}))
    words = ("--train", folder / "train.csv", "--test", folder / "test.csv", "--config", folder / "columns.yaml", "--dst", folder / "data")
    assert not table.main([str(word) for word in words])
    return mark(folder / "data", served or {"position": 2, "height": 1.5})
