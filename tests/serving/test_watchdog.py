"""The watchdog, with stand-ins for the server and for backends' processes: what it asks, and what it makes of the answers."""

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
    """Has one model, m; `asked` grows, and what it says may be changed meanwhile.

    Attributes:
        state: of version 1.
        failures: of it.
        instances: of it.
        answer: code and content of its answer to a request; None for none.
        refuses: how many loads fail from now on.
        halves: of the first answer to each question it gives a half.
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
    """Makes a server, processes of its model, and the watchdog: (server, processes, what was said, file of the model)."""
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
    """Wait for so many more."""
    before = server.asked.count(INDEX)
    eventually(lambda: server.asked.count(INDEX) >= before + count)


def of(server):
    """What it was asked to do."""
    return [question for question in server.asked if question in (LOAD, UNLOAD)]


def test_a_process_that_was_never_seen_is_missed(watched):
    """It was killed between two looks; the server calls its version ready."""
    server, _, said, _ = watched(0, answer=(500, UNHEALTHY))
    eventually(lambda: any("serves again" in text for text in said))
    assert of(server)[:2] == [UNLOAD, LOAD]


def test_a_process_that_is_killed_again_and_again(watched):
    server, (process,), said, _ = watched(1)
    looks(server, 2)
    process.kill()
    process.wait()
    for count in (1, 2, 3):  # what is loaded is gone before the next look: no process takes its place
        eventually(lambda: sum("serves again" in text for text in said) >= count)  # noqa: B023


def test_one_that_is_there_and_does_not_serve_is_killed_before_it_is_loaded(watched):
    server, (process,), said, _ = watched(1)
    looks(server, 2)
    server.answer, server.failures = (500, UNHEALTHY), 1
    eventually(lambda: any("serves again" in text for text in said))
    assert process.wait(30) == -9 and of(server)[:2] == [UNLOAD, LOAD]
    assert server.asked.count(INFER) >= 2  # a busy machine may let one wait


@pytest.mark.parametrize(
    "answer",
    [None, (400, {"error": "feature x: value nan of sample 0 is not a finite float16"}), (200, {})],
    ids=["no answer", "an error", "a score"],
)
def test_requests_that_fail_or_wait_are_no_death(watched, answer, monkeypatch):
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


def test_nobody_is_asked_while_nothing_fails(watched):
    server, _, said, _ = watched(1)
    looks(server, 8)
    assert server.asked.count(INFER) == 0 and said == []


def test_an_instance_that_is_missing_is_loaded_beside_the_other(watched):
    server, (one, _), said, file = watched(2, instances=2)
    looks(server, 2)
    os.utime(file, (1, 1))
    one.kill()
    one.wait()
    eventually(lambda: any("serves again" in text for text in said))
    assert of(server)[0] == LOAD and file.stat().st_mtime > time.time() - 3600


def test_a_load_that_is_refused_is_tried_again_and_said(watched):
    server, _, said, _ = watched(0, answer=(500, UNHEALTHY), refuses=2)
    eventually(lambda: any("serves again" in text for text in said))
    assert of(server)[:4] == [UNLOAD, LOAD, LOAD, LOAD]
    assert sum("m: cannot be loaded: load failed for model 'm': no luck" in text for text in said) == 2


def test_what_an_operator_unloads_stays_so(watched):
    server, _, said, _ = watched(1)
    looks(server, 2)
    server.state = "UNAVAILABLE"
    looks(server, 6)
    assert of(server) == said == []


@pytest.mark.parametrize(("environment", "patience"), [("/cache/stub", "_UNSEEN_S"), ("/cache/stub.tar.gz", "_UNPACKING_S"), (None, "_UNPACKING_S")])
def test_a_server_that_waits_for_a_process_that_is_no_more_is_ended(watched, monkeypatch, tmp_path, environment, patience):
    """Of an environment that is a folder its process is soon to be seen; an archive is unpacked before."""
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
        assert said == ["m: the server waits for a backend process of version 1 that has ended; it is killed"]
    finally:
        stand_in.kill()
        stand_in.wait()


def test_half_an_answer_does_not_end_it(watched):
    server, _, said, _ = watched(0, answer=(500, UNHEALTHY), halves=True)
    eventually(lambda: any("serves again" in text for text in said))
    assert {question for question in (INDEX, STATS, CONFIG) if server.asked.count(question) > 1} == {INDEX, STATS, CONFIG}
