"""The recipe for small logs, its benchmark, and the peers that it is compared with."""

import json

import numpy as np
import pytest

from benchmarks.drawn_logs import KINDS, LABEL, TIME, write_log
from benchmarks.small_peers import AllRows, Rows, auc, logistic_regression, matrix_factorisation, read_rows
from preproc.table import command as table
from tests.helpers.commands import run, run_here

WITHIN = 0.003  # the allowed distance below the better peer
FEW = 10_000


def converted(folder, kind, seed, rows) -> AllRows:
    """Draw a log, convert it to folder/data, and return its rows."""
    columns = write_log(folder / "log.csv", kind, seed, rows)
    split = ("--split_by", TIME, "--valid_fraction", 0.1, "--test_fraction", 0.2, "--ignore", TIME)
    words = ("--train", folder / "log.csv", "--label", LABEL, "--categorical", ",".join(columns), *split, "--dst", folder / "data")
    assert table.main([*map(str, words)]) == 0
    return read_rows(folder / "data")


def test_recipe_is_not_behind_logistic_regression_on_a_small_log(tmp_path):
    """The kind has pairs with an effect: on others the recipe is so close to the regression that the few test rows decide (docs/small_data.md)."""
    rows = converted(tmp_path, "few_crosses", 5, FEW)
    assert sum(len(one.labels) for one in rows.splits.values()) == FEW
    flags = ("--dataset_path", tmp_path / "data", "--save_checkpoint_path", tmp_path / "model", "--log_path", tmp_path / "log.json", "--cpu")
    ended = run_here("dlrm.py", "--config", "recipes/small.yaml", *flags)
    assert ended.returncode == 0, ended.stderr
    assert "no effect" not in ended.stderr
    last = json.loads((tmp_path / "log.json").read_text().splitlines()[-1].partition(" ")[2])
    assert last["data"]["auc"] >= logistic_regression(rows.splits) - WITHIN > 0.55


def test_factorisation_finds_what_a_linear_model_cannot():
    """The labels are the sign of a product of two values' factors: no value has an effect of its own."""
    draw = np.random.default_rng(1)
    factors = np.stack([draw.permutation(np.repeat([-1.0, 1.0], 20)) for _ in range(2)])  # as many of each sign, so that the products are balanced

    def drawn(count):
        ids = draw.integers(0, 40, (count, 2))
        return Rows(ids, np.zeros((count, 0)), (factors[0, ids[:, 0]] * factors[1, ids[:, 1]] > 0).astype(np.uint8))

    rows = {"train": drawn(4000), "valid": drawn(500), "test": drawn(1000)}
    assert matrix_factorisation(rows, 0, 1) > 0.99
    assert 0.4 < logistic_regression(rows) < 0.6


def test_logistic_regression_uses_numbers_and_bears_new_ids():
    draw = np.random.default_rng(2)

    def drawn(count, values):
        numbers = draw.normal(size=(count, 2)) * 50 + 100
        return Rows(draw.integers(0, values, (count, 1)), numbers, (numbers[:, 0] > numbers[:, 1]).astype(np.uint8))

    assert logistic_regression({"train": drawn(2000, 5), "valid": drawn(300, 5), "test": drawn(300, 9)}) > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_logs_depend_on_their_seed_alone(kind, tmp_path):
    columns = write_log(tmp_path / "a.csv", kind, 3, 2000)
    write_log(tmp_path / "b.csv", kind, 3, 2000)
    write_log(tmp_path / "c.csv", kind, 4, 2000)
    one, same, other = ((tmp_path / f"{name}.csv").read_text() for name in "abc")
    assert one == same != other
    header, *lines = one.splitlines()
    assert len(lines) == 2000 and set(columns) < set(header.split(","))
    clicks = sum(line.endswith(",1") for line in lines)
    assert abs(clicks / 2000 - KINDS[kind].rate) < 0.05
    assert KINDS[kind].pair is None or set(KINDS[kind].pair) <= set(columns)


def test_auc_of_a_known_order():
    rows = Rows(np.zeros((4, 1), np.int64), np.zeros((4, 0)), np.array([0, 1, 0, 1], np.uint8))
    assert auc(rows, np.array([0.1, 0.2, 0.3, 0.4])) == 0.75


@pytest.mark.slow
def test_benchmark(tmp_path):
    ended = run("-m", "benchmarks.small_logs", "--quick", "--json", tmp_path / "figures.json", "--folder", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (figures,) = json.loads((tmp_path / "figures.json").read_text())["logs"].values()
    assert figures["rows"] == 1000 and figures["lightgbm"] is None
    assert all(0 < figures[name] < 1 for name in ("logistic", "factorisation", "ours"))
    assert [one["recipe"] for one in figures["by_recipe"]] == ["small.yaml", "small_fm.yaml"]
    assert figures["valid"] == max(one["valid_auc"] for one in figures["by_recipe"])
    assert figures["difference"] == figures["ours"] - max(figures["logistic"], figures["factorisation"])
    assert "LightGBM is not measured" in ended.stdout and "ratings_1" in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kinds", "ratings,novels"), "--kinds ratings,novels: expected one or more of"),
        (("--rows", "10"), "--rows 10: expected at least 1000"),
        (("--recipes", "none.yaml"), "--recipes none.yaml: no such file"),
        (("--criteo", "/no/such"), "--criteo /no/such: it holds no day_0.tsv"),
        (("--lightgbm_python", "/no/such"), "--lightgbm_python /no/such: no such program"),
    ],
)
def test_invalid_flags_are_one_line(flags, message):
    ended = run_here("-m", "benchmarks.small_logs", *flags)
    assert ended.returncode != 0 and message in ended.stderr and "Traceback" not in ended.stderr
