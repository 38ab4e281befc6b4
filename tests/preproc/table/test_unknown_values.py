"""A split gets a warning where more than half of a feature's values are unknown, and ten times training's share."""

import polars as pl
import pytest

from tests.preproc.table.tables import make

TRAIN = "user,item,y\n" + "".join(f"u{i % 5},i{i % 3},{i % 2}\n" for i in range(60))


def lines(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "are unknown" in line]


def rows(users) -> str:
    return "user,item,y\n" + "".join(f"{user},i1,{i % 2}\n" for i, user in enumerate(users))


def test_warning_names_the_split_and_its_most_frequent_unknown_values(tmp_path, capsys):
    test = rows(["U1"] * 5 + ["U2"] * 4 + ["U3", "U4", "u1", "u1", ""])
    made = make(tmp_path, TRAIN, test, "--label", "y")
    assert lines(capsys) == [
        "preproc.table: warning: test split, feature user: 11 of 13 values are unknown (84.6%; in training: 0.0%), "
        "the most frequent: 'U1' (5), 'U2' (4), 'U3' (1); has the form of the column changed?"
    ]
    assert made.metadata["unknown_values"] == {}


@pytest.mark.parametrize(("unknown", "warned"), [(6, False), (7, True)])
def test_half_of_the_values_is_no_warning(tmp_path, capsys, unknown, warned):
    make(tmp_path, TRAIN, rows(["x"] * unknown + ["u1"] * 6), "--label", "y")
    assert bool(lines(capsys)) is warned


def test_share_in_training_is_the_reference(tmp_path, capsys):
    train = rows([f"r{i}" for i in range(10)] + ["u1"] * 90)  # a tenth of the values is rarer than the threshold
    make(tmp_path, train, rows(["x"] * 9 + ["u1"]), "--label", "y", "--categorical", "user", "--frequency_threshold", 2)
    assert lines(capsys) == []
    made = make(tmp_path, train, rows(["x"] * 10), "--label", "y", "--categorical", "user", "--frequency_threshold", 2, dst="all")
    assert made.metadata["unknown_values"] == {"user": 0.1}
    assert len(lines(capsys)) == 1


def test_rows_for_an_older_dataset_are_compared_with_its_training(tmp_path, capsys):
    made = make(tmp_path, TRAIN, TRAIN, "--label", "y")
    new = make(tmp_path, None, rows(["v1"] * 3), "--vocabulary", made.folder, dst="new")
    assert "test split, feature user: 3 of 3 values are unknown (100.0%; in training: 0.0%), the most frequent: 'v1' (3)" in lines(capsys)[0]
    assert new.metadata["unknown_values"] == {}


def test_lists_count_their_values_and_hashes_have_no_unknown_ones(tmp_path, capsys):
    config = {"label": "y", "features": {"user": {"kind": "list"}, "item": {"kind": "categorical", "hash_buckets": 10}}}
    make(tmp_path, TRAIN, rows(["a|b|u1", "a"]), config=config)
    (line,) = lines(capsys)
    assert "feature user: 2 of 3 values are unknown" not in line  # lists are cut to the longest list of the training rows
    assert "feature user: 2 of 2 values are unknown (100.0%" in line and "'a' (2)" in line


def test_resumed_run_repeats_the_warning(tmp_path, capsys):
    make(tmp_path, TRAIN, rows(["v1"] * 3), "--label", "y", "--resume")
    first = lines(capsys)
    make(tmp_path, TRAIN, rows(["v1"] * 3), "--label", "y", "--resume", "--overwrite")
    assert lines(capsys) == first and len(first) == 1
    assert pl.read_parquet(tmp_path / "out" / "vocabulary" / "user.parquet").height == 5
