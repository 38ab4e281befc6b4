"""Small datasets of every kind, models trained on them, and exports of the models."""

import random
from pathlib import Path

import yaml

import dlrm
from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from preproc.criteo import command as criteo
from preproc.criteo.clicklog import CATEGORICAL, NUMERICAL
from preproc.table import command as table
from tests.helpers.store import stored

PLAIN = (Categorical("a", 40, "int32", alpha=1.2), Categorical("b", 300, "int32", alpha=1.2), Categorical("c", 7, "int32", alpha=1.2))
LISTS = (
    Categorical("user", 200, "int32", alpha=1.2),
    Categorical("bought", 90, "int32", 6, 1.1, table="items"),
    Categorical("item", 90, "int32", alpha=1.1, table="items"),
    Categorical("tags", 30, "int32", 4, 1.2, pooling="mean"),
)
TABLE = {
    "user": "categorical",
    "item": {"kind": "categorical", "frequency_threshold": 2},
    "price": {"kind": "numerical", "transform": "log1p"},
    "age": {"kind": "numerical", "clip": [0, 60], "missing": 20},
    "count": {"kind": "numerical", "transform": "log"},
    "price_range": {"kind": "numerical", "column": "price", "buckets": 4},
}
EVERYTHING = TABLE | {
    "bought": {"kind": "list", "column": "history", "separator": " ", "max_hotness": 3, "pooling": "mean"},
    "city": {"kind": "categorical", "hash_buckets": 20},
    "hour": {"kind": "time", "column": "when", "part": "hour"},
    "user_hour": {"kind": "cross", "columns": ["user", "hour"], "max_ids": 50},
}
COLUMNS = ("user", "item", "price", "age", "count", "history", "city", "when")


def write(folder: Path, categorical, numerical=("x", "y", "z"), dtype="float16", rows=(1500, 400)) -> Path:
    """Write a synthetic dataset in tf_raw; return its folder."""
    dtypes = {feature.name: "int32" for feature in categorical} | dict.fromkeys(numerical, dtype) | {"label": "int8"}
    spec = FeatureSpec(categorical, numerical, "label", dtypes)
    with TfRawWriter(folder, spec, ("train", "test")) as writer:
        for split, count in zip(("train", "test"), rows, strict=True):
            *columns, labels, _ = SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)
            writer.append(split, *columns, labels)
        writer.publish({})
    return folder


def train(data: Path, checkpoint: Path, **flags) -> Path:
    """Train a small model, or copy one that this run has trained with the same flags on the same data; return the folder of its checkpoints."""
    widths = {"embedding_dim": 8, "bottom_mlp_dims": "16,8", "top_mlp_dims": "16,8,1"}
    fixed = {"cpu": True, "batch_size": 128, "valid_batch_size": 512, "optimizer": "adam", "learning_rate": 0.02, "warmup_steps": 0, "log_path": ""}
    given = widths | fixed | flags
    if checkpoint.exists():  # a training that goes on, or one into a folder in use
        dlrm.train(dataset_path=str(data), save_checkpoint_path=str(checkpoint), **given)
    else:
        stored(checkpoint, data, given, lambda folder: dlrm.train(dataset_path=str(data), save_checkpoint_path=str(folder), **given))
    return checkpoint


def export(checkpoint: Path, repository: Path, *flags) -> None:
    """Export a checkpoint as `--mode export` does; raise UserError as it does."""
    from run.command import do

    words = ("--mode", "export", "--cpu", "--log_path", "", "--restore_checkpoint_path", checkpoint, "--export_path", repository, *flags)
    do([str(word) for word in words], "dlrm.py", "")


def criteo_data(folder: Path) -> Path:
    """Prepare a dataset from a random log in Criteo's format; return its folder."""
    draw = random.Random(0)
    for split, rows in (("train", 600), ("test", 150)):
        lines = []
        for _ in range(rows):
            numbers = ["" if draw.random() < 0.1 else str(draw.randint(-5, 400)) for _ in NUMERICAL]
            values = ["" if draw.random() < 0.1 else f"{draw.randint(0, 30):0{draw.choice([1, 8])}x}" for _ in CATEGORICAL]
            lines.append("\t".join([draw.choice("01"), *numbers, *values]))
        (folder / split).write_text("\n".join(lines) + "\n")
    flags = ("--train", folder / "train", "--test", folder / "test", "--dst", folder / "data", "--frequency_threshold", "15")
    assert not criteo.main([str(flag) for flag in flags])
    return folder / "data"


def table_data(folder: Path, features: dict) -> Path:
    """Prepare a dataset from a random CSV table; return its folder."""
    draw = random.Random(1)
    for split, rows in (("train", 500), ("test", 120)):
        lines = [",".join(["label", *COLUMNS])]
        for _ in range(rows):
            values = (
                f"u{draw.randint(0, 20)}",
                f"i{draw.randint(0, 40)}",
                draw.choice(["", f"{draw.random() * 50:.2f}"]),
                draw.choice(["", str(draw.randint(1, 90))]),
                str(draw.randint(-3, 500)),
                " ".join(f"i{draw.randint(0, 30)}" for _ in range(draw.randint(0, 5))),
                draw.choice(["Rome", "Oslo", ""]),
                f"2024-01-{draw.randint(1, 28):02}T{draw.randint(0, 23):02}:15:00Z",
            )
            lines.append(",".join([draw.choice("01"), *values]))
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    (folder / "columns.yaml").write_text(yaml.safe_dump({"label": "label", "features": features}, sort_keys=False))
    words = ("--train", folder / "train.csv", "--test", folder / "test.csv", "--config", folder / "columns.yaml", "--dst", folder / "data")
    assert not table.main([str(word) for word in words])
    return folder / "data"
