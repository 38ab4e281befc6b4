"""Tests of `--allow_growth` for models whose tables have different widths; the widths belong to the tables' names."""

import numpy as np
import pytest
from runs import edit_spec, write_dataset

import dlrm
from run.tables import grown_widths
from utils.checkpoint.reading import Checkpoint
from utils.dialects.command_line import parse

WIDE = ("--interaction", "wide_and_deep", "--top_mlp_dims", "6,1")
CROSS = ("--interaction", "cross", "--cross_layer_projection_dim", "4", "--bottom_mlp_dims", "6,4", "--top_mlp_dims", "6,1")
RUN = ("--cpu", "--batch_size", "25", "--max_steps", "1", "--learning_rate", "1e-9")  # too small to change a weight visibly


def with_widths(folder, cardinalities, widths):
    """Write a dataset whose features have these names and embedding widths, in this order; return its folder."""
    write_dataset(folder, cardinalities, {"train": 60, "test": 30})

    def change(spec):
        spec["channel_spec"]["categorical"] = list(widths)
        for name, width in widths.items():
            spec["feature_spec"][name]["embedding_dim"] = width

    edit_spec(folder, change)
    return folder


@pytest.fixture
def old(tmp_path):
    return with_widths(tmp_path / "old", (9, 5), {"cat_0": 6, "cat_1": 3})


@pytest.fixture
def grown(tmp_path):
    return with_widths(tmp_path / "grown", (9, 5, 4), {"cat_2": 2, "cat_1": 3, "cat_0": 6})


def grow(run, tmp_path, old, grown, model, *flags):
    trained = run("--dataset_path", old, *RUN, *model, "--save_checkpoint_path", tmp_path / "c")
    assert trained.code == 0, trained.err
    flags = ("--restore_checkpoint_path", tmp_path / "c", "--allow_growth", "--save_checkpoint_path", tmp_path / "d", *flags)
    return run("--dataset_path", grown, *RUN, *flags)


@pytest.mark.parametrize("model", [WIDE, CROSS], ids=["wide_and_deep", "cross"])
def test_growth_with_a_new_feature_in_another_order(run, tmp_path, old, grown, model):
    result = grow(run, tmp_path, old, grown, model)
    assert "new features: cat_2; new rows: none; training starts at step 0" in result.out, result.err
    assert Checkpoint(tmp_path / "d").shape("tables/cat_2/weights") == (4, 2)
    for name in ("tables/cat_0/weights", "tables/cat_1/weights"):
        found, expected = (Checkpoint(tmp_path / step).read(name) for step in "dc")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6, err_msg=name)
    if model == WIDE:
        return  # FTRL's first step almost erases the linear part; tests/training/test_growth.py compares scores before a step
    before, after = (dlrm.load(tmp_path / name) for name in "cd")
    draw = np.random.default_rng(0)
    samples = {name: draw.random(30) for name in before.numerical}
    samples |= {name: draw.integers(0, rows, 30) for name, rows in after.categorical.items()}
    expected = before.score({name: samples[name] for name in before.columns})
    np.testing.assert_allclose(after.score(samples), expected, rtol=0, atol=1e-6)
    assert np.ptp(expected) > 1e-3


def test_contradictory_or_missing_widths_are_errors(run, tmp_path, old, grown):
    edit_spec(grown, lambda found: found["feature_spec"]["cat_2"].pop("embedding_dim"))
    bare = grow(run, tmp_path, old, grown, CROSS)
    assert bare.code == 1 and "feature cat_2: is new, and the checkpoint's tables have different widths; set its width by embedding_dim" in bare.err
    flags = ("--restore_checkpoint_path", tmp_path / "c", "--allow_growth", "--save_checkpoint_path", tmp_path / "e")
    listed = run("--dataset_path", grown, *RUN, *CROSS, *flags, "--embedding_dim", "2,3,6")
    assert listed.code == 0 and Checkpoint(tmp_path / "e").shape("tables/cat_0/weights") == (9, 6), listed.err
    edit_spec(grown, lambda found: [found["feature_spec"][name].update(embedding_dim=7) for name in ("cat_0", "cat_2")])
    wrong = run("--dataset_path", grown, *RUN, *flags)
    assert wrong.code == 1 and "feature cat_0: the checkpoint's table has 6 columns, the feature specification says 7" in wrong.err


def test_new_feature_without_allow_growth_is_an_error(run, tmp_path, old, grown):
    assert run("--dataset_path", old, *RUN, *WIDE, "--save_checkpoint_path", tmp_path / "c").code == 0
    result = run("--dataset_path", grown, *RUN, "--restore_checkpoint_path", tmp_path / "c")
    assert result.code == 1 and "has no table for feature cat_2; it was trained on cat_0, cat_1; --allow_growth continues training" in result.err
    evaluated = run("--dataset_path", grown, "--cpu", "--mode", "eval", "--restore_checkpoint_path", tmp_path / "c")
    assert evaluated.code == 1 and "has no table for feature cat_2" in evaluated.err


def test_embedding_zeros_initializer_with_a_new_table_is_an_error(run, tmp_path, old, grown):
    result = grow(run, tmp_path, old, grown, CROSS, "--embedding_zeros_initializer")
    assert result.code == 1 and "--embedding_zeros_initializer --allow_growth: table cat_2 is new, and the weights that read it" in result.err


def test_new_tables_inherit_a_common_width():
    """New tables get the width that all tables of the checkpoint share, even where their widths are given table by table."""
    grown = grown_widths(parse(["--dataset_path", "d", "--interaction", "cat"], ""), {"a": 6, "b": 6}, ())
    assert grown.model.embedding_dim == 6
