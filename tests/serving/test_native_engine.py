"""Tests of the C++ scorer in place of TensorFlow's: the same scores without importing TensorFlow, which still scores what the C++ scorer cannot."""

import subprocess
import sys

import numpy as np
import pytest
from served_models import LISTS, PLAIN, train, write

import dlrm
from model.native_scorer import NativeScorer, native_precisions, native_scorer_library
from run.served_rows import by_feature, drawn_rows
from tests.children import ROOT
from utils.config.serving import BFLOAT16


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    if native_scorer_library() is None:
        pytest.skip("DLRM_NATIVE_OPS=0")
    folder = tmp_path_factory.mktemp("native")
    widths = {"interaction": "cross", "embedding_dim": "8,4,4,12", "cross_layer_projection_dim": 4}
    return train(write(folder / "data", LISTS, ("x", "y")), folder / "c", **widths)


@pytest.fixture
def by_tensorflow(checkpoint, monkeypatch):
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    found = dlrm.load(checkpoint, mmap=True, cpu=True)
    monkeypatch.delenv("DLRM_NATIVE_OPS")
    return found


def test_scores_equal_tensorflows(checkpoint, by_tensorflow):
    ours, theirs = (model.over_arrays() for model in (dlrm.load(checkpoint, mmap=True, cpu=True), by_tensorflow))
    assert isinstance(ours.engine, NativeScorer) and not isinstance(theirs.engine, NativeScorer)
    rows = drawn_rows(by_tensorflow.features, seed=3)
    numerical, ids = ours.checked(rows.numerical, rows.ids)
    numerical[7:10, 1] = np.nan, np.inf, -np.inf  # requests never have these values, but both engines treat them alike, too
    with np.errstate(invalid="ignore"):
        for count in (1, 2, 13, 64, 300, len(ids)):
            found, expected = (one.score(numerical[:count], ids[:count]) for one in (ours, theirs))
            np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    assert np.isnan(found[7]) and np.ptp(np.delete(found, [7, 8, 9])) > 0.05


def test_score_by_feature_names_equals_tensorflows(checkpoint, by_tensorflow):
    ours = dlrm.load(checkpoint, mmap=True, cpu=True)
    rows = drawn_rows(by_tensorflow.features, seed=3)
    columns = by_feature(rows, by_tensorflow.features)
    for count in (0, 1, 256, 257):
        some = {name: values[:count] for name, values in columns.items()}
        found, expected = ours.score(some), by_tensorflow.score(some)
        assert found.dtype == np.float32 and found.shape == (count,)
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    by_the_model = dlrm.load(checkpoint, cpu=True).score(some)
    np.testing.assert_array_equal(found, by_the_model)  # many samples get the scores of --mode predict, bit for bit


def test_scoring_does_not_import_tensorflow(checkpoint):
    code = (
        "import sys, numpy as np; from pathlib import Path; from served.backend import load; found = load(Path(sys.argv[1]), False, True)\n"
        "print(found.score(*found.checked(np.zeros((1, 2), np.float32), np.zeros((1, 12), np.int64))).shape, 'tensorflow' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, checkpoint], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.stdout == "(1,) False\n", result.stderr


def test_model_trained_in_bfloat16_is_scored_in_it_where_the_processor_has_it(tmp_path):
    checkpoint = train(write(tmp_path / "data", PLAIN), tmp_path / "c", amp=True)
    model = dlrm.load(checkpoint, mmap=True, cpu=True)
    scorer = model.over_arrays()
    native = isinstance(scorer.engine, NativeScorer)
    assert native == (BFLOAT16 in native_precisions()) and (not native or scorer.engine.precision == BFLOAT16)
    rows = drawn_rows(model.features)
    numerical, ids = scorer.checked(rows.numerical, rows.ids)
    found, named = scorer.score(numerical, ids), by_feature(rows, model.features)
    expected = model.score(named)  # by TensorFlow, as --mode predict
    assert np.abs(found - expected).max() < 4e-3 and np.ptp(expected) > 0.01
    for size in (1, 7, 64) if native else ():  # a sample's bits do not depend on its batch
        np.testing.assert_array_equal(scorer.score(numerical[:size], ids[:size]), found[:size])
    np.testing.assert_array_equal(model.score({name: values[:3] for name, values in named.items()}), expected[:3])
