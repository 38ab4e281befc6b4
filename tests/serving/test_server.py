"""Tests of failures in production on the real server: only the affected request fails, with one line, and the server goes on."""

import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from real_server import eventually, started, stubs, tracebacks
from served_models import PLAIN, TABLE, export, table_data, train, write

import dlrm
from run.raw_rows import drawn_columns
from run.served_rows import by_feature, drawn_rows
from serving.client import ClientConfig, Requests, scored
from serving.connection import Connection, RequestError
from serving.publish import PublishConfig, publish
from utils.errors import UserError
from utils.metrics.binary import exact_auc

MOST = 8192


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Train and export a model of ids and one of raw values; return the folder of data, checkpoints and the repository `r`."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("ids", "raw"):
        (folder / name).mkdir()
    train(write(folder / "ids/data", PLAIN, rows=(1500, 4000)), folder / "ids/c")
    train(table_data(folder / "raw", TABLE), folder / "raw/c")
    export(folder / "ids/c", folder / "r", "--model_name", "ids", "--max_batch_size", MOST, "--max_queue_delay_us", 5000)
    export(folder / "raw/c", folder / "r", "--model_name", "raw", "--inputs", "raw", "--max_batch_size", MOST)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with started(folder / "r") as server:
        yield server
        assert tracebacks(server) == []


@pytest.fixture
def ids(server):
    connection = Connection(f"grpc://{server.grpc}", "ids")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def loaded(folder):
    return dlrm.load(folder / "ids/c", mmap=True)


def rows(model, count=40, seed=3):
    """Return the inputs of a request, and its scores by the checkpoint."""
    drawn = drawn_rows(model.features, seed)
    some = drawn._replace(numerical=drawn.numerical[:count], ids=drawn.ids[:count])
    return {"numerical": some.numerical, "categorical": some.ids}, model.score(by_feature(some, model.features))


def close_to(scores):
    return pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_split_scored_by_the_server_has_the_checkpoints_auc(server, folder, loaded, scheme):
    url = f"{scheme}://{getattr(server, scheme)}"
    config = ClientConfig(url=url, model_name="ids", dataset_path=str(folder / "ids/data"), batch_size=300)
    requests = Requests(config)
    result = scored(config, requests)
    columns = [requests.inputs(number) for number in range(requests.count)]
    assert len(result.scores) == len(result.labels) == 4000
    ids, numerical = (np.concatenate([one[name] for one in columns]) for name in ("categorical", "numerical"))
    names = list(loaded.columns)
    by_name = dict(zip(names, [*numerical.T, *ids.T], strict=True))
    expected = loaded.score(by_name)
    assert result.scores == close_to(expected)
    positive = result.labels.astype(bool)
    assert exact_auc(result.scores, positive) == pytest.approx(exact_auc(expected, positive), abs=1e-6)


def test_raw_values_score_as_with_the_checkpoint(server, folder):
    model = dlrm.load(folder / "raw/c", mmap=True)
    columns = drawn_columns(model.raw_inputs(), seed=9)
    connection = Connection(f"grpc://{server.grpc}", "raw")
    inputs = {one.name: columns[one.name][:, np.newaxis] for one in connection.inputs}
    found = connection.infer(
        {
            name: np.array([str(v).encode() for v in values[:, 0]], object)[:, np.newaxis] if values.dtype == object else values
            for name, values in inputs.items()
        }
    )
    assert found == close_to(model.score_raw(columns))
    inputs["price"][7] = np.inf
    with pytest.raises(RequestError, match=r"feature price.*: value inf of sample 7, expected a finite number"):
        connection.infer(as_bytes(inputs))
    connection.close()


def as_bytes(inputs):
    """Return the inputs with texts encoded as requests hold them."""
    return {name: values.astype("S").astype(object) if values.dtype == object else values for name, values in inputs.items()}


def changed(inputs, name, place, value):
    values = inputs[name].copy()
    values[place] = value
    return inputs | {name: values}


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("categorical", (5, 0), 40, r"feature a: id 40 of sample 5 is not in \[0, 40\)"),
        ("categorical", (0, 2), -1, r"feature c: id -1 of sample 0 is not in \[0, 7\)"),
        ("categorical", (0, 1), 2**40, r"feature b: id 1099511627776 of sample 0 is not in \[0, 300\)"),
        ("numerical", (9, 1), np.nan, r"feature y: value nan of sample 9 is not a finite float16"),
        ("numerical", (1, 2), 1e6, r"feature z: value 1000000.0 of sample 1 is not a finite float16"),
    ],
)
def test_invalid_value_is_named(ids, loaded, name, place, value, message):
    inputs, expected = rows(loaded)
    with pytest.raises(RequestError, match=message):
        ids.infer(changed(inputs, name, place, value))
    assert ids.infer(inputs) == close_to(expected)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda inputs: {"categorical": inputs["categorical"]}, "expected 2 inputs but got 1|numerical"),
        (lambda inputs: inputs | {"categorical": inputs["categorical"][:, :2]}, r"\[-1,3\]|shape"),
        (lambda inputs: inputs | {"numerical": inputs["numerical"].astype(np.float64)}, "FP64|FP32"),
        (lambda inputs: inputs | {"categorical": inputs["categorical"].astype(np.int32)}, "INT32|INT64"),
        (lambda inputs: inputs | {"categorical": inputs["categorical"][:7]}, "batch|shape"),
        (lambda inputs: {name: values[:0] for name, values in inputs.items()}, "byte size mismatch|batch"),
        (lambda inputs: {name: np.repeat(values, MOST // 10, axis=0) for name, values in inputs.items()}, f"<= {MOST}"),
        (lambda inputs: {name: np.repeat(values, 75_000, axis=0) for name, values in inputs.items()}, f"<= {MOST}"),  # 108 MB
    ],
    ids=["missing", "shape", "type of numbers", "type of ids", "lengths", "empty", "above the limit", "100 MB"],
)
def test_malformed_request_is_refused(server, ids, loaded, spoil, message):
    import tritonclient.grpc as grpc

    inputs, expected = rows(loaded)
    kinds, tensors = {"float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64"}, []
    for name, values in spoil(inputs).items():
        tensors.append(grpc.InferInput(name, list(values.shape), kinds[str(values.dtype)]))
        tensors[-1].set_data_from_numpy(values)
    client = grpc.InferenceServerClient(server.grpc)
    with pytest.raises(grpc.InferenceServerException, match=message):
        client.infer("ids", tensors)
    client.close()
    assert ids.infer(inputs) == close_to(expected)


def test_one_bad_request_in_a_batch_fails_alone(ids, loaded):
    inputs, expected = rows(loaded)
    bad = changed(inputs, "categorical", (5, 1), 300)
    answers, done = {}, threading.Semaphore(0)
    before = int(ids.statistics().get("execution_count", 0))
    for number in range(60):

        def finished(scores, error, number=number):
            answers[number] = scores, error
            done.release()

        ids.begin(bad if number % 7 == 3 else inputs, finished)
    assert all(done.acquire(timeout=60) for _ in range(60))
    for number, (scores, error) in answers.items():
        if number % 7 == 3:
            assert "feature b: id 300 of sample 5 is not in [0, 300)" in str(error)
        else:
            assert error is None and scores == close_to(expected)
    assert int(ids.statistics()["execution_count"]) - before < 60  # some requests shared a batch


def test_two_thousand_concurrent_requests_are_answered(ids, loaded):
    inputs, expected = rows(loaded, 3)
    answers, done = [], threading.Semaphore(0)

    def finished(scores, error):
        answers.append(error or np.abs(scores - expected).max())
        done.release()

    for _ in range(2000):
        ids.begin(inputs, finished)
    assert all(done.acquire(timeout=120) for _ in range(2000))
    assert max(answers) < 1e-6


def test_client_that_disconnects_halfway_does_not_disturb_others(server, ids, loaded):
    inputs, expected = rows(loaded)
    host, port = server.http.split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port))) as half:
            half.sendall(b"POST /v2/models/ids/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{")
    child = subprocess.Popen([sys.executable, "-c", _SENDER, server.grpc], stdout=subprocess.PIPE)
    assert child.stdout.read(1) == b"."
    child.kill()
    child.communicate()
    assert ids.infer(inputs) == close_to(expected)


_SENDER = """
import sys, numpy as np, tritonclient.grpc as grpc
client = grpc.InferenceServerClient(sys.argv[1])
tensors = [grpc.InferInput("numerical", [8000, 3], "FP32"), grpc.InferInput("categorical", [8000, 3], "INT64")]
for tensor, dtype in zip(tensors, (np.float32, np.int64)):
    tensor.set_data_from_numpy(np.zeros((8000, 3), dtype))
for number in range(100):
    client.async_infer("ids", tensors, lambda result, error: None)
    if number == 50:
        print(".", end="", flush=True)
"""


def test_killed_backend_is_restarted(server, ids, loaded):
    inputs, expected = rows(loaded)
    for process in stubs(server):
        process.send_signal(signal.SIGKILL)

    eventually(lambda: answers(ids, inputs))
    assert ids.infer(inputs) == close_to(expected)


def test_metrics_count_the_requests(server, ids, loaded):
    def counted():
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith('nv_inference_request_success{model="ids"'))

    before, (inputs, _) = counted(), rows(loaded)
    for _ in range(30):
        ids.infer(inputs)
    eventually(lambda: counted() == before + 30)


def test_new_versions_are_loaded_during_requests(server, ids, loaded, folder):
    other = train(folder / "ids/data", folder / "ids/c2", learning_rate=0.2)
    inputs, old = rows(loaded)
    new = dlrm.load(other, mmap=True).score(by_feature_of(inputs, loaded))
    assert np.abs(new - old).max() > 1e-3
    stop, seen, faults = threading.Event(), [], []

    def flow():
        connection = Connection(f"grpc://{server.grpc}", "ids")
        while not stop.is_set():
            try:
                scores = connection.infer(inputs)
                which = [scores == close_to(some) for some in (old, new)]
                seen.append(which.index(True) if any(which) else None)
            except RequestError as error:
                faults.append(str(error))

    config = {"repository": str(folder / "r"), "model_name": "ids", "url": f"grpc://{server.grpc}", "keep": 2}
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(flow) for _ in range(2)]
        try:
            with pytest.raises(UserError, match="no such folder"):
                publish(PublishConfig(checkpoint=str(folder / "nothing"), **config))
            assert publish(PublishConfig(checkpoint=str(other), **config)) == 2
            eventually(lambda: seen and seen[-1] == 1)
        finally:
            stop.set()
        for one in running:
            one.result()
    assert faults == [] and None not in seen and {0, 1} == set(seen)
    assert publish(PublishConfig(checkpoint=str(folder / "ids/c"), **config)) == 3
    assert sorted(path.name for path in (folder / "r/ids").iterdir() if path.is_dir()) == ["2", "3"]
    assert ids.infer(inputs) == close_to(old)


def by_feature_of(inputs, model):
    drawn = drawn_rows(model.features)
    return by_feature(drawn._replace(numerical=inputs["numerical"], ids=inputs["categorical"]), model.features)


def test_damaged_version_never_replaces_a_good_one(server, ids, loaded, folder):
    inputs, expected = rows(loaded)
    good = max(path for path in (folder / "r/ids").iterdir() if path.name.isdigit())
    broken = good.with_name("9")
    subprocess.run(["cp", "-r", good, broken], check=True)
    chunk = next((broken / "checkpoint/tables/b").rglob("c/0/0"))
    chunk.write_bytes(chunk.read_bytes()[:100])
    ids.load()  # the broken version is not announced
    assert ids.infer(inputs) == close_to(expected)
    with pytest.raises(RequestError, match=r"c/0/0: 100 bytes, the manifest says"):
        publish(PublishConfig(repository=str(folder / "r"), model_name="ids", model_version=9, url=f"grpc://{server.grpc}"))
    assert ids.infer(inputs) == close_to(expected)
    subprocess.run(["rm", "-r", broken], check=True)
    ids.load()
    assert ids.infer(inputs) == close_to(expected)


def test_file_truncated_under_a_model_ends_only_that_model(server, ids, loaded, folder):
    """Only the model's process dies (SIGBUS). It cannot be restarted until the file is whole again, and then it is."""
    inputs, expected = rows(loaded)
    inputs = changed(inputs, "categorical", (0, 1), 299)  # the row lies in the last page of the file
    newest = max(path for path in (folder / "r/ids").iterdir() if path.name.isdigit())
    chunk = next((newest / "checkpoint/tables/b").rglob("c/0/0"))
    content = chunk.read_bytes()
    with chunk.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(RequestError):
        ids.infer(inputs)
    raw = Connection(f"grpc://{server.grpc}", "raw")
    columns = drawn_columns(dlrm.load(folder / "raw/c", mmap=True).raw_inputs())
    assert len(raw.infer(as_bytes({one.name: columns[one.name][:, np.newaxis] for one in raw.inputs}))) == 2000
    raw.close()
    with chunk.open("r+b") as file:
        file.write(content)
    eventually(lambda: answers(ids, inputs))
    assert ids.infer(inputs)[1:] == close_to(expected[1:])


def answers(connection, inputs):
    try:
        return connection.infer(inputs) is not None
    except RequestError:
        return False
