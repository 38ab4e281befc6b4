"""The changes that mutation testing makes, and the outcome that a run of tests in a child process reports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from ops_sites import SWITCH, sites_of, switched
from python_sites import mutants_of

ROOT = Path(__file__).parents[2]


def changed(source):
    """Return every variant of a source that one change makes."""
    return [mutant.applied(source.encode()).decode() for mutant in mutants_of("some.py", source.encode())]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", ["x = (a <= b)"]),
        ("x = a < b <= c", ["x = (a <= b <= c)", "x = (a < b < c)"]),
        ("x = a is not None", ["x = (a is None)"]),
        ("x = a + b", ["x = ((a) - (b))"]),
        ("x = a // b", ["x = (-(-(a) // (b)))"]),
        ("x = a | b", ["x = ((a))"]),
        ("x = a and b or c", ["x = ((a and b) and (c))", "x = ((a) or (b)) or c"]),
        ("x = not a", ["x = (a)"]),
        ("if a:\n    b()", ["if (not (a)):\n    b()", "if a:\n    pass"]),
        ("x = 3", ["x = 4"]),
        ("x = True", ["x = False"]),
        ("x = y[a:b]", ["x = y[(a) + 1:b]", "x = y[a:(b) + 1]"]),
        ("x = f(a, b)", ["x = f(b, a)"]),
        ("x = f(a, key=b)", ["x = f(a)"]),
        ("x = min(a)", ["x = max(a)"]),
        ("x += a", ["pass", "x -= a"]),
        ("for x in y:\n    break", ["for x in y:\n    continue"]),
        ('x = ("a", "b")', ["x = ('b',)", "x = ('a',)"]),
        ("x = [y for y in z if y]", ["x = [y for y in z if True]"]),
        ("def f(a: int | None = 1) -> int | str:\n    '''Text 1.'''", ["def f(a: int | None = 2) -> int | str:\n    '''Text 1.'''"]),
        # Texts, and arguments of raised errors
        ("x = f'{a + 1}'", []),
        ("raise UserError(f(a, b))", []),
        ("say(a + 1)", ["pass"]),
        ("class A:\n    def __repr__(self):\n        return a + b", []),
        ("@cache(1)\ndef f():\n    return x", []),
        ("x = 'a' + b", []),
    ],
)
def test_changes_of_python(source, expected):
    found = changed(source)
    assert sorted(found) == sorted(expected)
    for text in found:
        ast.parse(text)


def test_every_change_of_the_sources_parses_and_has_its_position():
    source = (ROOT / "dataloading" / "batches.py").read_bytes()
    mutants = mutants_of("dataloading/batches.py", source)
    assert len(mutants) > 100
    for mutant in mutants:
        text = mutant.applied(source)
        assert text != source and ast.dump(ast.parse(text)) != ast.dump(ast.parse(source)), mutant
        assert mutant.first <= mutant.last


CPP = """#ifndef SOME_H_
#include <cstdio>
int twice(int n) {
  alignas((8)) int sum = 0;
  for (int i = 0; i < n; ++i) sum += 2;
  if (n > 100) return -1;
  sum -= 0;
  std::printf("%d", sum);
  return sum + n - n;
}
"""


def test_cpp_changes_share_one_build_and_are_chosen_by_the_environment(tmp_path):
    sites = list(sites_of("some.cc", CPP.replace("#ifndef SOME_H_\n", "")))
    assert {site.kind for site in sites} == {"comparison", "arithmetic", "constant", "condition", "statement removed"}
    (tmp_path / "some.cc").write_text(CPP.replace("#ifndef SOME_H_\n", "") + "int main() { return twice(5) == 10 ? 0 : 1; }\n")
    switched(tmp_path, sites)
    assert (tmp_path / "mutant.h").read_text() == SWITCH
    subprocess.run(["g++", "-std=c++17", "-w", "-o", tmp_path / "some", tmp_path / "some.cc"], check=True, timeout=240)

    def code(number):
        return subprocess.run([tmp_path / "some"], env={"DLRM_MUTANT": str(number)}, capture_output=True, timeout=240).returncode

    assert code(0) == 0 and code(len(sites) + 1) == 0
    assert sum(code(number) != 0 for number in range(1, len(sites) + 1)) >= len(sites) / 2


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from forked import run_tests
tree, file = Path(sys.argv[2]), "tests/test_some.py"
for tests, limit_s in (["b"], 200), (["c", "a"], 200), (["slow"], 2), (["leaves"], 200):
    outcome = run_tests(tree, [file], [f"{file}::test_{name}" for name in tests], limit_s, tree / "log", {"SOME": "1"})
    print(outcome.code, outcome.failed, sorted(outcome.durations))
"""
TESTS = """
import os, subprocess, time
def test_a(): pass
def test_b(): assert os.environ["SOME"] == "1" and os.path.exists("pyproject.toml")
def test_c(): assert False
def test_slow(): time.sleep(600)
def test_leaves():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open("left", "w").write(str(child.pid))
    child.returncode = 0  # so that Python does not warn of it
"""


def test_run_of_tests_reports_failures_and_ends_slow_tests_and_what_they_leave(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    result = subprocess.run([sys.executable, "-c", PROGRAM, Path(__file__).parent, tmp_path], capture_output=True, text=True, timeout=240)
    assert result.stdout.splitlines() == [
        "0  ['tests/test_some.py::test_b']",
        "1 tests/test_some.py::test_c []",
        "None ran longer than its limit, or needed too much memory []",
        "0  ['tests/test_some.py::test_leaves']",
    ], result.stderr
    command = Path("/proc", (tmp_path / "left").read_text(), "cmdline")
    assert not command.exists() or not command.read_bytes()  # ended, perhaps not yet waited for
