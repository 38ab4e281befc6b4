"""preproc.table --training_only on Spark gives the files and the errors of one machine."""

import json

import pytest

from preproc.table import command as table
from preproc.table import on_spark as table_spark
from tests.preproc.spark.spark_cluster import needs_spark, on_both

pytestmark = [needs_spark, pytest.mark.usefixtures("one_spark")]
ROWS = [{"y": i % 3 % 2, "position": 1 + i % 7, "device": f"d{i * i % 29}", "height": i / 4, "item": f"i{i % 11}"} for i in range(400)]
FLAGS = ("--label", "y", "--categorical", "position,device,item")


def write_csv(path, rows):
    names = list(rows[0])
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in (names, *(row.values() for row in rows))))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write rows to train with, and rows to predict that lack some columns, as CSV and as JSON lines."""
    folder, without = tmp_path_factory.mktemp("training only"), [{"device": row["device"], "item": row["item"]} for row in ROWS[:90]]
    write_csv(folder / "train.csv", ROWS)
    write_csv(folder / "without.csv", without)
    (folder / "with.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[100:250]))
    (folder / "without.jsonl").write_text("".join(json.dumps(row) + "\n" for row in without))
    return folder


def test_both_engines_write_the_same_files(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(table_spark, "TABLE_TEXTS", 8)  # vocabularies are searched in files
    train = ["--train", files / "train.csv", "--test_fraction", 0.2, *FLAGS, "--training_only", "position=3,device=d25,height=7.25"]
    data = ["--data", *(files / name for name in ("without.csv", "with.jsonl", "without.jsonl")), "--block_bytes", 900]
    _, found = on_both(table, tmp_path, [*train, *data], capsys)
    new = found["new/position.bin"]
    assert new[:90] == new[240:] == bytes(90) and 0 not in new[90:240] and found["feature_spec.yaml"].count(b"serve:") == 3
    again = tmp_path / "again"
    again.mkdir()
    words = ["--train", files / "train.csv", "--test_fraction", 0.1, "--vocabulary", tmp_path / "spark", "--extend_vocabulary"]
    assert on_both(table, again, words, capsys)[1]["feature_spec.yaml"].count(b"serve:") == 3


@pytest.mark.parametrize("only", ["position=9", "device=x", "height=high", "item=", "y=1"])
def test_errors_are_the_same(files, tmp_path, capsys, only):
    words = ["--train", files / "train.csv", "--test_fraction", 0.2, *FLAGS, "--training_only", only]
    said, found = on_both(table, tmp_path, words, capsys)
    assert said and not found
