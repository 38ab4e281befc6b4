"""The parts of a campaign: which files and mutants they have, which tests their results depend on, and how two campaigns compare."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from digests import of_helpers
from python_part import PATHS, TESTS, PythonPart, files_of
from python_sites import Mutant

ROOT = Path(__file__).parents[2]


def part(tree, seed=1):
    return PythonPart([tree], tree, seed, 120)


@pytest.mark.parametrize("group", PATHS)
def test_drawing_depends_on_the_seed_and_the_sources_only(group, tmp_path):
    for path in files_of(ROOT, group):
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    drawn = part(ROOT).drawn(group, 14)
    assert len(set(drawn)) == 14
    assert part(ROOT).drawn(group, 14) == drawn == part(tmp_path).drawn(group, 28)[:14]
    assert part(ROOT, seed=2).drawn(group, 14) != drawn


def test_files_of_the_parts():
    for name in (*(name for names in PATHS.values() for name in names), *TESTS):
        assert list(ROOT.glob(name)), name
    assert ROOT / "model/embedding/exchange.py" in files_of(ROOT, "exchange")
    assert len(files_of(ROOT, "exchange")) == len(PATHS["exchange"])
    groups = ("preproc/table", "preproc/criteo", "preproc/spark", "dataloading", "dataloading/batches.py", "run", "run/inherit.py", "report")
    files = [file for group in groups for file in files_of(ROOT, group)]
    assert len(files) == len(set(files))
    assert ROOT / "preproc/table/on_spark.py" in files_of(ROOT, "preproc/spark")


@pytest.fixture
def tree(tmp_path):
    """Write a program and tests, one of which executes the program's second line."""
    texts = {
        "run/some.py": "def some(a):\n    return a + 1\n",
        "tests/conftest.py": "",
        "tests/run/test_some.py": "def test_some(): ...\n",
        "tests/run/test_other.py": "def test_other(): ...\n",
        "tests/helpers/shared.py": "ONE = 1\n",
        "tests/mutants/forked.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def key(tree, changed=None):
    """Return the key of a mutant's result after a line is added to a file."""
    if changed:
        with (tree / changed).open("a") as file:
            file.write("# changed\n")
    of_helpers.cache_clear()
    some = part(tree)
    some._covering["run/some.py"][2] |= {"tests/run/test_some.py::test_some"}
    some._seconds["tests/run/test_some.py::test_some"] = some._begin_s["tests/run/test_some.py"] = 1.0
    return some.key(Mutant("run/some.py", 2, 2, 29, 30, "2", "constant"))


@pytest.mark.parametrize("changed", ["run/some.py", "tests/run/test_some.py", "tests/helpers/shared.py", "tests/conftest.py"])
def test_result_is_of_the_sources_and_the_tests(tree, changed):
    before = key(tree)
    assert before == key(tree)
    assert before != key(tree, changed)


@pytest.mark.parametrize("changed", ["tests/run/test_other.py", "tests/mutants/forked.py"])
def test_result_stays_where_other_tests_change(tree, changed):
    assert key(tree) == key(tree, changed)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import mutation_campaign as campaign

def result(number, status, group="run"):
    return {"group": group, "mutant": str(number), "key": f"key {number}", "status": status, "by": "test_some", "path": "run/some.py"} | {
        "line": number, "kind": "constant", "tests": 3, "before": "1", "after": "2"}

here = [result(1, "killed"), result(2, "survived"), result(3, "survived"), result(4, "killed", "report"), result(5, "survived")]
there = [result(1, "killed"), result(2, "killed"), result(3, "survived"), result(4, "survived", "report")]
print(campaign.table(here), campaign.compared(here, there), sum(campaign.GROUPS.values()), sep="\\n")
"""


def test_comparison_with_another_folder():
    result = subprocess.run([sys.executable, "-c", PROGRAM, Path(__file__).parent], capture_output=True, text=True, timeout=240, cwd=ROOT)
    *lines, number = result.stdout.splitlines()
    assert lines == [
        "| part | mutants | killed | survived |",
        "|---|---|---|---|",
        "| `report` | 1 | 1 (100.0%) | 0 |",
        "| `run` | 4 | 1 (25.0%) | 3 |",
        "| all | 5 | 2 (40.0%) | 3 |",
        "| part | mutants in both | killed there | killed here |",
        "|---|---|---|---|",
        "| `report` | 1 | 0 (0.0%) | 1 (100.0%) |",
        "| `run` | 3 | 2 (66.7%) | 1 (33.3%) |",
        "| all | 4 | 2 (50.0%) | 2 (50.0%) |",
        "",
        "killed there by test_some, survives here: run/some.py:2 (constant; 3 tests)",
        "    1",
        "    2",
    ], result.stderr
    assert f"make {number} small changes" in (ROOT / "scripts/mutants").read_text()
