"""Tests of `scripts/serve` with a fake server: signals, killed parents, and ports taken by others between their choice and the start."""

import signal
import subprocess
import sys
import urllib.request

import psutil
import pytest
from children import ROOT, child, wait_for
from fake_server import FakeServer
from real_server import PORTS, eventually, running

from serving import ports
from serving.server import Server
from utils.errors import UserError

FREE = ("--http_port", "0", "--grpc_port", "0", "--metrics_port", "0")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = FakeServer(tmp_path)
    monkeypatch.setenv("DLRM_CACHE_DIR", fake.environment["DLRM_CACHE_DIR"])
    return fake


def serve(fake, *flags, **options):
    return child([sys.executable, "-m", "serving.server", fake.repository, "--server_log", fake.folder / "log", *FREE, *flags], **options)


def test_ignored_signals_stay_ignored(fake):
    """Under `nohup ./scripts/serve &`, SIGHUP and SIGINT stay ignored: the terminal may close, and a ^C is for the foreground process."""
    with serve(fake, ignored=(signal.SIGHUP, signal.SIGINT)) as process:
        assert process.stdout.readline().startswith("ready")
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        process.send_signal(signal.SIGSTOP)  # both signals are delivered before it is continued
        process.send_signal(signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0 and process.stdout.read() == "stopping\n"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_two_signals_at_once_count_as_one(fake, number):
    with serve(fake) as process:
        assert process.stdout.readline().startswith("ready")
        process.send_signal(signal.SIGSTOP)
        for one in (number, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(one)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
        assert process.stdout.read() == "stopping\n" and process.stderr.read() == ""


def test_signal_during_an_unexpected_end_changes_nothing(fake):
    (fake.folder / "slow").touch()
    with serve(fake, "--ready_seconds", "5") as process:
        wait_for((fake.folder / "ending").exists, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        errors = process.stderr.read()
    assert errors.startswith("serve: error: not ready after 5 s") and errors.count("\n") == 1
    assert not psutil.pid_exists(fake.starts[0][0])


def test_server_does_not_outlive_a_killed_parent(fake):
    with serve(fake) as process:
        assert process.stdout.readline().startswith("ready")
        below = psutil.Process(fake.starts[0][0])
        process.kill()
        eventually(lambda: not running(below))


KILLED_BEFORE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from serving import server

class Popen(subprocess.Popen):
    def __init__(self, *words, preexec_fn, **options):
        parent = os.getpid()
        def late():
            os.kill(parent, signal.SIGKILL)
            while os.getppid() == parent:
                time.sleep(0.01)
            preexec_fn()
        super().__init__(*words, preexec_fn=late, **options | {"pass_fds": [os.dup(1)]})

server.subprocess.Popen = Popen
server.Server(Path(sys.argv[1]), server.ServerConfig(http_port=0, grpc_port=0, metrics_port=0, server_log=sys.argv[2]))
"""


def test_server_is_not_started_after_its_parent_was_killed(fake):
    (fake.folder / "taken").write_text("1")  # if the server is started after all, it ends by itself
    with child([sys.executable, "-c", KILLED_BEFORE, fake.repository, fake.folder / "log"], cwd=ROOT) as process:
        assert process.wait(60) == -signal.SIGKILL
        process.stdout.read()  # until the child has ended
    assert fake.starts == []


class Kernel:
    """A stub of the kernel's choice of ports: a socket gets the lowest port that no other socket holds."""

    def __init__(self):
        self.held = set()

    def socket(self):
        return Held(self.held)


class Held:
    """A socket of a Kernel."""

    def __init__(self, held):
        self._held, self._port = held, None

    def setsockopt(self, *words):
        pass

    def bind(self, place):
        self._port = place[1] or next(port for port in range(50_000, 60_000) if port not in self._held)
        self._held.add(self._port)

    def getsockname(self):
        return "127.0.0.1", self._port

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._held.discard(self._port)


def test_free_ports_differ(fake, monkeypatch):
    (fake.folder / "slow").touch()
    with monkeypatch.context() as patch:
        patch.setattr(ports, "door_path", lambda: fake.folder / "none")  # whose port is bound before the others are chosen
        patch.setattr(ports.socket, "socket", Kernel().socket)
        server = Server(fake.repository, PORTS)
    with server:
        assert len({server.http, server.grpc, server.metrics}) == 3
        eventually(lambda: fake.starts)


@pytest.mark.parametrize("when", ["taken", "late"])
def test_lost_free_port_leads_to_a_second_start(fake, when):
    (fake.folder / when).write_text("1")
    with Server(fake.repository, PORTS) as server:
        server.wait_until_ready()
        with urllib.request.urlopen(f"http://{server.http}/v2/health/ready") as answer:
            assert len(fake.starts) == 2 and answer.status == 200


def test_free_port_lost_twice_is_an_error(fake):
    (fake.folder / "taken").write_text("11")
    with Server(fake.repository, PORTS) as server, pytest.raises(UserError, match=r"the server ended: .*already in use"):
        server.wait_until_ready()
    assert len(fake.starts) == 2
