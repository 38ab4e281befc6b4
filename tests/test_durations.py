"""Tests of the file of durations that every run of the tests keeps, and of its table."""

import json
import subprocess
import sys
import textwrap

from tests.children import ROOT
from tests.durations import table

TESTS = """
import subprocess, sys, time
import pytest

@pytest.fixture(scope="module")
def slow():
    time.sleep(0.3)

@pytest.mark.costly("it burns")
def test_child(slow):
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)

@pytest.mark.parametrize("case", ["a", "b"])
def test_case(case):
    assert case == "a"
"""


def test_run_keeps_what_each_test_cost(tmp_path):
    (tmp_path / "test_some.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "conftest.py").write_text(
        "from tests.durations import Durations\n\n\ndef pytest_configure(config):\n    config.pluginmanager.register(Durations(config))\n"
        "    config.addinivalue_line('markers', 'costly(why): reason')\n"
    )
    (tmp_path / "pytest.ini").touch()
    for processes in ("0", "2"):
        words = [sys.executable, "-m", "pytest", "-q", "-n", processes, "--rootdir", tmp_path, "-c", tmp_path / "pytest.ini", tmp_path]
        result = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 1 and "1 failed, 2 passed" in result.stdout, result.stdout + result.stderr
        kept = json.loads((tmp_path / ".pytest_cache/d/durations.json").read_text())
        child, *cases = (kept["tests"][f"test_some.py::{name}"] for name in ("test_child", "test_case[a]", "test_case[b]"))
        assert child["why"] == "it burns" and child["wall_s"] >= 0.7 and 0.4 < child["cpu_s"] < 10
        assert all(case["cpu_s"] < 0.5 and not case["why"] for case in cases)
        assert kept["wall_s"] > 0.7


QUICK = """
from tests.durations import Durations, leave_out_costly

def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(Durations(config))
    config.addinivalue_line("markers", "costly(why): reason")

def pytest_collection_modifyitems(config, items):
    if config.getoption("quick"):
        leave_out_costly(config, items)
"""


def test_quick_leaves_out_what_took_long_in_the_last_run(tmp_path):
    (tmp_path / "test_some.py").write_text(textwrap.dedent(TESTS).replace("0.5:", "0.8:"))
    (tmp_path / "conftest.py").write_text(QUICK)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntestpaths = .\npythonpath = {ROOT}\n")
    for words, found in (
        (["--quick"], "1 failed, 2 passed"),  # no run is known
        ([], "1 failed, 2 passed"),
        (["--quick"], "1 failed, 1 passed, 1 skipped"),
        (["--quick", "-n", "2"], "1 failed, 1 passed, 1 skipped"),  # a quick run does not replace what is known
        (["--quick", "test_some.py"], "1 failed, 2 passed"),  # what is named runs
    ):
        result = subprocess.run([sys.executable, "-m", "pytest", "-q", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert found in result.stdout, (words, result.stdout + result.stderr)


def test_table_has_long_tests_first_with_their_reasons():
    tests = {
        "tests/a/test_one.py::test_x": {"wall_s": 1.0, "cpu_s": 2.0, "why": ""},
        "tests/a/b/test_two.py::test_y": {"wall_s": 25.0, "cpu_s": 3.0, "why": "it waits"},
        "tests/c/test_three.py::test_z": {"wall_s": 5.0, "cpu_s": 50.0, "why": ""},
    }
    lines = list(table({"wall_s": 40.0, "group_cpu_s": 60.0, "tests": tests}))
    assert lines == [
        "    5.0 s    50.0 CPU s  tests/c/test_three.py::test_z: NO REASON GIVEN",
        "   25.0 s     3.0 CPU s  tests/a/b/test_two.py::test_y: it waits",
        "| folder | tests | seconds | CPU seconds |",
        "|---|---:|---:|---:|",
        "| `tests/c` | 1 | 5 | 50 |",
        "| `tests/a` | 2 | 26 | 5 |",
        "| all | 3 | 31 | 55 |",
        "by the clock: 40 s; of the control group: 60 CPU s",
    ]
    before = {"wall_s": 80.0, "group_cpu_s": None, "tests": tests | {"tests/d/test_four.py::test_w": {"wall_s": 1.0, "cpu_s": 70.0, "why": ""}}}
    both = list(table({"wall_s": 40.0, "group_cpu_s": 60.0, "tests": tests}, before))
    assert both[2:] == [
        "| folder | tests | seconds | CPU seconds | before: tests | seconds | CPU seconds |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| `tests/d` | 0 | 0 | 0 | 1 | 1 | 70 |",
        "| `tests/c` | 1 | 5 | 50 | 1 | 5 | 50 |",
        "| `tests/a` | 2 | 26 | 5 | 2 | 26 | 5 |",
        "| all | 3 | 31 | 55 | 4 | 32 | 125 |",
        "by the clock: 40 s; of the control group: 60 CPU s",
        "by the clock: 80 s; of the control group: unknown",
    ]
