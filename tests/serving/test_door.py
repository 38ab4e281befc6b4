"""Malformed requests, and requests that lie about their sizes, at the real server: none ends a process or disturbs another client."""

import http.client
import json
import os
import random
import socket
import threading
import time

import numpy as np
import psutil
import pytest
from real_server import needed, started
from served_models import PLAIN, export, train, write
from tritonclient.grpc import InferenceServerClient, service_pb2

import dlrm
from run.served_rows import drawn_rows
from serving.connection import Connection
from serving.front import door_path

TIMES = int(os.environ.get("DOOR_TIMES", "1"))  # a campaign by hand draws more
INFER = "/v2/models/dlrm/infer"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve a model; yield the server, inputs of a request, and their scores."""
    needed()
    assert door_path().is_file(), "ops/build compiles the door"
    folder = tmp_path_factory.mktemp("door")
    checkpoint = train(write(folder / "data", PLAIN), folder / "c")
    export(checkpoint, folder / "r")
    model = dlrm.load(checkpoint, mmap=True, cpu=True)
    drawn, scorer = drawn_rows(model.features, 3), model.over_arrays()
    inputs = {"numerical": drawn.numerical[:4], "categorical": drawn.ids[:4].astype(np.int64)}
    with started(folder / "r") as server:
        yield server, inputs, scorer.score(*scorer.checked(inputs["numerical"], inputs["categorical"]))


@pytest.fixture(autouse=True)
def others(served):
    """Send honest requests by both protocols meanwhile: each must be answered with its scores, by the same process, within its memory."""
    server, inputs, expected = served
    process, over, wrong, answered = server.process, threading.Event(), [], []

    def asks(url):
        connection = Connection(url, "dlrm")
        while not over.is_set():
            try:
                if not np.array_equal(connection.infer(inputs), expected):
                    wrong.append("another score")
                answered.append(1)
            except Exception as error:  # any error is one too many
                wrong.append(repr(error))
            time.sleep(0.01)
        connection.close()

    threads = [threading.Thread(target=asks, args=(url,)) for url in (f"http://{server.http}", f"grpc://{server.grpc}")]
    for thread in threads:
        thread.start()
    yield
    deadline = time.monotonic() + 30
    while len(answered) < 4 and not wrong and time.monotonic() < deadline:
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong and answered
    assert server.process is process and process.poll() is None
    assert psutil.Process(process.pid).memory_info().rss < 2 << 30


def body(inputs, shape=None, **members):
    """Return an honest request in JSON, or one whose first input has other members."""
    described = [
        {"name": name, "shape": list(values.shape), "datatype": "FP32" if values.dtype == np.float32 else "INT64", "data": values.ravel().tolist()}
        for name, values in inputs.items()
    ]
    described[0] |= {} if shape is None else {"shape": shape}
    return json.dumps({"inputs": [described[0] | members, *described[1:]]}).encode()


def posted(server, content, headers=None, path=INFER):
    connection = http.client.HTTPConnection(server.http, timeout=30)
    try:
        connection.request("POST", path, content, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def sent(server, content, ends=True):
    """Send bytes; return what the server answers until it closes or is silent."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=3) as connection:
        found = b""
        try:
            connection.sendall(content)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                found += part
        except OSError:
            pass
    return found


def head(content, *headers, length=None):
    lines = [f"POST {INFER} HTTP/1.1", "Host: here", *headers, f"Content-Length: {len(content) if length is None else length}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


# Honest requests ---------------------------------------------------------------------------------------------------------


def test_honest_requests_pass(served):
    server, inputs, expected = served
    content = body(inputs)
    shown = json.loads(posted(server, content)[1])["outputs"][0]["data"]
    np.testing.assert_allclose(shown, expected, rtol=1e-6)
    nested = {name: values.tolist() for name, values in inputs.items()}
    assert posted(server, body(inputs, data=nested["numerical"]))[0] == 200  # data as nested lists, as the protocol allows, too
    assert sent(server, head(content) * 3).count(b"HTTP/1.1 200") == 3  # one after another on one connection that is half closed
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:7], content[7:])) + b"0\r\n\r\n"
    start = f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert b"HTTP/1.1 200" in sent(server, start + chunked)
    assert b"100 Continue" in sent(server, head(content, "Expect: 100-continue")[: -len(content)], ends=False)
    for path in ("/v2/health/ready", "/v2/models/dlrm", "/v2/models/dlrm/config", "/v2/models/stats"):
        connection = http.client.HTTPConnection(server.http, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) > (200, b"") or path.endswith("ready")
        connection.close()


# Lies about sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [[9999999999999, 3], [3000000000, 3], [2**62, 3], [2**63, 2], [5, 3], [3, 3], [0, 3], [], [4, 3, 0], [1] * 100, [2**31, 2**31]]
)
def test_a_shape_that_is_not_that_of_the_data_is_refused(served, shape):
    server, inputs, _ = served
    status, said = posted(server, body(inputs, shape))
    assert status == 400 and "error" in json.loads(said)


def test_an_input_without_data_is_refused(served):
    server, inputs, _ = served
    first, *others = json.loads(body(inputs, [9999999, 3]))["inputs"]
    del first["data"]
    data = inputs["categorical"].tobytes()
    del others[0]["data"]
    others[0]["parameters"] = {"binary_data_size": len(data)}
    content = json.dumps({"inputs": [first, *others]}).encode()
    assert b"has no data" in sent(server, head(content + data, f"Inference-Header-Content-Length: {len(content)}"))


@pytest.mark.parametrize("shape", ["[-4,3]", "[4.0,3]", "[4e0,3]", "4", '["4",3]', "[[4],3]", "null", "[4,3", "[18446744073709551620,3]"])
def test_a_shape_that_is_none_is_refused(served, shape):
    server, inputs, _ = served
    content = body(inputs, ["here"]).replace(b'["here"]', shape.encode())
    assert posted(server, content)[0] == 400


def test_a_request_may_say_nothing_twice(served):
    server, inputs, _ = served
    lie = body(inputs).replace(b'"shape": [4, 3]', b'"shape": [4, 3], "shape": [9999999999, 3]', 1)
    hidden = body(inputs).replace(b'"shape": [4, 3]', b'"sh\\u0061pe": [9999999999, 3], "shape": [4, 3]', 1)
    two = body(inputs)[:-1] + b', "inputs": []}'
    for content in (lie, hidden, two):
        assert posted(server, content)[0] == 400
    content = body(inputs)
    for headers in (
        ("Content-Length: 5",),
        ("Transfer-Encoding: chunked",),
        ("Inference-Header-Content-Length: 1", "Inference-Header-Content-Length: 2"),
    ):
        assert sent(server, head(content, *headers)).startswith(b"HTTP/1.1 400")


def test_drawn_lies_about_binary_sizes(served):
    server, _, _ = served
    draw = random.Random(5)
    for _ in range(25 * TIMES):
        numbers = [draw.choice([0, 1, 3, 4, 11, 48, 2**20, 2**31, 2**40, 10**15]) for _ in range(5)]
        described = [
            {"name": "numerical", "shape": [numbers[0], 3], "datatype": "FP32", "parameters": {"binary_data_size": numbers[1]}},
            {
                "name": "categorical",
                "shape": [numbers[2], 3],
                "datatype": draw.choice(["INT64", "BYTES"]),
                "parameters": {"binary_data_size": numbers[3]},
            },
        ]
        described[1]["parameters"] = {"binary_data_size": numbers[3]}
        content = json.dumps({"inputs": described}).encode()
        length = draw.choice([len(content), 0, 5, len(content) + 7, 10**12])
        data = bytes(draw.choice([0, 4, 48, 144, 1000]))
        found = sent(server, head(content + data, f"Inference-Header-Content-Length: {length}"))
        assert b"HTTP/1.1 200" not in found


def test_drawn_lies_by_grpc(served):
    server, inputs, _ = served
    draw = random.Random(6)
    with InferenceServerClient(server.grpc) as client:
        asks = client._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")  # takes bytes
        for _ in range(50 * TIMES):
            request = service_pb2.ModelInferRequest(model_name="dlrm")
            for name, values in inputs.items():
                one = request.inputs.add(name=name, datatype=draw.choice(["FP32", "INT64", "BYTES"]))
                one.shape.extend(draw.choice([[4, 3], [2**62, 3], [3 * 10**9, 3], [-1, 3], [2**31, 2**31], [], [10**13, 1]]))
                content = values.tobytes()
                request.raw_input_contents.append(draw.choice([content, b"", content[:5], b"\xff\xff\xff\x7fa"]))
            sent_bytes = bytearray(request.SerializeToString())
            for _ in range(draw.choice([0, 0, 1, 5])):
                sent_bytes[draw.randrange(len(sent_bytes))] = draw.randrange(256)
            try:
                asks(bytes(sent_bytes), timeout=20)
            except Exception as error:  # grpc.RpcError
                assert error.code().name not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"), error


# Malformed requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 1_000_000,
        b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + b"[" * 5000 + b"1" + b"]" * 5000 + b"}]}",
        b'{"inputs":[' + b",".join([b'{"name":"x","shape":[1],"datatype":"FP32","data":[1]}'] * 1_000_000) + b"]}",
        b"",
        b"\x00" * 1000,
        b'{"inputs":[]}x',
        b'{"inputs":[{"name":"numerical","shape":[1,3],"datatype":"FP33","data":[1,1,1]}]}',
    ],
    ids=["deep", "deep inputs", "deep data", "a million inputs", "empty", "zeros", "more", "type"],
)
def test_malformed_json_is_refused(served, content):
    server, _, _ = served
    status, said = posted(server, content)
    assert status == 400 and "error" in json.loads(said)


def test_drawn_malformed_requests(served):
    """Bytes of a request are changed, removed, doubled or put in; lengths lie in either direction."""
    server, inputs, _ = served
    draw, content = random.Random(7), body(inputs)
    chunked = f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n".encode() % len(content) + content + b"\r\n0\r\n\r\n"
    whole = [head(content), chunked, head(content, "Connection: close"), head(content, length=len(content) - 9), head(content, length=5)]
    for _ in range(60 * TIMES):
        found = bytearray(draw.choice(whole))
        for _ in range(draw.choice([1, 1, 2, 8])):
            place = draw.randrange(len(found)) if draw.random() < 0.5 else draw.randrange(min(130, len(found)))
            what = draw.randrange(4)
            if what == 0:
                found[place] = draw.randrange(256)
            elif what == 1:
                del found[place : place + draw.randint(1, 20)]
            elif what == 2:
                found[place:place] = found[place : place + draw.randint(1, 40)]
            else:
                found[place:place] = draw.choice([b"\r\n", b"\r\n\r\n", b"\x00", b"999999999", b"-1", b"Content-Length: 9\r\n", b"]]]]", b"\xff" * 9])
            found = found or bytearray(b"x")
        sent(server, bytes(found))


def test_floods_and_slow_senders(served):
    server, inputs, _ = served
    content = head(body(inputs))
    assert sent(server, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 9000, ends=False).startswith(b"HTTP/1.1 4")
    assert sent(server, b"A" * 200_000, ends=False).startswith(b"HTTP/1.1 4")
    assert posted(server, b"x", {"Content-Length": str(10**12)})[0] == 413
    began = time.monotonic()
    assert sent(server, b"\r\n" * 200_000 + content).startswith(b"HTTP/1.1 200")
    for target in (f"{INFER}#x", f"/{INFER}", f"{INFER}?a=b", INFER.replace("infer", "inf%65r")):
        lie = head(body(inputs, [9999999999999, 3])).replace(INFER.encode(), target.encode(), 1)
        assert sent(server, lie).startswith(b"HTTP/1.1 400")
    assert sent(server, head(b"") * 5000).count(b"HTTP/1.1 400") == 5000
    assert time.monotonic() - began < 60
    host, port = server.http.split(":")
    open_ones = [socket.create_connection((host, int(port))) for _ in range(300)]
    try:
        for one in open_ones:
            one.sendall(content[: len(content) // 2])  # and nothing more
        assert posted(server, body(inputs))[0] == 200
    finally:
        for one in open_ones:
            one.close()
    assert b"HTTP/1.1 415" in sent(server, head(b"x" * 20, "Content-Encoding: gzip"))
