"""The watchdog on a server of which it hears only a part of an answer; a stand-in for the server and for a backend's process."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from real_server import eventually

from serving.watchdog import Watchdog

READY = json.dumps([{"name": "m", "version": "1", "state": "READY"}]).encode()


@pytest.fixture
def server():
    """Gives half of its first answer to each question, and writes down what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            answer = READY if self.path.endswith("index") else b""
            half = self.path not in server.asked
            server.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer) + half))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Seeing(Watchdog):
    """Counts its looks that found a process."""

    looks = 0

    def _alive(self):
        found = list(super()._alive())
        self.looks += bool(found)
        return found


def test_half_an_answer_does_not_end_it(server, tmp_path):
    file = tmp_path / "m/1/model.py"
    file.parent.mkdir(parents=True)
    file.write_text("import time\ntime.sleep(300)\n")
    words = ["triton_python_backend_stub", file, *"234567", "m_0"]
    stub = subprocess.Popen(list(map(str, words)), executable=sys.executable)
    said = []
    watchdog = Seeing(os.getpid(), f"127.0.0.1:{server.server_port}", said.append)
    try:
        eventually(lambda: watchdog.looks > 1)  # of the first it knows by then
    finally:
        stub.kill()
        stub.wait()
    try:
        eventually(lambda: any("serves again" in text for text in said), 20)
    finally:
        watchdog.close()
    questions = ["/v2/repository/index", "/v2/repository/models/m/load"]
    assert [one for one in questions if server.asked.count(one) > 1] == questions
