"""evaluate_accuracy against the real server: NVIDIA's lines and log, every row, the checkpoint's AUC, and the refused inputs."""

import json
import re

import numpy as np
import pytest

import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from deployment import deploy, evaluate_accuracy
from tests.serving.real_server import started, tracebacks
from tests.serving.served_models import LISTS, PLAIN, TABLE, export, table_data, train, write
from utils.errors import UserError
from utils.metrics.binary import Metrics, exact_auc

TEST_ROWS = 4001


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Train a model and deploy it by NVIDIA's command, as `criteo`, beside one of raw values; return the folder."""
    folder = tmp_path_factory.mktemp("accuracy")
    (folder / "table").mkdir()
    train(write(folder / "data", PLAIN, rows=(1500, TEST_ROWS)), folder / "c")
    words = ("--checkpoint-dir", folder / "c", "--model-repository-path", folder / "r", "--model-name", "criteo", "--cpu", "--max-batch-size", 1024)
    deploy.main([*map(str, words), "--dense-format", "tf-savedmodel", "--sparse-format", "tf-savedmodel", "--model-precision", "fp32"])
    export(train(table_data(folder / "table", TABLE), folder / "raw"), folder / "r", "--model_name", "raw", "--inputs", "raw")
    write(folder / "lists", LISTS, ("x", "y"))
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with started(folder / "r") as server:
        yield server
        assert tracebacks(server) == []


def evaluated(server, folder, *flags, scheme="grpc"):
    words = ("--dataset_path", folder / "data", "--model_name", "criteo", "--sparse_input_format", "tf-savedmodel", "--batch_size", 300)
    where = ("--server_url", f"{scheme}://{getattr(server, scheme)}")
    evaluate_accuracy.main([str(word) for word in (*words, *where, *flags)])


def expected(folder, split="test", count=None):
    """Return the AUC and the log loss of the checkpoint, computed from its scores of all rows."""
    stored = TfRawSplit(FeatureSpec.from_yaml(folder / "data/feature_spec.yaml"), split)
    count = count or stored.num_samples
    columns = [*stored.read_numerical(0, count).T, *(stored.read_ids(i, 0, count) for i in range(3))]
    labels = stored.read_labels(0, count).astype(bool)
    stored.close()
    model = dlrm.load(folder / "c", cpu=True)
    scores = model.score(dict(zip(model.columns, columns, strict=True)))
    return exact_auc(scores, labels), float(-np.log(np.where(labels, scores, 1 - scores.astype(np.float64))).mean())


def logged(path):
    lines = [json.loads(line.removeprefix("DLLL ")) for line in path.read_text().splitlines()]
    return next(line["data"] for line in lines if line["step"] == "PARAMETER"), lines[-1]


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_every_row_is_scored_and_the_auc_is_the_checkpoints(server, folder, tmp_path, capsys, scheme):
    evaluated(server, folder, "--log_path", tmp_path / "log.json", "--print_freq", 5, scheme=scheme)
    output = capsys.readouterr().out
    flags = json.loads(re.search(r"Command line flags:\n(\{.*?\n\})", output, re.S)[1])
    assert flags["batch_size"] == 300 and flags["model_name"] == "criteo"
    line = r"validation_step=(\d+), validation_throughput=[\d.]+M, step_time=[\d.]+ ms"
    assert re.findall(line, output) == ["5", "10"] and output.endswith("\nDONE\n")
    parameters, final = logged(tmp_path / "log.json")
    auc, loss = expected(folder)
    assert parameters["print_freq"] == 5 and final["step"] == []
    assert list(final["data"]) == ["mean_inference_throughput", "mean_inference_latency", "auc", "test_loss", "samples"]
    assert final["data"]["auc"] == pytest.approx(auc, abs=1e-6) and final["data"]["test_loss"] == pytest.approx(loss, abs=1e-6)
    assert final["data"]["samples"] == TEST_ROWS and final["data"]["mean_inference_latency"] > 0


def test_training_split_steps_and_thresholds(server, folder, tmp_path):
    evaluated(server, folder, "--log_path", tmp_path / "a", "--test_on_train", "--max_steps", 3)
    assert logged(tmp_path / "a")[1]["data"]["auc"] == pytest.approx(expected(folder, "train", 900)[0], abs=1e-6)
    evaluated(server, folder, "--log_path", tmp_path / "b", "--auc_thresholds", 10)
    rough, exact = logged(tmp_path / "b")[1]["data"]["auc"], expected(folder)[0]
    assert 1e-6 < abs(rough - exact) < 0.05


def test_flags_without_effect_are_named(server, folder, capsys):
    evaluated(server, folder, "--log_path", "", "--fused_embedding", "--verbose", "--max_steps", 1)
    assert re.findall(r"warning: --(\w+) has no effect", capsys.readouterr().err) == ["verbose", "fused_embedding"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model_name", "other"), "model other: .*unknown model"),
        (("--model_name", "raw"), "model raw takes raw values, and this command sends ids; python -m serving.client --data FILE sends raw rows"),
        (("--batch_size", "2000"), "--batch_size 2000: the server takes at most 1024 samples a request"),
        (("--batch_size", "0"), "--batch_size 0: expected at least 1"),
        (("--max_steps", "0"), "--max_steps 0: expected at least 1"),
        (("--print_freq", "0"), "--print_freq 0: expected at least 1"),
        (("--auc_thresholds", "1"), "--auc_thresholds 1: expected at least 2"),
        (("--server_url", "127.0.0.1:1"), "127.0.0.1:1: .*(no server answers|failed to connect)"),
        (("--server_url", "ftp://x"), "--server_url ftp://x: expected grpc://HOST:PORT or http://HOST:PORT"),
        (("--dataset_path", "nothing"), r"nothing/feature_spec\.yaml: no such file"),
        (("--dataset_path", "LISTS"), "lists: has 2 numerical values a sample, model criteo takes 3; give the dataset"),
        (("--dataset_type", "synthetic"), "invalid choice: 'synthetic'"),
        (("--sparse_input_format", "hps"), "--sparse_input_format hps: there is no HPS here; expected tf-savedmodel"),
        (("--log_path", "LOG"), "--log_path .*/data: Is a directory"),
    ],
)
def test_invalid_input_is_one_line(server, folder, flags, message):
    given = [{"LISTS": folder / "lists", "LOG": folder / "data"}.get(flag, flag) for flag in flags]
    with pytest.raises(UserError, match=message) as caught:
        evaluated(server, folder, *([] if "--log_path" in flags else ["--log_path", ""]), *given)
    assert "\n" not in str(caught.value)


def test_certain_scores_have_a_finite_loss():
    """Hand-worked: two certain scores that are right, and one of a half: the loss is log(2) / 3."""
    found = evaluate_accuracy.metrics_of(np.array([0, 1, 0.5], np.float32), np.array([0, 1, 1], np.uint8), None)
    assert isinstance(found, Metrics) and found.auc == 1
    assert found.log_loss == pytest.approx(np.log(2) / 3, abs=1e-7)


def test_the_first_requests_are_not_timed():
    seconds, samples = np.array([1.0] * 10 + [0.1, 0.3]), np.array([100] * 11 + [20])
    found = evaluate_accuracy.Scored(np.empty(0), seconds, samples).figures()
    assert found == {"mean_inference_throughput": pytest.approx(300), "mean_inference_latency": pytest.approx(0.2)}
    few = evaluate_accuracy.Scored(np.empty(0), seconds[:2], samples[:2]).figures()
    assert few == {"mean_inference_throughput": pytest.approx(100), "mean_inference_latency": pytest.approx(1)}
