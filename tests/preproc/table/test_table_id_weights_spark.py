"""preproc.table --id_weights on Spark gives the files and the errors of one machine."""

import json

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preproc.table import command as table
from preproc.table import on_spark as table_spark
from tests.helpers.commands import do
from tests.preproc.spark.spark_cluster import needs_spark, on_both

pytestmark = [needs_spark, pytest.mark.usefixtures("one_spark")]
FEATURES = {
    "tags": {"kind": "list", "weights": "w", "pooling": "mean", "frequency_threshold": 2},
    "bought": {"kind": "list", "weights": "v", "max_hotness": 2, "table": "items"},
    "hashed": {"kind": "list", "column": "bought", "weights": "v", "hash_buckets": 7},
    "item": {"kind": "categorical", "table": "items"},
    "price": "numerical",
}
CONFIG = {"label": "y", "weight": "heft", "features": FEATURES}


def rows(count: int, seed: int) -> list[dict]:
    """Draw rows with lists of 0 to 4 values, some of them missing."""
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        lists = [[None if random.random() < 0.1 else f"{'xyz'[random.integers(3)]}{random.zipf(1.4) % 40}" for _ in range(n)] for n in (4, 3)]
        lists = [values[: random.integers(0, 5)] for values in lists]
        weights = [[float(random.choice([0, 0.1, 2.5, 3e38, 1e-60])) for _ in values] for values in lists]
        one = {"tags": lists[0], "w": weights[0], "bought": lists[1], "v": [-weight for weight in weights[1]]}
        found.append(one | {"item": f"x{random.integers(30)}", "price": float(random.normal()), "heft": 0.5, "y": int(random.integers(2))})
    return found


def texts(found: list[dict]) -> pl.DataFrame:
    """Return the rows with lists as texts; one missing value in a list is no list in a text, so it loses its weight here."""
    lists = [{name: row[name] if row[name] != [None] else [] for name in ("tags", "bought")} for row in found]
    weights = [{"w": row["w"][: len(one["tags"])], "v": row["v"][: len(one["bought"])]} for row, one in zip(found, lists, strict=True)]
    joined = [
        {name: "|".join("" if item is None else str(item) for item in values) for name, values in (one | two).items()}
        for one, two in zip(lists, weights, strict=True)
    ]
    return pl.DataFrame([row | one for row, one in zip(found, joined, strict=True)])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write the same columns in three formats, and a configuration."""
    folder = tmp_path_factory.mktemp("weights of ids")
    texts(rows(700, 0)).write_csv(folder / "a.csv")
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(400, 1)))
    pl.DataFrame(rows(300, 2), schema_overrides={"tags": pl.List(pl.String), "w": pl.List(pl.Float64)}).write_parquet(folder / "c", row_group_size=60)
    texts(rows(200, 3)).write_csv(folder / "test.csv")
    (folder / "columns.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    return folder


@pytest.mark.parametrize(
    "flags",
    [("--split_key", "item", "--valid_fraction", 0.2, "--negative_rate", 0.4), ("--seed", 3)],
    ids=["key and negatives", "rows"],
)
def test_both_engines_write_the_same_weights(files, tmp_path, capsys, flags, monkeypatch):
    monkeypatch.setattr(table_spark, "TABLE_TEXTS", 20)  # vocabularies are searched in files
    train = ["--train", *(files / name for name in ("a.csv", "b.jsonl", "c")), "--config", files / "columns.yaml", "--block_bytes", 12_000]
    _, found = on_both(table, tmp_path, [*train, "--test_fraction", 0.2, "--data", files / "test.csv", *flags], capsys)
    hotness = yaml.safe_load(found["feature_spec.yaml"])["feature_spec"]["tags"]["hotness"]
    for split in ("train", "test", "new"):
        count = len(found[f"{split}/item.bin"])
        assert len(found[f"{split}/tags.weights.bin"]) == 4 * hotness * count and len(found[f"{split}/bought.weights.bin"]) == 8 * count
    assert len(found["new/item.bin"]) == 200


def test_later_rows_with_the_vocabularies_of_an_older_dataset(files, tmp_path, capsys):
    old = ["--train", files / "test.csv", "--test_fraction", 0.1, "--config", files / "columns.yaml", "--dst", tmp_path / "old"]
    assert do(table, *old) == 0
    capsys.readouterr()
    words = ["--train", files / "c", "--test", files / "b.jsonl", "--vocabulary", tmp_path / "old", "--extend_vocabulary"]
    assert on_both(table, tmp_path, words, capsys)[1]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "a|b", "a||b", "|"]), st.sampled_from(["", "1", "1|0.5", "1||2", "2|x", "nan", "|"])),
        min_size=1,
        max_size=60,
    ),
    st.integers(20, 200),
    st.sampled_from(["error", "skip"]),
)
def test_random_rows_give_the_same_files_or_the_same_line(tmp_path_factory, capsys, drawn, block_bytes, bad_lines):
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "train.csv").write_text("y,tags,w\n1,a|b,1|2\n" + "".join(f"{i % 2},{values},{weights}\n" for i, (values, weights) in enumerate(drawn)))
    (folder / "test.csv").write_text("y,tags,w\n0,b,1\n1,,\n")
    words = ["--train", folder / "train.csv", "--test", folder / "test.csv", "--label", "y", "--id_weights", "tags=w", "--bad_lines", bad_lines]
    on_both(table, folder, [*words, "--block_bytes", block_bytes], capsys)
