"""Tests of the watchdog with stubs of the server and of the backend's processes: its requests, and its reactions to the answers."""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from real_server import eventually

from serving import watchdog as module
from serving.watchdog import Watchdog

INDEX, STATS, CONFIG, INFER = "repository/index", "models/stats", "models/m/versions/1/config", "models/m/versions/1/infer"
LOAD, UNLOAD = "repository/models/m/load", "repository/models/m/unload"
UNHEALTHY = {"error": "Stub process 'm_0_0' is not healthy."}


class Triton(ThreadingHTTPServer):
    """A stub of the server with one model, m. `asked` records the requests; tests may change the other attributes at any time.

    Attributes:
        state: state of version 1.
        failures: number of failed requests of version 1.
        instances: number of instances of the model.
        answer: status code and content of the answer to an inference request; None for no answer.
        refuses: number of loads that fail from now on.
        halves: True to cut the first answer to each kind of request in half.
    """

    daemon_threads = True

    def __init__(self, halves=False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.state, self.failures, self.instances, self.answer, self.refuses, self.halves = "READY", 0, 1, (200, {}), 0, halves
        self.asked, self.stop = [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def says(self, question):
        if question == INDEX:
            return 200, [{"name": "m", "version": "1", "state": self.state}]
        if question == STATS:
            return 200, {"model_stats": [{"name": "m", "version": "1", "inference_stats": {"fail": {"count": self.failures}}}]}
        if question == CONFIG:
            inputs = [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}, {"name": "text", "data_type": "TYPE_STRING", "dims": [1]}]
            return 200, {"instance_group": [{"count": self.instances}], "parameters": {"PROJECT_PATH": {}}, "input": inputs}
        if question == INFER:
            if self.answer is None:
                self.stop.wait(60)
            return self.answer or (200, {})
        if question == UNLOAD:
            self.state = "UNAVAILABLE"
        elif question == LOAD:
            if self.refuses:
                self.refuses -= 1
                return 400, {"error": "load failed for model 'm': no luck"}
            self.state, self.failures, self.answer = "READY", 0, (200, {})
        return 200, {}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply()

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("infer"):
            self.server.request = json.loads(content)
        self.reply()

    def reply(self):
        question = self.path.removeprefix("/v2/")
        half = self.server.halves and question not in self.server.asked
        self.server.asked.append(question)
        code, content = self.server.says(question)
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) + half))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def watched(tmp_path):
    """Yield a function that starts a stub server, processes of its model and the watchdog.

    It returns the server, the processes, the list of the watchdog's messages and the model's file.
    """
    file = tmp_path / "m/1/model.py"
    file.parent.mkdir(parents=True)
    file.write_text("import time\ntime.sleep(300)\n")
    opened = []

    def make(processes, pid=None, **facts):
        server = Triton(facts.pop("halves", False))
        for name, value in facts.items():
            setattr(server, name, value)
        words = ["triton_python_backend_stub", file, "dlrm_1_2_x", *"23456", "m_0_0", "DEFAULT"]
        made = [subprocess.Popen(list(map(str, words)), executable=sys.executable) for _ in range(processes)]
        said = []
        watchdog = Watchdog(pid or os.getpid(), f"127.0.0.1:{server.server_port}", tmp_path, said.append)
        opened.append((server, made, watchdog))
        return server, made, said, file

    yield make
    for server, made, watchdog in opened:
        watchdog.close()
        server.stop.set()
        server.shutdown()
        server.server_close()
        for process in made:
            process.kill()
            process.wait()


def looks(server, count):
    """Wait until the watchdog has looked `count` more times."""
    before = server.asked.count(INDEX)
    eventually(lambda: server.asked.count(INDEX) >= before + count)


def of(server):
    """Return the loads and unloads that were requested of the server."""
    return [question for question in server.asked if question in (LOAD, UNLOAD)]


def test_missing_process_that_was_never_seen_is_noticed(watched):
    """The watchdog reloads a version that the server calls ready, but whose process was killed before the watchdog saw it."""
    server, _, said, _ = watched(0, answer=(500, UNHEALTHY))
    eventually(lambda: any("serves again" in text for text in said))
    assert of(server)[:2] == [UNLOAD, LOAD]


def test_repeatedly_killed_process_is_reloaded_each_time(watched):
    server, (process,), said, _ = watched(1)
    looks(server, 2)
    process.kill()
    process.wait()
    for count in (1, 2, 3):  # the stub server starts no process for a load, so each look finds none
        eventually(lambda: sum("serves again" in text for text in said) >= count)  # noqa: B023


def test_unresponsive_process_is_killed_before_the_reload(watched):
    server, (process,), said, _ = watched(1)
    looks(server, 2)
    server.answer, server.failures = (500, UNHEALTHY), 1
    eventually(lambda: any("serves again" in text for text in said))
    assert process.wait(30) == -9 and of(server)[:2] == [UNLOAD, LOAD]
    assert server.asked.count(INFER) >= 2  # more than two on a busy machine, where a request may time out


@pytest.mark.parametrize(
    "answer",
    [None, (400, {"error": "feature x: value nan of sample 0 is not a finite float16"}), (200, {})],
    ids=["no answer", "an error", "a score"],
)
def test_failed_or_slow_requests_cause_no_reload(watched, answer, monkeypatch):
    monkeypatch.setattr("serving.questions.PATIENCE_S", 0.5)
    server, (process,), said, _ = watched(1)
    looks(server, 2)
    server.answer = answer
    for _ in range(3):
        asked = server.asked.count(INFER)
        server.failures += 1
        eventually(lambda: server.asked.count(INFER) > asked)  # noqa: B023
    looks(server, 4)
    assert of(server) == said == [] and process.poll() is None
    assert server.request["inputs"] == [
        {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0, 0, 0]},
        {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [""]},
    ]


def test_no_request_is_sent_while_nothing_fails(watched):
    server, _, said, _ = watched(1)
    looks(server, 8)
    assert server.asked.count(INFER) == 0 and said == []


def test_missing_instance_is_loaded_without_unloading_the_other(watched):
    server, (one, _), said, file = watched(2, instances=2)
    looks(server, 2)
    os.utime(file, (1, 1))
    one.kill()
    one.wait()
    eventually(lambda: any("serves again" in text for text in said))
    assert of(server)[0] == LOAD and file.stat().st_mtime > time.time() - 3600


def test_refused_load_is_reported_and_repeated(watched):
    server, _, said, _ = watched(0, answer=(500, UNHEALTHY), refuses=2)
    eventually(lambda: any("serves again" in text for text in said))
    assert of(server)[:4] == [UNLOAD, LOAD, LOAD, LOAD]
    assert sum("m: cannot be loaded: load failed for model 'm': no luck" in text for text in said) == 2


def test_model_unloaded_by_an_operator_stays_unloaded(watched):
    server, _, said, _ = watched(1)
    looks(server, 2)
    server.state = "UNAVAILABLE"
    looks(server, 6)
    assert of(server) == said == []


@pytest.mark.parametrize(("environment", "patience"), [("/cache/stub", "_UNSEEN_S"), ("/cache/stub.tar.gz", "_UNPACKING_S"), (None, "_UNPACKING_S")])
def test_server_waiting_for_an_ended_process_is_killed(watched, monkeypatch, tmp_path, environment, patience):
    """The watchdog waits longer for a process whose environment is an archive, which is unpacked first, than for one with a folder."""
    for name in ("_UNSEEN_S", "_UNPACKING_S"):
        monkeypatch.setattr(module, name, 0.5 if name == patience else 600.0)
    if environment:
        (tmp_path / "m").mkdir(exist_ok=True)
        parameter = f'parameters: {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{environment}" }} }}\n'
        (tmp_path / "m/config.pbtxt").write_text(f'name: "m"\n{parameter}')
    stand_in = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        _, _, said, _ = watched(0, pid=stand_in.pid, state="LOADING")
        assert stand_in.wait(60) == -9
        assert said == ["m: the server waits for a backend process of version 1 that has ended; the server is killed"]
    finally:
        stand_in.kill()
        stand_in.wait()


def test_incomplete_answer_does_not_stop_the_watchdog(watched):
    server, _, said, _ = watched(0, answer=(500, UNHEALTHY), halves=True)
    eventually(lambda: any("serves again" in text for text in said))
    assert {question for question in (INDEX, STATS, CONFIG) if server.asked.count(question) > 1} == {INDEX, STATS, CONFIG}
