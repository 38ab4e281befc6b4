"""Tests of `scripts/serve`: it reports when it is ready and which model cannot be loaded, and ends cleanly on a signal; and of `PerfAnalyzer`."""

import re
import shutil
import signal
import stat
import sys

import numpy as np
import psutil
import pytest
from children import ROOT, child
from real_server import PORTS, eventually, needed, running
from served_models import PLAIN, export, train, write

from serving.perf_analyzer import PerfAnalyzer
from serving.server import Server, ServerConfig
from utils.errors import UserError


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    export(train(write(folder / "data", PLAIN), folder / "c"), folder / "r", "--formats", "triton,savedmodel")
    return folder / "r"


def test_server_runs_until_a_signal_and_leaves_nothing(repository, tmp_path):
    needed()
    words = [sys.executable, "-m", "serving.server", repository, "--http_port", "0", "--grpc_port", "0", "--metrics_port", "0"]
    output = tmp_path / "out"
    with output.open("w") as file, child([*words, "--server_log", tmp_path / "log"], cwd=ROOT) as process:
        lines = iter(process.stdout.readline, "")
        first = next(lines)
        assert re.match("dlrm_savedmodel: skipped: this server has only the Python backend", first)
        assert re.match(r"ready after [\d.]+ s: http://127\.0\.0\.1:\d+, grpc://127\.0\.0\.1:\d+, metrics", next(lines))
        file.write(first)
        below = psutil.Process(process.pid).children(recursive=True)
        assert any("tritonserver" in one.name() for one in below)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and "stopping" in next(lines)
        eventually(lambda: not any(map(running, below)))


def test_a_model_that_cannot_be_loaded_is_one_line(repository, tmp_path):
    broken = shutil.copytree(repository / "dlrm", tmp_path / "r/dlrm").parent
    (broken / "dlrm/1/checkpoint/manifest.json").write_text("{}")
    needed()
    with Server(broken, PORTS) as server, pytest.raises(UserError, match=r"manifest\.json: cannot be read .*; the checkpoint is damaged") as caught:
        server.wait_until_ready()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "no such folder; expected a model repository"),
        (lambda folder: folder.mkdir(), "holds no model of the Python backend"),
        (lambda folder: ((folder / "m").mkdir(parents=True), (folder / "m/config.pbtxt").write_text("")), "m: has no version"),
    ],
    ids=["missing", "empty", "no version"],
)
def test_a_repository_without_a_model_is_refused(tmp_path, make, message):
    make(tmp_path / "r")
    with pytest.raises(UserError, match=message):
        Server(tmp_path / "r")


def test_path_with_a_space_is_refused_before_the_server_starts(tmp_path):
    folder = tmp_path / "two words"
    folder.mkdir()
    with pytest.raises(UserError, match=r"two words': Triton's Python backend takes no path with a space; move the repository$"):
        Server(folder)


def test_a_port_that_is_taken_is_named(repository):
    import socket

    needed()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--grpc_port {port}: Address already in use on 127.0.0.1"):
            Server(repository, ServerConfig(http_port=0, grpc_port=port, metrics_port=0))


ANALYZER = """#!/bin/sh
while [ $# -gt 0 ]; do case $1 in -f) table=$2;; -b) batch=$2;; --input-data) cp $2 {folder}/data.json;; esac; shift; done
echo "Concurrency,Inferences/Second,p50 latency,p90 latency,p95 latency,p99 latency" > $table
echo "4,$((batch * 100)),2000,3000,4000,9000" >> $table
"""


def test_perf_analyzer_figures_are_read(tmp_path):
    program = tmp_path / "perf_analyzer"
    program.write_text(ANALYZER.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    measured = PerfAnalyzer(str(program), "grpc://127.0.0.1:1", "m").measured({"categorical": np.arange(6).reshape(3, 2)}, 4, 10.0)
    assert len(measured.latencies_s) == 1000 and measured.seconds == pytest.approx(10.0)  # 100 requests/s
    assert [float(np.percentile(measured.latencies_s, q)) for q in (50, 95, 99)] == pytest.approx([0.002, 0.004, 0.009], rel=0.01)
    assert (tmp_path / "data.json").read_text().count("b64") == 3
    with pytest.raises(UserError, match="--perf_analyzer nothing: no such program"):
        PerfAnalyzer("nothing", "grpc://127.0.0.1:1", "m")
