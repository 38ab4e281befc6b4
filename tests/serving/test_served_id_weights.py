"""Tests of models whose ids have weights: exports score as their checkpoints and as a slow model in float64, and the real server serves them."""

import json
import re

import numpy as np
import pytest
from real_server import packages, started, tracebacks
from served_matrix import BATCHES, IDS, MODELS, OTHERS, SCHEMES, SMALL, WEIGHTED, Kind, Served, check_case
from served_models import export, train
from weighted_models import inputs_of, slow_scores, write_weighted

import dlrm
from run.served_rows import by_feature, drawn_rows
from served import stand_in
from served.backend import Backend
from serving.client import ClientConfig, Requests, dump, scored
from serving.connection import Connection, RequestError
from serving.onnx_model import OnnxModel
from serving.saved_model import LoadedModel
from utils.metrics.binary import exact_auc

WIDTHS = {"embedding_dim": "8,4,4,12,6,2"}
CASES = {
    "dlrm": {},
    "dcnv2": MODELS["dcnv2"] | WIDTHS | {"out_of_range": "hash"},
    "wide and deep": MODELS["wide_and_deep"] | {"out_of_range": "clip"},
    "wide and deep with means": MODELS["wide_and_deep"] | {"wide_pooling": "feature"},
    "deepfm": OTHERS["deepfm"],
    "finalmlp": OTHERS["finalmlp"],
    "logistic regression": OTHERS["lr"],
    "trained in bfloat16": OTHERS["bfloat16"],
}

QUICK = ("dlrm", "wide and deep", "deepfm")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_weighted(tmp_path_factory.mktemp("weighted") / "data")


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
def test_exports_score_as_the_checkpoint(data, tmp_path, capsys, case):
    packages("onnx", "onnxruntime")
    checkpoint = train(data, tmp_path / "c", **SMALL | {"learning_rate": 0.02} | CASES[case])
    capsys.readouterr()
    export(checkpoint, tmp_path / "r", "--formats", "triton,savedmodel,onnx", "--precision", "float32")
    assert len(re.findall(r"2,000 rows: largest difference", capsys.readouterr().out)) == 3
    loaded = dlrm.load(checkpoint, mmap=True)
    rows = drawn_rows(loaded.features, seed=7)
    assert (rows.id_weights == 0).any() and (rows.id_weights < 0).any() and rows.id_weights.shape == (2000, 10)
    if "out_of_range" in CASES[case]:
        rows.ids[::3] = np.where(rows.ids[::3] == -1, -1, rows.ids[::3] * 5 - 40)
    expected = loaded.score(by_feature(rows, loaded.features))
    limit = 1e-2 if "bfloat16" in case else 1e-6
    for form, found in scores(tmp_path / "r", inputs_of(rows)).items():
        np.testing.assert_allclose(found, expected, atol=limit, rtol=0, err_msg=form)
    if case in ("dlrm", "wide and deep") and "out_of_range" not in CASES[case]:
        np.testing.assert_allclose(slow_scores(checkpoint, inputs_of(rows)), expected, atol=1e-6, rtol=0)
    assert np.ptp(expected) > 0.05


@pytest.mark.parametrize("model", ["dlrm", "wide_and_deep"])
def test_exports_score_as_a_slow_model_where_weights_matter(data, tmp_path, model):
    """The scores change with the weights; an id of weight 0 and a weight of no id have no part in them; a mean of no weight is zeros."""
    packages("onnx", "onnxruntime")
    checkpoint = train(data, tmp_path / "c", **SMALL | MODELS[model] | {"learning_rate": 0.03})
    export(checkpoint, tmp_path / "r", "--formats", "triton,savedmodel,onnx")
    inputs = inputs_of(drawn_rows(dlrm.load(checkpoint, mmap=True).features, seed=7), 300)
    inputs["id_weights"][:20] = 0
    inputs["id_weights"][20:40] = 1
    inputs["id_weights"][40:50] = 1e-40  # beyond the precision of float32
    expected = slow_scores(checkpoint, inputs | {"id_weights": np.where(np.arange(300)[:, np.newaxis] // 10 == 4, 0, inputs["id_weights"])})
    for form, found in scores(tmp_path / "r", inputs).items():
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0, err_msg=form)
    doubled = inputs | {"id_weights": np.roll(inputs["id_weights"], 1, axis=0)}
    assert np.abs(slow_scores(checkpoint, doubled) - expected).max() > 0.02
    ids = np.concatenate([inputs["categorical"][:, 1:5], inputs["categorical"][:, 9:]], axis=1)  # those that have weights
    anything = inputs | {"id_weights": np.where(ids == -1, np.float32(np.nan), inputs["id_weights"])}
    for form, found in scores(tmp_path / "r", anything).items():
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0, err_msg=form)


@pytest.mark.parametrize("precision", ["float16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "int8"))])
def test_lower_precision_changes_scores_little(plain, precision, tmp_path):
    packages("onnx", "onnxruntime")
    export(plain, tmp_path / "r", "--formats", "triton,savedmodel,onnx", "--precision", precision)
    loaded = dlrm.load(plain, mmap=True)
    rows = drawn_rows(loaded.features, seed=7)
    expected = loaded.score(by_feature(rows, loaded.features))
    found = scores(tmp_path / "r", inputs_of(rows))
    for form, some in found.items():
        assert 0 < np.abs(some - expected).max() < 2e-2, form
    if precision != "bfloat16":  # the matrix products are float32 in each of them, and the tables the same
        np.testing.assert_allclose(found["savedmodel"], found["triton"], atol=1e-6, rtol=0)
        np.testing.assert_allclose(found["onnx"], found["triton"], atol=1e-6, rtol=0)


def test_a_version_says_what_it_takes(plain, data, tmp_path):
    export(plain, tmp_path / "r", "--dataset_path", data)
    config, card = (tmp_path / f"r/dlrm/{name}" for name in ("config.pbtxt", "MODEL.md"))
    assert '{ name: "id_weights" data_type: TYPE_FP32 dims: [ 10 ] }' in config.read_text() and '"200,90*4,90,60*3,30*5,40"' in config.read_text()
    assert "liked (4), item, seen (3), topics (5), place (1)." in card.read_text() and "| id_weights | FP32 | [B, 10] |" in card.read_text()
    assert "`id_weights`, weights of the ids in the same order (of an id -1 any number): liked (4), topics (5), place (1)." in card.read_text()


BAD = [
    ((5, 1), np.nan, r"feature liked: weight nan of sample 5 is not a finite number$"),
    ((0, 9), -np.inf, r"feature place: weight -inf of sample 0 is not a finite number$"),
    ((3, 8), -0.5, r"feature topics: weight -0.5 of sample 3 is not a finite number of at least 0, as a weighted mean needs$"),
]


def with_ids(inputs):
    """Return the inputs with an id in every place of the features whose ids have weights, so that each weight counts."""
    return inputs | {"categorical": np.maximum(inputs["categorical"], 0)}


@pytest.mark.parametrize(("place", "value", "message"), BAD)
def test_each_format_refuses_a_weight_that_cannot_be_as_it_refuses_numericals(plain, tmp_path, place, value, message):
    packages("onnx", "onnxruntime")
    export(plain, tmp_path / "r", "--formats", "triton,savedmodel,onnx")
    inputs = with_ids(inputs_of(drawn_rows(dlrm.load(plain, mmap=True).features), 10))
    inputs["id_weights"][place] = value
    with pytest.raises(ValueError, match=message):
        scorer = dlrm.load(tmp_path / "r/dlrm/1/checkpoint", mmap=True, cpu=True).over_arrays()
        scorer.checked(*inputs.values())
    with pytest.raises(Exception, match=rf"(?s)feature {message.split()[1][:-1]}: weight.*is not a finite number"):
        LoadedModel(tmp_path / "r/dlrm_savedmodel/1/model.savedmodel").score(inputs)
    found = OnnxModel(tmp_path / "r/dlrm_onnx/1/model.onnx").score(inputs)
    assert np.isnan(found[place[0]]) and np.isfinite(np.delete(found, place[0])).all()


def test_scorer_of_arrays_says_which_weights_it_expects(plain):
    scorer = dlrm.load(plain, mmap=True, cpu=True).over_arrays()
    assert (scorer.num_ids, scorer.num_weights) == (15, 10)
    inputs = inputs_of(drawn_rows(dlrm.load(plain, mmap=True).features), 4)
    with pytest.raises(ValueError, match=r"^id_weights: is missing, expected \[4, 10\]: the weights of the ids$"):
        scorer.checked(inputs["numerical"], inputs["categorical"])
    with pytest.raises(ValueError, match=r"^id_weights: has shape \[4, 9\], expected \[4, 10\]$"):
        scorer.checked(inputs["numerical"], inputs["categorical"], inputs["id_weights"][:, :9])


def test_an_invalid_request_fails_alone(plain, tmp_path):
    export(plain, tmp_path / "r")
    config = {"input": [{"name": name, "data_type": "TYPE_FP32"} for name in ("numerical", "categorical", "id_weights")]}
    config["parameters"] = {"INPUTS": {"string_value": "ids"}}
    backend = Backend(stand_in, tmp_path / "r/dlrm/1", config, {"model_instance_kind": "CPU"}, proving=True)
    inputs = with_ids(inputs_of(drawn_rows(backend_features(plain)), 6))
    bad = inputs["id_weights"].copy()
    bad[1, 4] = -3
    parts = [inputs, inputs | {"id_weights": bad}, {name: values for name, values in inputs.items() if name != "id_weights"}, inputs]
    answers = backend.execute([stand_in.InferenceRequest("", [], [stand_in.Tensor(*one) for one in part.items()]) for part in parts])
    assert [answer.has_error() for answer in answers] == [False, True, True, False]
    assert (
        answers[1].error().message() == ("feature topics: weight -3 of sample 1 is not a finite number of at least 0, as a weighted mean needs")
        and answers[2].error().message() == "input id_weights: is missing"
    )
    np.testing.assert_array_equal(*(answers[place].output_tensors()[0].as_numpy() for place in (0, 3)))


def backend_features(checkpoint):
    return dlrm.load(checkpoint, mmap=True, cpu=True).features


def test_requests_of_a_split_hold_the_weights(data, tmp_path):
    requests = Requests(ClientConfig(dataset_path=str(data), batch_size=64, max_requests=1))
    path = dump(requests, tmp_path)
    entries = json.loads(path.read_text())["data"]
    assert len(entries) == 64 and set(entries[0]) == {"numerical", "categorical", "id_weights"}


KINDS = [Kind(IDS, WEIGHTED, "dlrm"), Kind(IDS, WEIGHTED, "wide_and_deep")]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return Served(tmp_path_factory.mktemp("served"), KINDS)


@pytest.fixture(scope="module")
def server(served):
    with started(served.repository) as server:
        yield server
        assert tracebacks(server) == []


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_server_scores_equal_the_expected_scores(served, server, kind, scheme, batch):
    check_case(server, served, kind, scheme, batch)


def test_server_scores_a_split_with_the_checkpoints_auc(served, server, tmp_path):
    data, name = served.data[WEIGHTED], KINDS[0].name
    config = ClientConfig(url=f"grpc://{server.grpc}", model_name=name, dataset_path=str(data), batch_size=150)
    requests = Requests(config, Connection(config.url, name))
    result = scored(config, requests)
    expected = slow_scores(served.checkpoint(KINDS[0]), {name: np.concatenate(parts) for name, parts in columns(requests).items()})
    np.testing.assert_allclose(result.scores, expected, atol=1e-6, rtol=0)
    positive = result.labels.astype(bool)
    assert exact_auc(result.scores, positive) == pytest.approx(exact_auc(expected, positive), abs=1e-5)


def columns(requests):
    each = [requests.inputs(number) for number in range(requests.count)]
    return {name: [one[name] for one in each] for name in each[0]}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda inputs: {name: values for name, values in inputs.items() if name != "id_weights"}, "expected 3 inputs but got 2|id_weights"),
        (lambda inputs: inputs | {"id_weights": inputs["id_weights"][:, :9]}, r"\[-1,10\]|shape"),
        (lambda inputs: inputs | {"id_weights": inputs["id_weights"].astype(np.float64)}, "FP64|FP32"),
        (lambda inputs: inputs | {"id_weights": inputs["id_weights"][:3]}, "batch|shape|size"),
        (
            lambda inputs: with_ids(inputs) | {"id_weights": np.full((4, 10), np.nan, np.float32)},
            "feature liked: weight nan of sample 0 is not a finite",
        ),
        (lambda inputs: with_ids(inputs) | {"id_weights": np.full((4, 10), -1, np.float32)}, "feature topics: weight -1 of sample 0 is not a finite"),
    ],
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_server_refuses_a_request_without_good_weights(served, server, scheme, spoil, message):
    kind = KINDS[0]
    connection = Connection(f"{scheme}://{getattr(server, scheme)}", kind.name)
    good = served.rows(kind).part(0, 4)
    bad = spoil(good)
    connection.inputs, known = [one for one in connection.inputs if one.name in bad], connection.inputs
    with pytest.raises(RequestError, match=message) as caught:
        connection.infer(bad)
    assert "Traceback" not in str(caught.value)
    connection.inputs = known
    np.testing.assert_allclose(connection.infer(good), served.rows(kind).checkpoint[:4], atol=1e-6, rtol=0)
    connection.close()
