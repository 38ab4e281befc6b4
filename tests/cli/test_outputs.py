"""Tests that a run continues where its output or log cannot be written: a closed pipe, a full disk, no standard streams at all."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from runs import ROOT, TRAIN, read_log

from tests.children import dispositions
from utils.checkpoint.reading import Checkpoint

ROOM = "mount -t tmpfs -o size=4k tmpfs full && head -c 4096 /dev/zero >full/rest; "  # leaves room to make a file, but not to write to it


def shell(folder, script, *flags, around=()):
    """Run a shell script in which `dlrm` is dlrm.py with the flags; return the completed process with its output."""
    command = " ".join(f"'{word}'" for word in (sys.executable, "-u", ROOT / "dlrm.py", *flags))
    words = [*around, "bash", "-c", f'dlrm() {{ {command} "$@"; }}; {script}']
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.fixture
def flags(dataset, tmp_path):
    return ("--dataset_path", dataset, *TRAIN, "--epochs", "3", "--print_freq", "1", "--save_checkpoint_path", tmp_path / "c")


@pytest.fixture(scope="session")
def alone():
    """Return the words that run a command in a mount namespace of its own; skip the test where the machine forbids it."""
    words = ("unshare", "-rm")
    if not shutil.which("unshare") or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no mounts")
    return words


def saved(folder, step=48):
    assert Checkpoint(folder / "c").step == step


def test_broken_pipe_is_one_warning_and_the_run_continues(flags, tmp_path):
    result = shell(tmp_path, "dlrm | head -3; exit ${PIPESTATUS[0]}", *flags)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("\n") == 1 and "standard output: Broken pipe; nothing more is printed there, the run continues" in result.stderr
    saved(tmp_path)
    assert read_log(tmp_path / "dlrm_tf_log.json")[-1]["data"]["steps"] == 48


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(flags, tmp_path, streams):
    result = shell(tmp_path, f"dlrm {streams}", *flags)
    assert result.returncode == 0 and "Traceback" not in result.stderr
    saved(tmp_path)
    assert {line["type"] for line in read_log(tmp_path / "dlrm_tf_log.json")} == {"LOG", "METADATA"}  # no other output went to the log's file


def test_full_disk_of_the_log_is_one_warning(flags, tmp_path, alone):
    (tmp_path / "full").mkdir()
    result = shell(tmp_path, f"{ROOM} dlrm --log_path full/log.json", *flags, around=alone)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("\n") == 1
    assert "warning: --log_path full/log.json: No space left on device; nothing more is logged, the run continues" in result.stderr
    saved(tmp_path)


def test_full_disk_of_standard_output_is_one_warning(flags, tmp_path, alone):
    (tmp_path / "full").mkdir()
    result = shell(tmp_path, f"{ROOM} dlrm >full/out", *flags, around=alone)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("\n") == 1 and "full/out): No space left on device; nothing more is printed there" in result.stderr
    saved(tmp_path)


def test_step_is_saved_after_ctrl_c_with_a_closed_pipe(flags, tmp_path):
    command = [sys.executable, "-u", str(ROOT / "dlrm.py"), *map(str, flags), "--epochs", "500", "--evals_per_epoch", "0", "--log_path", ""]
    reading, writing = os.pipe()
    with dispositions():
        process = subprocess.Popen(command, cwd=tmp_path, stdout=writing, stderr=writing)
    os.close(writing)
    try:
        with open(reading, "rb", buffering=0) as reader:
            seen = b""
            while b"step 20/" not in seen:
                chunk = reader.read(4096)
                assert chunk, seen
                seen += chunk
            process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130  # the run stops cleanly although its reader is gone, as is the `tee` of `| tee` after Ctrl-C
    finally:
        process.kill()
        process.wait()
    assert Checkpoint(tmp_path / "c").step >= 20


def test_predictions_on_a_full_disk_are_a_one_line_error(dataset, trained, tmp_path, alone):
    (tmp_path / "full").mkdir()
    flags = ("--dataset_path", dataset, "--cpu", "--mode", "predict", "--restore_checkpoint_path", trained[0], "--predictions_path", "full/p.parquet")
    for fill, message in (("head -c 4096 /dev/zero >full/rest;", "900 predictions need "), ("", "could not be written: No space left on device")):
        result = shell(tmp_path, f"mount -t tmpfs -o size=4k tmpfs full && {fill} dlrm", *flags, around=alone)
        assert result.returncode == 1, result.stdout
        assert result.stderr.count("\n") == 1 and "--predictions_path full/p.parquet: " in result.stderr and message in result.stderr, result.stderr


def test_plan_on_a_full_standard_output_is_an_error(dataset):
    command = [sys.executable, ROOT / "dlrm.py", "--mode", "plan", "--dataset_path", dataset, "--plan_workers", "2"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240)
    assert result.returncode == 1
    assert result.stderr == "dlrm.py: error: standard output (/dev/full): No space left on device\n"
