"""Tests of exports of models with features for training only: what a request holds there has no effect, in any format and on the real server."""

import re
import threading

import numpy as np
import polars
import pytest
from real_server import packages, started, tracebacks
from served_matrix import MODELS, OTHERS, SCHEMES, SMALL
from served_models import export, train

import dlrm
from run.served_rows import by_feature, drawn_rows
from serving.client import ClientConfig, Requests, dump, scored
from serving.connection import Connection, RequestError
from serving.onnx_model import OnnxModel
from serving.saved_model import LoadedModel
from tests.serving.training_only_models import FEATURES, SERVED, raw_data, requests, write_training_only
from tests.serving.weighted_models import inputs_of, slow_scores
from utils.errors import UserError

FORMATS = ("--formats", "triton,savedmodel,onnx")
CASES = {
    "dlrm": {},
    "dcnv2": MODELS["dcnv2"] | {"out_of_range": "hash"},
    "wide and deep": MODELS["wide_and_deep"] | {"out_of_range": "clip"},
    "deepfm": OTHERS["deepfm"],
    "finalmlp": OTHERS["finalmlp"],
    "logistic regression": OTHERS["lr"],
    "trained in bfloat16": OTHERS["bfloat16"],
}

QUICK = ("dlrm", "wide and deep")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_training_only(tmp_path_factory.mktemp("training_only") / "data")


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    return train(data, tmp_path_factory.mktemp("plain") / "c", **SMALL | {"learning_rate": 0.03})


def scores(repository, inputs):
    """Return the scores of a request by the exports, by their formats."""
    backend = dlrm.load(repository / "dlrm/1/checkpoint", mmap=True, cpu=True).over_arrays()
    return {
        "triton": backend.score(*backend.checked(*inputs.values())),
        "savedmodel": LoadedModel(repository / "dlrm_savedmodel/1/model.savedmodel").score(inputs),
        "onnx": OnnxModel(repository / "dlrm_onnx/1/model.onnx").score(inputs),
    }


@pytest.mark.parametrize("case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_exports_score_as_the_checkpoint_whatever_a_request_holds(data, tmp_path, capsys, case):
    packages("onnx", "onnxruntime")
    checkpoint = train(data, tmp_path / "c", **SMALL | {"learning_rate": 0.03} | CASES[case])
    capsys.readouterr()
    export(checkpoint, tmp_path / "r", *FORMATS, "--precision", "float32")
    assert len(re.findall(r"2,000 rows: largest difference", capsys.readouterr().out)) == 3
    loaded = dlrm.load(checkpoint, mmap=True)
    rows = drawn_rows(loaded.features, seed=7)
    assert not np.isfinite(rows.numerical[:, 1]).all() and np.isfinite(rows.numerical[:, ::2]).all() and (rows.ids[:, 5] > 12).any()
    expected = loaded.score(by_feature(rows, loaded.features))
    limit = 1e-2 if "bfloat16" in case else 1e-6
    for form, found in scores(tmp_path / "r", inputs_of(rows)).items():
        np.testing.assert_allclose(found, expected, atol=limit, rtol=0, err_msg=form)
    given, put = requests(300)
    for form, found in scores(tmp_path / "r", given).items():
        np.testing.assert_array_equal(found, scores(tmp_path / "r", put)[form], err_msg=form)
        if case in ("dlrm", "wide and deep"):
            np.testing.assert_allclose(found, slow_scores(checkpoint, put, FEATURES), atol=1e-6, rtol=0, err_msg=form)
    assert np.ptp(expected) > 0.05


@pytest.mark.parametrize("precision", ["float16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "int8"))])
def test_lower_precision_takes_the_served_values_as_well(plain, precision, tmp_path):
    packages("onnx", "onnxruntime")
    export(plain, tmp_path / "r", *FORMATS, "--precision", precision)
    given, put = requests(300)
    found, expected = scores(tmp_path / "r", given), slow_scores(plain, put, FEATURES)
    for form, some in scores(tmp_path / "r", put).items():
        np.testing.assert_array_equal(found[form], some, err_msg=form)
        assert 0 < np.abs(some - expected).max() < 2e-2, form


def test_the_proof_on_a_split_has_anything_where_it_has_no_effect(plain, data, tmp_path, capsys):
    packages("onnx", "onnxruntime")
    export(plain, tmp_path / "r", *FORMATS, "--dataset_path", data)
    assert len(re.findall(r"400 rows: largest difference .*AUC", capsys.readouterr().out)) == 3
    kept = np.load(tmp_path / "r/dlrm/1/rows.npz")
    assert not np.isfinite(kept["input_0"][:, 1]).all() and (kept["input_1"][:, 5] < 0).any()


def test_an_export_that_reads_the_requests_values_is_refused(plain, tmp_path, monkeypatch):
    packages("onnx", "onnxruntime")
    monkeypatch.setattr("serving.description.ServedModel.served_numerical", None)
    for form in ("savedmodel", "onnx"):
        with pytest.raises(Exception, match=r"dlrm_onnx.*: a score differs by inf from the checkpoint's|not a finite float16"):
            export(plain, tmp_path / form, "--formats", form)
        assert not (tmp_path / form).exists()


def test_a_version_says_what_has_no_effect(plain, tmp_path):
    export(plain, tmp_path / "r")
    config, card = ((tmp_path / f"r/dlrm/{name}").read_text() for name in ("config.pbtxt", "MODEL.md"))
    assert (
        '{ name: "numerical" data_type: TYPE_FP32 dims: [ 3 ] }' in config and '{ name: "categorical" data_type: TYPE_INT64 dims: [ 10 ] }' in config
    )
    assert "For training only, scored as position = 3, slot = 6, height = 0.7" in card and "has no effect, and need not be valid." in card


def test_other_values_are_checked_as_before(plain):
    scorer = dlrm.load(plain, mmap=True, cpu=True).over_arrays()
    given, _ = requests(10)
    before = {name: values.copy() for name, values in given.items()}
    scorer.checked(*given.values())
    assert all(np.array_equal(given[name], before[name], equal_nan=name == "numerical") for name in given)
    given["numerical"][4, 2] = np.nan
    with pytest.raises(ValueError, match=r"^feature y: value nan of sample 4 is not a finite float16"):
        scorer.checked(*given.values())
    given["numerical"][4, 2], given["categorical"][6, 0] = 1, 200
    with pytest.raises(ValueError, match=r"^feature user: id 200 of sample 6 is not in \[0, 200\)"):
        scorer.checked(*given.values())


def test_requests_of_a_split_are_dumped(data, tmp_path):
    path = dump(Requests(ClientConfig(dataset_path=str(data), batch_size=64, max_requests=1)), tmp_path)
    assert path.is_file()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return a folder of a table, its dataset `data` and a model of it `c`."""
    folder = tmp_path_factory.mktemp("log")
    train(raw_data(folder), folder / "c", **SMALL | {"learning_rate": 0.03})
    return folder


def test_a_model_of_raw_values_says_what_may_be_missing(log, tmp_path):
    export(log / "c", tmp_path / "r", "--inputs", "raw", "--formats", "triton,savedmodel")
    config, other = ((tmp_path / "r" / name / "config.pbtxt").read_text() for name in ("dlrm", "dlrm_savedmodel"))
    for name, kind in ("position", "STRING"), ("height", "FP32"):
        assert f'name: "{name}" data_type: TYPE_{kind} dims: [ 1 ] optional: true' in config
    assert config.count("optional") == 2 and "position" not in other and "height" not in other
    assert LoadedModel(tmp_path / "r/dlrm_savedmodel/1/model.savedmodel").inputs == ["price", "user"]
    assert "| height | FP32 | [B, 1], may be missing |" in (tmp_path / "r/dlrm/MODEL.md").read_text()
    assert "may be missing" not in (tmp_path / "r/dlrm_savedmodel/MODEL.md").read_text()


def test_requests_without_any_column_are_refused_by_the_export(tmp_path):
    data = raw_data(tmp_path, {"user": 1, "position": 2, "price": 9.0, "height": 1.5})
    checkpoint = train(data, tmp_path / "c", **SMALL)
    with pytest.raises(UserError, match=r"^--inputs raw: all features of the model are for training only, so a request would hold nothing; use"):
        export(checkpoint, tmp_path / "r", "--inputs", "raw")
    export(checkpoint, tmp_path / "r")
    found = dlrm.load(tmp_path / "r/dlrm/1/checkpoint", mmap=True).over_arrays()
    assert np.ptp(found.score(*found.checked(np.full((9, 2), np.nan, np.float32), np.arange(-9, 9).reshape(9, 2)))) == 0


@pytest.fixture(scope="module")
def server(plain, log, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    wide = train(data, folder / "wide", **SMALL | MODELS["wide_and_deep"] | {"learning_rate": 0.03})
    for name, checkpoint, inputs in (("plain", plain, "ids"), ("wide", wide, "ids"), ("raw", log / "c", "raw")):
        export(checkpoint, folder / "r", "--model_name", name, "--inputs", inputs, "--max_queue_delay_us", 20_000)
    with started(folder / "r") as server:
        server.checkpoints = {"plain": plain, "wide": wide}
        yield server
        assert tracebacks(server) == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["plain", "wide"])
def test_server_scores_with_the_served_values(server, name, scheme):
    given, put = requests(300)
    connection = Connection(f"{scheme}://{getattr(server, scheme)}", name)
    found = connection.infer(given)
    np.testing.assert_array_equal(found, connection.infer(put))
    np.testing.assert_allclose(found, slow_scores(server.checkpoints[name], put, FEATURES), atol=1e-6, rtol=0)
    given["numerical"][2, 0] = np.nan
    with pytest.raises(RequestError, match="feature x: value nan of sample 2 is not a finite float16"):
        connection.infer(given)
    connection.close()


def columns(log, *names):
    """Return columns of the test rows as inputs of a request."""
    frame = polars.read_csv(log / "test.csv")
    of_texts = {name: np.array([[str(value).encode()] for value in frame[name]], object) for name in ("user", "position") if name in names}
    return of_texts | {name: frame[name].to_numpy().astype(np.float32)[:, np.newaxis] for name in ("price", "height") if name in names}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_server_takes_raw_values_with_and_without_the_columns(server, log, scheme):
    expected = dlrm.load(log / "c").score_raw(polars.read_csv(log / "test.csv")["user", "price"])
    asked = Connection(f"{scheme}://{getattr(server, scheme)}", "raw")
    assert [one.name for one in asked.inputs] == ["price", "user"]
    for names in ((), ("position",), ("height", "position")):
        given = columns(log, "user", "price", *names)
        given |= {"height": np.full_like(given["price"], np.nan)} if "height" in names else {}
        asked.inputs = [type(asked.inputs[0])(name, "BYTES" if values.dtype == object else "FP32", 1) for name, values in given.items()]
        np.testing.assert_allclose(asked.infer(given), expected, atol=1e-6, rtol=0)
    asked.inputs = asked.inputs[:1]
    with pytest.raises(RequestError, match="price"):
        asked.infer(given)
    asked.close()


def test_requests_with_and_without_the_columns_are_answered_together(server, log):
    expected = dlrm.load(log / "c").score_raw(polars.read_csv(log / "test.csv")["user", "price"])
    asked, answers = Connection(f"grpc://{server.grpc}", "raw"), {}
    bare, full = (columns(log, *names) for names in (("user", "price"), ("user", "price", "position")))
    short, wide = asked.inputs, [*asked.inputs, type(asked.inputs[0])("position", "BYTES", 1)]
    done = threading.Semaphore(0)
    for row in range(40):
        asked.inputs, values = (wide, full) if row % 2 else (short, bare)

        def answered(found, error, row=row):
            answers[row] = error if error else found[0]
            done.release()

        asked.begin({name: some[row : row + 1] for name, some in values.items()}, answered)
    for _ in range(40):
        assert done.acquire(timeout=120)
    np.testing.assert_allclose([answers[row] for row in range(40)], expected[:40], atol=1e-6, rtol=0)
    asked.close()


@pytest.mark.parametrize("drop", [(), ("position", "height")])
def test_client_scores_a_file_with_or_without_the_columns(server, log, tmp_path, drop):
    frame = polars.read_csv(log / "test.csv", infer_schema=False)
    frame.drop(drop).write_csv(tmp_path / "rows.csv")
    config = ClientConfig(url=f"grpc://{server.grpc}", model_name="raw", data=str(tmp_path / "rows.csv"), label="label")
    found = scored(config, Requests(config, Connection(config.url, "raw")))
    np.testing.assert_allclose(found.scores, dlrm.load(log / "c").score_raw(frame.drop("label")), atol=1e-6, rtol=0)


def test_client_scores_a_split_as_evaluation_does(server, plain, data):
    config = ClientConfig(url=f"grpc://{server.grpc}", model_name="plain", dataset_path=str(data), batch_size=150)
    sent = Requests(config, Connection(config.url, "plain"))
    found = scored(config, sent)
    inputs = [sent.inputs(number) for number in range(sent.count)]
    put = {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}
    put["numerical"][:, 1], put["categorical"][:, 5], put["categorical"][:, 9] = SERVED["height"], SERVED["position"], SERVED["slot"]
    np.testing.assert_allclose(found.scores, slow_scores(plain, put, FEATURES), atol=1e-6, rtol=0)
