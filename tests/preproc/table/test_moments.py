"""Means and standard deviations against exact fractions, and the standardised columns of numbers that are equal, narrow, or far from zero."""

from fractions import Fraction

import numpy as np
import pytest

from preproc.table.moments import Moments
from tests.preproc.table.tables import make

CONFIG = {"label": "y", "features": {name: "numerical" for name in ("seconds", "nanos", "id", "plain")} | {"c": "categorical"}}


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=70_000),
        np.random.default_rng(1).integers(-9, 2**31, 40_000).astype(np.float64),
        1.7e18 + 1000 * np.arange(500.0),
        np.random.default_rng(2).normal(size=300) * 10.0 ** np.random.default_rng(2).integers(-300, 150, 300),
        np.array([5e-324, 1e-323, np.nan, -5e-324]),
        np.array([0.1, np.nextafter(0.1, 1)]),
        np.array([1e154, -1e154, 1e-154]),
    ],
    ids=["normal", "whole", "far from zero", "many powers", "subnormal", "neighbours", "large"],
)
def test_moments_are_those_of_exact_fractions_in_any_order(values):
    exact = [Fraction(value) for value in values.tolist() if value == value]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    mixed = Moments()
    for part in np.array_split(np.random.default_rng(3).permutation(values), 3):
        found = Moments()
        found.add(part)
        mixed.join(found)
    whole = Moments()
    whole.add(values)
    assert mixed.mean_and_std("x") == whole.mean_and_std("x") and whole.constant is None
    found, std = whole.mean_and_std("x")
    assert (
        found == pytest.approx(float(mean), rel=1e-11, abs=0) and float(Fraction(std) ** 2 / variance) == pytest.approx(1, rel=1e-9)
    ) or std <= 1e-323
    if std < 1e-4 * abs(found):
        assert found == float(mean)  # no digit is dropped where the deviation is small


@pytest.mark.parametrize("block_bytes", [40, 1 << 20])
def test_constants_are_0_and_an_id_far_from_zero_keeps_its_spread(tmp_path, capsys, block_bytes):
    rows = "".join(f"1700000000000,1700000000123456789,{1700000000000000000 + 1000 * i},{i % 7},c{i % 3},{i % 2}\n" for i in range(400))
    made = make(tmp_path, content := "seconds,nanos,id,plain,c,y\n" + rows, content, "--block_bytes", block_bytes, config=CONFIG)
    said = capsys.readouterr().err
    assert {*made["train"]["seconds"], *made["train"]["nanos"]} == {0.0}
    ids = np.array(made["train"]["id"])
    assert np.abs(ids).max() == pytest.approx(3**0.5, rel=0.01) and ids.std() == pytest.approx(1, rel=1e-6) and abs(ids.mean()) < 1e-2
    assert "feature seconds: every value in the training rows is 1700000000000, so it is 0 there; --ignore leaves the column out" in said
    assert "feature nanos: every value" in said and "feature id" not in said and "feature plain" not in said


@pytest.mark.parametrize("transform", ["standardise", "none", "log1p"])
def test_values_beyond_100_deviations_are_counted_for_each_split(tmp_path, capsys, transform):
    far = "1e300" if transform == "log1p" else "1e9"
    train = "n,m,c,y\n" + "".join(f"{0.5 if i else far},{i % 5},a,{i % 2}\n" for i in range(20_000))
    test = f"n,m,c,y\n0.5,1,a,1\n{far},2,a,0\n{far},3,a,0\n0.5,1e30,a,1\n"
    flags = ("--label", "y", "--numerical", "n,m", "--categorical", "c", "--numerical_transform", transform)
    make(tmp_path, train, test, *flags)
    said = [line for line in capsys.readouterr().err.splitlines() if "standard deviations" in line]
    assert [line.split("warning: ")[1].split(" values")[0] for line in said] == [
        "train split, feature n: 1 of 20,000",
        "test split, feature n: 2 of 4",
        "test split, feature m: 1 of 4",
    ]


def test_a_constant_has_no_deviation_to_be_beyond(tmp_path, capsys):
    content = "n,c,y\n" + "".join(f"VALUE,a,{i % 2}\n" for i in range(5000))
    for value in ("0.1", "0.3", "123.456", "1000000064"):
        rows = content.replace("VALUE", value)
        flags = ("--label", "y", "--categorical", "c", "--numerical", "n", "--numerical_transform", "none")
        make(tmp_path, rows, rows + f"{2 * float(value)},a,1\n", *flags, dst=value)
    assert "standard deviations" not in capsys.readouterr().err
