"""Generated logs have Criteo's form, are the same for the same seed, and hold a signal that a model can learn."""

import numpy as np
import polars as pl
import pytest

from preproc import sample_log
from preproc.criteo import command as criteo
from preproc.criteo.clicklog import CATEGORICAL, NUMERICAL, read_rows
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from utils.errors import UserError


def drawn(folder, *flags):
    assert do(sample_log, "--dst", folder, *flags) == 0
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_logs_have_the_requested_rows_and_missing_values(tmp_path, capsys):
    drawn(tmp_path, "--rows", 3000, 1000)
    assert "day_0.tsv: 3,000 rows, click rate 0." in capsys.readouterr().out
    for day, rows in enumerate((3000, 1000)):
        frame = pl.concat(block.frame for block in read_rows(tmp_path / f"day_{day}.tsv", 1 << 20))
        assert frame.height == rows and 0.15 < frame["label"].mean() < 0.35
        for name in (*NUMERICAL, *CATEGORICAL):
            assert 0.01 < frame[name].null_count() / rows < 0.06, name
    assert frame["cat_0"].n_unique() > frame["cat_12"].n_unique() > 8


def test_same_seed_gives_the_same_log(tmp_path):
    first = drawn(tmp_path / "a", "--rows", 700, 300, "--seed", 3)
    assert drawn(tmp_path / "b", "--rows", 700, 300, "--seed", 3) == first
    assert drawn(tmp_path / "c", "--rows", 700, 300, "--seed", 4) != first
    longer = drawn(tmp_path / "d", "--rows", 700, "--seed", 3)
    assert longer == first[:1] and first[0] != first[1]


def test_a_logistic_regression_of_one_day_predicts_the_next(tmp_path):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    from dataloading.tf_raw import TfRawSplit

    drawn(tmp_path / "logs", "--rows", 8000, 4000)
    days = [str(tmp_path / f"logs/day_{day}.tsv") for day in (0, 1)]
    do(criteo, "--train", days[0], "--test", days[1], "--dst", tmp_path / "d", "--frequency_threshold", "3")
    spec, values = spec_in(tmp_path / "d"), {}
    for name, rows in (("train", 8000), ("test", 4000)):
        split = TfRawSplit(spec, name)
        values[name] = split.read_numerical(0, rows).astype(np.float64), split.read_labels(0, rows)
        split.close()
    fitted = LogisticRegression(max_iter=1000).fit(*values["train"])
    assert roc_auc_score(values["test"][1], fitted.decision_function(values["test"][0])) > 0.6  # by the numerical features alone


@pytest.mark.parametrize("flags", [("--rows", "0"), ("--rows", "5", "-1"), ("--seed", "-1")])
def test_invalid_flags_are_one_line_errors(tmp_path, flags):
    with pytest.raises(UserError, match="expected"):
        do(sample_log, "--dst", tmp_path / "x", *flags)
    assert not (tmp_path / "x").exists()


def test_existing_log_is_kept(tmp_path):
    (tmp_path / "day_1.tsv").write_text("mine")
    with pytest.raises(UserError, match=r"day_1\.tsv: already exists; choose another --dst"):
        do(sample_log, "--dst", tmp_path, "--rows", "5", "5")
    assert (tmp_path / "day_1.tsv").read_text() == "mine" and not list(tmp_path.glob(".*"))
