"""Tests of the Python environment of Triton's backend: its search path, and its creation with several processes, a killed run or a full disk."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from children import ROOT, child, wait_for
from real_server import eventually, needed, running

from model.native_scorer import native_scorer_library
from serving.stub_environment import REQUIREMENTS, numpy_folder, numpy_version, stub_environment
from utils.errors import UserError

MAKE = (sys.executable, "-m", "serving.stub_environment")
LOOK = """
import json, sys, numpy, polars, tensorstore
from model.native_scorer import native_scorer_library
print(json.dumps([numpy.__version__, polars.__version__, sys.version_info[:2], native_scorer_library() is not None, "tensorflow" in sys.modules]))
"""
# A stub in place of `python -m pip`.
PIP = """#!/bin/sh
echo $$ >{folder}/new
mv {folder}/new {folder}/pid
exec {rest}
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache folder with a link to the installed NumPy, which need not be fetched again."""
    needed()
    real, folder = numpy_folder(), tmp_path / "cache"
    folder.mkdir()
    (folder / real.name).symlink_to(real)
    monkeypatch.setenv("DLRM_CACHE_DIR", str(folder))
    return folder


def test_python_without_that_numpy_is_one_line_that_names_another(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    with pytest.raises(
        UserError, match=r"needs numpy==1\.26\.4, which no Python after 3\.12 has; .* \(DLRM_PYTHON=python3\.12 \./scripts/install\)$"
    ):
        stub_environment()


def test_environment_has_the_required_numpy_first_and_the_operations(cache, tmp_path):
    python = stub_environment() / "bin/python3"
    result = subprocess.run([python, "-c", LOOK], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    import polars

    found = json.loads(result.stdout)
    assert found == [numpy_version(), polars.__version__, [*sys.version_info[:2]], native_scorer_library() is not None, False]
    assert numpy_version() != np.__version__ and f"numpy=={numpy_version()}" in REQUIREMENTS.read_text().splitlines()


def test_concurrent_processes_share_one_environment_and_leave_no_files(cache):
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(MAKE, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    said = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4 and len(set(said)) == 1, said
    (path, errors) = said[0]
    assert errors == "" and sorted(entry.name for entry in cache.iterdir()) == sorted([numpy_folder().name, os.path.basename(path.strip())])


def with_pip(tmp_path, rest):
    program = tmp_path / "python"
    program.write_text(PIP.format(folder=tmp_path, rest=rest))
    program.chmod(0o755)
    code = "import runpy, sys; sys.executable = sys.argv.pop(1); runpy.run_module('serving.stub_environment', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", code, program]


def test_files_of_a_killed_process_are_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("DLRM_CACHE_DIR", str(tmp_path / "cache"))
    with child(with_pip(tmp_path, "sleep 300"), cwd=ROOT) as process:
        wait_for((tmp_path / "pid").exists, process)
        process.kill()
        process.wait()
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not psutil.pid_exists(pid) or not running(psutil.Process(pid)), 30)
    (left,) = (tmp_path / "cache").iterdir()
    result = subprocess.run(with_pip(tmp_path, "false"), cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 1 and f"{left}: left by a run that was killed; removed" in result.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_signal_stops_the_download_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("DLRM_CACHE_DIR", str(tmp_path / "cache"))
    with child(with_pip(tmp_path, "sleep 300"), cwd=ROOT) as process:
        wait_for((tmp_path / "pid").exists, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stderr.read().endswith("serving.stub_environment: stopped by SIGTERM\n")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("says", "cause"),
    [
        ("ERROR: No matching distribution found for numpy", "ERROR: No matching distribution found for numpy"),
        ("ERROR: Exception:\\nTraceback\\nOSError: [Errno 28] No space left on device", r"OSError: \[Errno 28\] No space left on device"),
    ],
)
def test_pip_failure_is_one_line(tmp_path, monkeypatch, says, cause):
    monkeypatch.setenv("DLRM_CACHE_DIR", str(tmp_path / "cache"))
    words = with_pip(tmp_path, f"sh -c 'printf \"{says}\\n\" >&2; exit 1'")
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("fetching")]
    assert result.returncode == 1 and list((tmp_path / "cache").iterdir()) == []
    assert re.fullmatch(rf"serving\.stub_environment: error: numpy==\S+ cannot be installed into {tmp_path}/cache \({cause}\); it needs .*", line), (
        line
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file/cache", r"file/cache: Not a directory; .*set DLRM_CACHE_DIR to a writable one"),
        ("file", r"file: File exists; .*set DLRM_CACHE_DIR to a writable one"),
        ("with a blank", r"with a blank/\S+: Triton passes this path to a shell unquoted; set DLRM_CACHE_DIR to a path without spaces"),
        ("dépôt", r"dépôt/\S+: Triton passes this path to a shell unquoted"),
    ],
)
def test_invalid_cache_folder_is_one_line(tmp_path, monkeypatch, name, message):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DLRM_CACHE_DIR", str(tmp_path / name))
    with pytest.raises(UserError, match=message):
        stub_environment()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
