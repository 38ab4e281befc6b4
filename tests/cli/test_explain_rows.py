"""Tests of `dlrm.load(…).explain`: against the planted effects, a slow definition, and its errors."""

import shutil

import numpy as np
import planted
import polars as pl
import pytest
import yaml
from runs import here

import dlrm
from preproc.table import command as table
from utils.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    planted.write(folder / "data")
    result = here(folder, "--dataset_path", folder / "data", *planted.FLAGS, "--save_checkpoint_path", folder / "c")
    assert result.code == 0, result.err
    return folder


def samples(count, seed=5):
    """Return samples, and the true effect of each feature on their logits."""
    found = planted.rows(count, seed)
    columns = dict(zip(planted.NUMERICAL, found.numerical.T, strict=True)) | dict(zip(planted.CATEGORICAL, found.ids, strict=True))
    return columns, found.effects


def logits(model, rows):
    p = model.score(rows).astype(np.float64)
    return np.log(p) - np.log1p(-p)


def test_contributions_are_the_planted_effects(folder):
    """Effects have mean 0 over the data, so that a contribution is the effect less the mean of 64 others."""
    columns, effects = samples(400)
    model = dlrm.load(folder / "c", cpu=True)
    found = model.explain(columns)
    assert found.contributions.keys() == planted.SIZES.keys() and all(found.features[name] == (name,) for name in planted.SIZES)
    for name, size in planted.SIZES.items():
        values = found.contributions[name]
        assert values.shape == (400,) and values.dtype == np.float32
        if size > 0.3:
            assert np.corrcoef(values, effects[name])[0, 1] > 0.9, name
        assert abs(values.std() - size) < 0.3, name
    first = found.of(0)
    assert [name for name, _ in first] == sorted(found.contributions, key=lambda name: -abs(found.contributions[name][0]))
    np.testing.assert_allclose(found.logits, logits(model, columns), atol=1e-4)


def test_contributions_by_their_definition(folder, monkeypatch):
    columns, _ = samples(3)
    background, _ = samples(9, seed=6)
    expected = {}
    model = dlrm.load(folder / "c", cpu=True, mmap=True)
    for name in columns:
        without = [logits(model, columns | {name: np.repeat(value, 3)}) for value in background[name]]
        expected[name] = logits(model, columns) - np.mean(without, axis=0)
    forms = {"mapped": model, "in memory": dlrm.load(folder / "c", cpu=True)}
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    forms |= {"TensorFlow": dlrm.load(folder / "c", cpu=True), "TensorFlow, mapped": dlrm.load(folder / "c", cpu=True, mmap=True)}
    for form, one in forms.items():
        if "TensorFlow" not in form:
            monkeypatch.delenv("DLRM_NATIVE_OPS", raising=False)
        else:
            monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
        found = one.explain(pl.DataFrame(columns), background)
        for name, values in expected.items():
            np.testing.assert_allclose(found.contributions[name], values, atol=1e-4, err_msg=f"{form}: {name}")


def test_the_seed_chooses_the_background(folder):
    model, (columns, _) = dlrm.load(folder / "c", cpu=True, mmap=True), samples(2)
    first, again, other = (model.explain(columns, seed=seed).contributions["cat_a"] for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).all()
    np.testing.assert_array_equal(model.explain(columns, str(folder / "data")).contributions["cat_a"], first)
    wide, _ = samples(500, seed=8)
    first, other = (model.explain(columns, wide, seed=seed).contributions["cat_a"] for seed in (0, 1))
    assert (first != other).all()
    assert model.explain({name: [] for name in columns}).logits.shape == (0,)
    many, _ = samples(1000)
    found = model.explain(many, columns).contributions["cat_a"]
    np.testing.assert_array_equal(found[990:], model.explain({name: values[990:] for name, values in many.items()}, columns).contributions["cat_a"])


def test_errors(folder, tmp_path):
    model, (columns, _) = dlrm.load(folder / "c", cpu=True, mmap=True), samples(2)
    with pytest.raises(ValueError, match=r"^feature cat_b: is missing"):
        model.explain({name: values for name, values in columns.items() if name != "cat_b"})
    with pytest.raises(ValueError, match=r"^feature cat_b: is missing"):
        model.explain(columns, {name: values for name, values in columns.items() if name != "cat_b"})
    with pytest.raises(ValueError, match=r"^background: holds no row; expected at least 1"):
        model.explain(columns, {name: [] for name in columns})
    with pytest.raises(UserError, match=r"no such file; expected a feature specification"):
        model.explain(columns, tmp_path)
    with pytest.raises(UserError, match=r"has a table for feature cat_a_copy|has no table for feature cat_a_copy"):
        model.explain(columns, planted.write(tmp_path / "other", copy=True, counts=(("train", 100), ("test", 10))))
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    (folder / "data").rename(folder / "elsewhere")
    try:
        with pytest.raises(
            UserError, match=r"the model was trained on .*data, which is not here; give background=: the folder of a dataset, or samples"
        ):
            dlrm.load(moved / "c", cpu=True).explain(columns)
    finally:
        (folder / "elsewhere").rename(folder / "data")


COLUMNS = {
    "label": "clicked",
    "features": {
        "user": "categorical",
        "price": {"kind": "numerical", "transform": "standardise"},
        "price_range": {"kind": "numerical", "column": "price", "buckets": 4},
        "site": "categorical",
        "user_site": {"kind": "cross", "columns": ["user", "site"]},
    },
}


def test_raw_rows_are_explained_by_column(tmp_path):
    """Features of one column move together, a cross with each of its columns; a raw background equals its encoded rows."""
    draw = np.random.default_rng(1)
    columns = {"user": [f"u{place}" for place in draw.integers(0, 9, 600)], "site": draw.integers(0, 5, 600), "price": draw.random(600).round(2)}
    frame = pl.DataFrame({"clicked": draw.integers(0, 2, 600)} | columns)
    frame.write_csv(tmp_path / "log.csv")
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(COLUMNS, sort_keys=False))
    words = ("--train", tmp_path / "log.csv", "--test_fraction", 0.2, "--dst", tmp_path / "data", "--config", tmp_path / "columns.yaml")
    assert table.main([str(word) for word in words]) == 0
    flags = {
        "embedding_dim": 8,
        "bottom_mlp_dims": "16,8",
        "top_mlp_dims": "16,1",
        "batch_size": 64,
        "epochs": 2,
        "optimizer": "adam",
        "learning_rate": 0.003,
    }
    dlrm.train(dataset_path=str(tmp_path / "data"), save_checkpoint_path=str(tmp_path / "c"), cpu=True, log_path="", warmup_steps=0, **flags)
    model = dlrm.load(tmp_path / "c", cpu=True)
    rows, background = frame[:4].drop("clicked"), frame[100:140].drop("clicked")
    found = model.explain_raw(rows[list(model.raw_columns)], background[list(model.raw_columns)])
    expected = {"user": {"user", "user_site"}, "price": {"price", "price_range"}, "site": {"site", "user_site"}, "user_site": {"user_site"}}
    assert {name: set(together) for name, together in found.features.items()} == expected
    # the price is in no cross: its contribution is that of raw rows with other prices
    without = []
    for price in background["price"]:
        p = model.score_raw(rows.with_columns(price=pl.lit(price))[list(model.raw_columns)]).astype(np.float64)
        without.append(np.log(p) - np.log1p(-p))
    np.testing.assert_allclose(found.contributions["price"], found.logits - np.mean(without, axis=0), atol=1e-4)
    by_dataset = model.explain_raw(rows[list(model.raw_columns)])
    assert by_dataset.contributions.keys() == found.contributions.keys() and (by_dataset.logits == found.logits).all()
