"""Tests of `scripts/serve` with a fake server that ends unexpectedly: the end is reported, and the server restarted a limited number of times."""

import os
import signal
import subprocess
import sys

import pytest
from children import child
from fake_server import FakeServer
from real_server import eventually

from serving import shared_memory
from serving.server_log import ending, last_words
from serving.shared_memory import Segments

FREE = ("--http_port", "0", "--grpc_port", "0", "--metrics_port", "0")
ABORTED = "the server ended unexpectedly by SIGABRT: terminate called after throwing an instance of 'boost::interprocess::lock_exception' what"


@pytest.fixture
def fake(tmp_path):
    return FakeServer(tmp_path)


def serve(fake, *flags):
    words = [sys.executable, "-m", "serving.server", fake.repository, "--server_log", fake.folder / "log", *FREE, *flags]
    return child(words, env=fake.environment)


def test_aborted_server_is_restarted_at_the_same_ports(fake):
    (fake.folder / "crash").write_text("1")
    with serve(fake) as process:
        assert process.stdout.readline().startswith("ready after")
        line = process.stdout.readline()
        assert line.startswith(ABORTED) and line.endswith("; it is started again\n") and "CudaDriver" not in line
        assert process.stdout.readline().startswith("ready again after")
        (_, *first), (_, *second) = fake.starts
        assert first == second  # the restarted server keeps its ports, so clients need not look for it
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and process.stdout.read() == "stopping\n"
        assert not list(shared_memory.FOLDER.glob(f"dlrm_{process.pid}_*"))


def test_a_server_that_was_ready_is_always_started_again_after_growing_pauses(fake):
    """One bad request may end the server again and again; that must not end it for good."""
    (fake.folder / "crash").write_text("1" * 9)
    with serve(fake, "--restarts", "1") as process:
        lines = []
        while not lines or "it is started again in 2 s" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert process.poll() is None, lines
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert [line.rpartition("; ")[2] for line in lines if "unexpectedly" in line] == [
        "it is started again\n",
        "it is started again in 1 s\n",
        "it is started again in 2 s\n",
    ]
    assert len(fake.starts) == 3


def test_failing_starts_end_after_the_maximum(fake):
    (fake.folder / "crash").write_text("1")
    (fake.folder / "fails").write_text("1" * 9)
    with serve(fake, "--restarts", "2") as process:
        assert process.wait(120) == 1
        errors = process.stderr.read()
    assert errors.count("\n") == 1 and errors.startswith("serve: error: the server ended unexpectedly")
    assert errors.endswith("; 2 starts in a row failed (--restarts)\n") and len(fake.starts) == 3


def test_a_start_that_succeeds_forgets_the_failing_ones(fake):
    (fake.folder / "crash").write_text("1")
    (fake.folder / "fails").write_text("1")
    with serve(fake, "--restarts", "2") as process:
        while not process.stdout.readline().startswith("ready again after"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert len(fake.starts) == 3


def test_restarts_0_ends_with_the_first_abort(fake):
    (fake.folder / "crash").write_text("1")
    with serve(fake, "--restarts", "0") as process:
        assert process.wait(60) == 1
        assert process.stderr.read().startswith(f"serve: error: {ABORTED}")
    assert len(fake.starts) == 1


def test_signal_during_a_restart_stops_the_command(fake):
    (fake.folder / "crash").write_text("1" * 9)
    with serve(fake) as process:
        while "it is started again in 2 s" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


HARMLESS = 'E1123 12:24:16.456641 11964 server.cc:241] "CudaDriverHelper has not been initialized."\n'


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (HARMLESS + "Signal (11) received.\n 0# 0x1 in tritonserver\n", "Signal (11) received."),
        (HARMLESS + 'E1123 12:24:16.4 1 a.cc:2] "failed to load \'m\'"\nI1123 12:24:16.4 1 a.cc:2] "ending"\n', "failed to load 'm'"),
        (
            'E1123 12:24:16.4 1 a.cc:2] "Internal: UserError: /m/1/rows.npz: is missing\\n\\nAt:\\n  /p/kept.py(57): read\\n  /p/m.py\\n"\n',
            "Internal: UserError: /m/1/rows.npz: is missing",
        ),
        (HARMLESS + "out of luck\n+---+---+\n| a | b |\n+---+---+\n\n", "out of luck"),
        (HARMLESS, "it logged no error"),
        ("", "it logged no error"),
    ],
)
def test_last_words_of_a_log(tmp_path, log, words):
    (tmp_path / "log").write_text("Signal (6) received.\n" + log)
    assert last_words(tmp_path / "log", len("Signal (6) received.\n")) == words


def test_exit_codes_in_words():
    assert [ending(code) for code in (0, 1, -6, -9)] == ["with code 0", "with code 1", "by SIGABRT", "by SIGKILL"]


HOLDER = """
import sys, time
from pathlib import Path
from serving.shared_memory import Segments
held = Segments(int(sys.argv[1]), Path(sys.argv[2]))
print(held.prefix, flush=True)
time.sleep(600)
"""


def test_next_server_removes_segments_of_killed_servers_only(tmp_path):
    """The lock decides, not the process id, which may belong to another process now, or to none on this machine."""
    with child([sys.executable, "-c", HOLDER, 1, tmp_path]) as killed, child([sys.executable, "-c", HOLDER, 2, tmp_path]) as alive:
        prefixes = [process.stdout.readline().strip() for process in (killed, alive)]
        for prefix in prefixes:
            (tmp_path / f"{prefix}some-uuid").touch()
        killed.kill()
        killed.wait()
        segments = Segments(3, tmp_path)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == sorted([f"{prefixes[1]}some-uuid", f"{prefixes[1]}lock", f"{segments.prefix}lock"])
        (tmp_path / f"{segments.prefix}mine").touch()
        segments.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"{prefixes[1]}some-uuid", f"{prefixes[1]}lock"])


def test_a_server_that_outlives_its_parent_keeps_its_segments(tmp_path):
    """Triton inherits the lock, as it finishes its requests and ends seconds after scripts/serve was killed."""
    segments = Segments(1, tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[segments.lock]) as triton:
        os.close(segments.lock)
        shared_memory.remove_left(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [f"{segments.prefix}lock"]
        triton.kill()
    eventually(lambda: shared_memory.remove_left(tmp_path) or not list(tmp_path.iterdir()))


def test_segments_without_a_lock_are_removed_unless_in_use(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"dlrm_{ended.pid}_8000_left", f"dlrm_{os.getpid()}_8000_runs", "other_1_2_3"):
        (tmp_path / name).touch()
    shared_memory.remove_left(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"dlrm_{os.getpid()}_8000_runs", "other_1_2_3"]
