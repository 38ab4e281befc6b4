"""Tests that exports score as their checkpoints: every model and interaction, lists, shared tables, widths, no numerical features, raw values."""

import re
import subprocess
import sys

import numpy as np
import pytest
from real_server import packages
from served_models import EVERYTHING, LISTS, PLAIN, TABLE, criteo_data, export, table_data, train, write

import dlrm
from run.raw_rows import drawn_columns
from run.served_rows import by_feature, drawn_rows
from utils.errors import UserError

CROSS = {"interaction": "cross", "cross_layer_projection_dim": 4, "num_cross_layers": 2}
WIDTHS = {"embedding_dim": "8,4,4,12"}
ALL_FORMATS = "triton,savedmodel,onnx"
MODELS = {
    "dot": (PLAIN, ("x", "y", "z"), "float16", {}),
    "dot of lists": (LISTS, ("x", "y"), "float32", {"out_of_range": "clip"}),
    "dot without numericals": (LISTS, (), "float16", {}),
    "cross": (PLAIN, ("x",), "float32", CROSS),
    "cross of widths and lists": (LISTS, ("x", "y"), "float16", CROSS | WIDTHS | {"out_of_range": "hash"}),
    "parallel": (PLAIN, ("x", "y"), "float16", CROSS | {"structure": "parallel", "cross_layer_projection_dim": 0}),
    "crossnet": (LISTS, ("x",), "float32", CROSS | {"structure": "crossnet", "cross_layer_projection_dim": 0, "top_mlp_dims": "1"} | WIDTHS),
    "cat of widths without numericals": (LISTS, (), "float16", {"interaction": "cat"} | WIDTHS),
    "wide and deep of lists": (
        LISTS,
        ("x", "y"),
        "float32",
        {"interaction": "wide_and_deep", "optimizer": "rmsprop", "out_of_range": "clip"} | WIDTHS,
    ),
    "trained in bfloat16": (PLAIN, ("x", "y", "z"), "float16", {"amp": True}),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    categorical, numerical, dtype, flags = MODELS[request.param]
    return request.param, train(write(folder / "data", categorical, numerical, dtype), folder / "c", **flags)


def onnx_scores(path, inputs):
    from serving.onnx_model import OnnxModel

    return OnnxModel(path).score(inputs)


def saved_model_scores(folder, inputs):
    from serving.saved_model import LoadedModel

    return LoadedModel(folder).score(inputs)


def test_exports_of_ids_score_as_the_checkpoint(model, tmp_path, capsys):
    packages("onnx", "onnxruntime")
    name, checkpoint = model
    export(checkpoint, tmp_path / "r", "--formats", ALL_FORMATS, "--precision", "float32")
    said = capsys.readouterr().out
    assert len(re.findall(r"2,000 rows: largest difference", said)) == 3
    loaded = dlrm.load(checkpoint, mmap=True)
    rows = drawn_rows(loaded.features, seed=7)
    if "out_of_range" in MODELS[name][3]:  # clipped or hashed in the same way everywhere; -1 (no id) stays -1
        rows.ids[::3] = np.where(rows.ids[::3] == -1, -1, rows.ids[::3] * 5 - 40)
    expected = loaded.score(by_feature(rows, loaded.features))
    limit = 1e-2 if "bfloat16" in name else 1e-6  # the checkpoint itself computes in 16 bits
    scorer = dlrm.load(tmp_path / "r/dlrm/1/checkpoint", mmap=True).over_arrays()
    np.testing.assert_allclose(scorer.score(*scorer.checked(rows.numerical, rows.ids)), expected, atol=limit, rtol=0)
    inputs = {"categorical": rows.ids} | ({"numerical": rows.numerical} if rows.numerical.shape[1] else {})
    np.testing.assert_allclose(saved_model_scores(tmp_path / "r/dlrm_savedmodel/1/model.savedmodel", inputs), expected, atol=limit, rtol=0)
    np.testing.assert_allclose(onnx_scores(tmp_path / "r/dlrm_onnx/1/model.onnx", inputs), expected, atol=limit, rtol=0)
    assert np.ptp(expected) > 0.05


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    return train(write(folder / "data", LISTS, ("x", "y")), folder / "c", interaction="cross", embedding_dim="8,4,4,12", cross_layer_projection_dim=4)


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
def test_lower_precision_changes_scores_little_and_shares_files(lists, precision, tmp_path):
    packages("onnx", "onnxruntime")
    checkpoint = lists
    export(checkpoint, tmp_path / "r", "--formats", ALL_FORMATS, "--precision", precision)
    loaded = dlrm.load(checkpoint, mmap=True)
    rows = drawn_rows(loaded.features, seed=7)
    expected = loaded.score(by_feature(rows, loaded.features))
    few = dlrm.load(tmp_path / "r/dlrm/1/checkpoint")
    found = few.score(by_feature(rows, few.features))
    assert 0 < np.abs(found - expected).max() < 2e-2
    files = list((tmp_path / "r/dlrm/1/checkpoint/tables").rglob("rows.bin"))
    assert len(files) == len(loaded.features.tables) and all(file.stat().st_nlink == 2 for file in files)  # shared with the SavedModel


RAW = {"criteo": lambda folder: criteo_data(folder), "table": lambda folder: table_data(folder, TABLE), "kinds": lambda f: table_data(f, EVERYTHING)}


@pytest.fixture(scope="module", params=RAW)
def raw_model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    return request.param, train(RAW[request.param](folder), folder / "c")


def test_exports_of_raw_values_score_as_the_checkpoint(raw_model, tmp_path, capsys):
    name, checkpoint = raw_model
    forms = ["triton"] if name == "kinds" else ["triton", "savedmodel"]
    export(checkpoint, tmp_path / "r", "--inputs", "raw", "--formats", ",".join(forms))
    assert capsys.readouterr().out.count("2,000 rows: largest difference") == len(forms)
    loaded = dlrm.load(checkpoint, mmap=True)
    columns = drawn_columns(loaded.raw_inputs(), seed=5)
    expected = loaded.score_raw(columns)
    scorer = dlrm.load(tmp_path / "r/dlrm/1/checkpoint", mmap=True).over_raw_arrays()
    np.testing.assert_allclose(scorer.score(*scorer.checked(columns)), expected, atol=1e-6, rtol=0)
    assert list(scorer.numbers) == list(columns) and len(np.unique(expected)) > 500
    if name == "table":
        inputs = {column: values[:, np.newaxis] for column, values in columns.items()}
        np.testing.assert_allclose(saved_model_scores(tmp_path / "r/dlrm_savedmodel/1/model.savedmodel", inputs), expected, atol=1e-6, rtol=0)


def test_raw_feature_beyond_tensorflow_operations_is_refused(raw_model, tmp_path):
    name, checkpoint = raw_model
    if name != "kinds":
        return
    with pytest.raises(UserError, match=r"feature bought \(kind list\): .*use --formats triton, or --inputs ids"):
        export(checkpoint, tmp_path / "r", "--inputs", "raw", "--formats", "savedmodel")
    assert not (tmp_path / "r").exists()


def test_onnx_model_refuses_ids_out_of_range_and_gives_nan_for_numericals_not_finite(tmp_path):
    packages("onnx", "onnxruntime")
    export(train(write(tmp_path / "data", PLAIN), tmp_path / "c"), tmp_path / "r", "--formats", "onnx")
    path = tmp_path / "r/dlrm_onnx/1/model.onnx"
    good = {"numerical": np.zeros((2, 3), np.float32), "categorical": np.zeros((2, 3), np.int64)}
    for value in (-1, 7, 2**40):
        bad = good["categorical"].copy()
        bad[1, 2] = value
        with pytest.raises(Exception, match="out of"):
            onnx_scores(path, good | {"categorical": bad})
    for value in (np.nan, np.inf, 1e6):
        bad = good["numerical"].copy()
        bad[0, 1] = value
        found = onnx_scores(path, good | {"numerical": bad})
        assert np.isnan(found[0]) and np.isfinite(found[1])


def test_a_saved_model_loads_in_a_process_without_this_project(tmp_path):
    checkpoint = train(write(tmp_path / "data", PLAIN), tmp_path / "c")
    export(checkpoint, tmp_path / "r", "--formats", "savedmodel")
    code = (
        "import sys, tensorflow as tf; m = tf.saved_model.load(sys.argv[1]).signatures['serving_default'];"
        "p = m(numerical=tf.zeros([3, 3]), categorical=tf.zeros([3, 3], tf.int64))['probability'];"
        "assert not any(name in sys.modules for name in ('model', 'serving', 'dlrm', 'training')), 'ours';"
        "print(p.shape.as_list(), float(p[0, 0]))"
    )
    folder = tmp_path / "r/dlrm_savedmodel/1/model.savedmodel"
    result = subprocess.run([sys.executable, "-I", "-c", code, folder], cwd="/", capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    loaded = dlrm.load(checkpoint, mmap=True)
    expected = loaded.score({name: [0] for name in loaded.columns})[0]
    shape, value = result.stdout.rsplit(" ", 1)
    assert shape == "[3, 1]" and float(value) == pytest.approx(expected, abs=1e-6)


def test_saved_model_names_invalid_values(tmp_path):
    export(train(write(tmp_path / "data", PLAIN), tmp_path / "c"), tmp_path / "r", "--formats", "savedmodel")
    folder = tmp_path / "r/dlrm_savedmodel/1/model.savedmodel"
    good = {"numerical": np.zeros((2, 3), np.float32), "categorical": np.zeros((2, 3), np.int64)}
    for place, value in ((0, 40), (2, -1)):
        bad = good["categorical"].copy()
        bad[1, place] = value
        with pytest.raises(Exception, match=rf"feature {'abc'[place]}: id.*{value}.*is not in"):
            saved_model_scores(folder, good | {"categorical": bad})
    for value in (np.nan, np.inf, 1e6):
        bad = good["numerical"].copy()
        bad[0, 1] = value
        with pytest.raises(Exception, match="not a finite float16"):
            saved_model_scores(folder, good | {"numerical": bad})
