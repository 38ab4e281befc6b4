"""Tests of raw rows on the real server: files sent by the client, and metrics of unknown values."""

import sys
import urllib.request

import numpy as np
import polars
import pytest
from real_server import eventually, started, tracebacks
from served_models import PLAIN, TABLE, export, table_data, train, write

import dlrm
import serving.client
from serving.connection import Connection, RequestError
from utils.commands import run_command
from utils.metrics.binary import exact_auc


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Train and export a model of ids and two of raw values; return the folder of data, checkpoints and the repository `r`."""
    folder = tmp_path_factory.mktemp("raw_rows")
    for name in ("ids", "raw"):
        (folder / name).mkdir()
    train(write(folder / "ids/data", PLAIN, rows=(300, 100)), folder / "ids/c")
    train(table_data(folder / "raw", TABLE), folder / "raw/c")
    export(folder / "ids/c", folder / "r", "--model_name", "ids")
    for name in ("raw", "counted"):
        export(folder / "raw/c", folder / "r", "--model_name", name, "--inputs", "raw")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with started(folder / "r") as server:
        yield server
        assert tracebacks(server) == []


def close_to(scores):
    return pytest.approx(scores, abs=1e-6)


def values_of(server, name="dlrm_raw_values_total"):
    """Return the values of a counter of the model `counted`, by feature."""
    text = urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60).read().decode()
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{") and 'model="counted"' in line and 'version="1"' in line]
    return {line.split('feature="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_unknown_values_are_counted_in_a_metric(server):
    counters = ("dlrm_raw_values_total", "dlrm_unknown_raw_values_total")
    assert [values_of(server, name) for name in counters] == [{"user": 0, "item": 0}] * 2
    connection = Connection(f"grpc://{server.grpc}", "counted")
    empty = {"FP32": np.full((50, 1), 1, np.float32), "BYTES": np.full((50, 1), b"", object)}
    inputs = {one.name: empty[one.kind].copy() for one in connection.inputs}
    inputs["user"][:20, 0], inputs["user"][20:, 0], inputs["item"][:10, 0] = b"u3", b"nobody", b"never"
    connection.infer(inputs)
    with pytest.raises(RequestError):  # a refused request is not counted
        connection.infer(inputs | {"price": np.full((50, 1), np.inf, np.float32)})
    connection.close()
    eventually(lambda: [values_of(server, name) for name in counters] == [{"user": 50, "item": 10}, {"user": 30, "item": 10}])


@pytest.fixture
def client(monkeypatch, capsys, server):
    """Return a function that runs the client's command and returns its exit code, output and errors."""

    def run(*words):
        given = ["serving.client", "--url", f"grpc://{server.grpc}", *map(str, words)]
        monkeypatch.setattr(sys, "argv", given)
        code = run_command(serving.client.main, "serving.client")
        return code, *capsys.readouterr()

    return run


def test_client_scores_raw_rows_of_a_file(client, folder, tmp_path):
    frame = polars.read_csv(folder / "raw/test.csv", infer_schema=False)
    names = ["user", "item", "price", "age", "count"]
    expected = dlrm.load(folder / "raw/c", mmap=True).score_raw(frame.select(names))
    typed = frame.with_columns(polars.col("price", "age").cast(polars.Float64), polars.col("count", "label").cast(polars.Int16))
    typed.write_parquet(tmp_path / "rows")  # no suffix: Parquet is recognised by its content
    frame.write_csv(tmp_path / "rows.csv")
    for path in ("rows", "rows.csv"):
        words = ("--data", tmp_path / path, "--label", "label", "--batch_size", 50, "--predictions_path", tmp_path / "scores.parquet")
        code, out, err = client("--model_name", "raw", *words)
        assert (code, err) == (0, "") and "120 samples in 3 requests" in out
        scores = polars.read_parquet(tmp_path / "scores.parquet")
        assert scores["score"].to_numpy() == close_to(expected)
        labels = frame["label"].to_numpy() == "1"
        assert scores["label"].to_list() == labels.astype(int).tolist()
        assert f"{tmp_path / path}: AUC {exact_auc(scores['score'].to_numpy(), labels):.10f}" in out


def test_rows_that_do_not_fit_the_model_are_an_error(client, folder, tmp_path):
    good = "user,item,price,age,count\n"
    files = {
        "number": good + "u1,i1,1,2,3\nu1,i1,dear,2,3\n",
        "empty": good,
        "column": "user,item\nu1,i1\n",
        "label": "user,item,price,age,count,y\nu1,i1,1,2,3,perhaps\n",
        "binary": b"PAR1 is no Parquet",
        "quote": good + 'u1,"i\n1",1,2,3\n"a "b" c",i1,1,2,3\n',
        "short": good + "u1,i1,1,2,3\nu1,i1,1,2\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for words, message in [
        (
            ("--model_name", "raw", "--dataset_path", folder / "raw/data"),
            "holds ids: model raw takes raw values; --data FILE (CSV or Parquet)",
        ),
        (("--model_name", "raw"), "--data is missing: model raw takes raw values"),
        (("--model_name", "ids", "--data", tmp_path / "number"), "model ids takes ids; give the folder of a tf_raw dataset by --dataset_path"),
        (("--model_name", "ids", "--dataset_path", folder / "ids/data", "--label", "y"), "--label has no effect without --data"),
        (("--model_name", "raw", "--data", tmp_path / "number"), "number, row 2, column price: 'dear', expected a number, or nothing"),
        (("--model_name", "raw", "--data", tmp_path / "empty"), "empty: holds no rows"),
        (("--model_name", "raw", "--data", tmp_path / "column"), "column: has no column price; the model takes price, age, count, user, item"),
        (("--model_name", "raw", "--data", tmp_path / "label", "--label", "y"), "label, row 1, column y: 'perhaps', expected 0 or 1"),
        (("--model_name", "raw", "--data", tmp_path / "binary"), "binary: cannot be read as CSV with a header, or Parquet"),
        (("--model_name", "raw", "--data", tmp_path / "nothing"), "nothing: no such file"),
        (("--model_name", "raw", "--data", tmp_path / "quote"), "quote, line 4: a quote inside a value that begins with one"),
        (("--model_name", "raw", "--data", tmp_path / "short"), "short, line 3: 4 values, expected 5 separated by commas"),
        (("--model_name", "raw", "--data", tmp_path / "number", "--predictions_path", tmp_path / "no/p"), "there is no folder"),
        (("--data", tmp_path / "number", "--dump_requests", tmp_path / "d"), "--dump_requests writes ids"),
    ]:
        code, out, err = client(*words)
        assert code == 1 and out == "" and len(err.splitlines()) == 1 and message in err, (words, err)
