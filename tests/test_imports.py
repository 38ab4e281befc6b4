"""The rules of which part may import which, and of the length of files."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import house

ROOT = Path(__file__).parents[1]
ENTRY = house.ENTRY
SOURCES = [*house.sources(ROOT), *sorted(path for path in (ROOT / "tests").rglob("*.py") if "__pycache__" not in path.parts)]


def name_of(path):
    return str(path.relative_to(ROOT))


def for_types(node):
    """Return True for an `if TYPE_CHECKING:` block, which never runs."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(path, top_level=False):
    """Return the names of the modules that a file imports: anywhere, or only those that are imported as soon as the file itself is."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    if top_level:
        inside = {
            id(child) for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or for_types(node) for child in ast.walk(node)
        }
        nodes = [node for node in nodes if id(node) not in inside]
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms(path, **options):
    return {module.split(".")[0] for module in imports(path, **options)}


def test_sources_are_found():
    assert len(SOURCES) > 40


def test_project_keeps_the_house_rules():
    assert list(house.violations(ROOT)) == []


def test_documented_journeys_exist_and_are_short():
    found = {title: (road, faults) for title, road, faults in house.journeys(ROOT)}
    assert set(found) == {"a row", "a flag", "a request", "a Spark job"}
    assert not [fault for _, faults in found.values() for fault in faults]
    assert {"training/step.py", "preproc/table/fit.py"} <= set(found["a row"][0]) and "served/backend.py" in found["a request"][0]
    assert all(len(found[title][0]) <= most for title, most in (("a row", 38), ("a flag", 9), ("a request", 8)))


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"utils/a.py": "from model import b", "model/b.py": ""}, "utils/a.py: utils must not import model"),
        ({"model/a.py": "def f():\n    import dataloading.b", "dataloading/b.py": ""}, "model/a.py: model must not import dataloading"),
        ({"model/a.py": "import importlib\nimportlib.import_module('run.b')", "run/b.py": ""}, "model/a.py: model must not import run"),
        ({"training/a.py": "import horovod.tensorflow"}, "training/a.py: only utils/distributed.py imports horovod"),
        ({"utils/a.py": "from utils.b import x", "utils/b.py": "from utils import a"}, "import cycle: utils.a -> utils.b -> utils.a"),
        ({"ops/a.cc": '#include "b.h"', "ops/b.h": '#include "a.h"', "ops/a.h": ""}, "include cycle: a -> b -> a"),
        ({"run/a.py": "x = 1\n" * 401}, "run/a.py: 401 lines; expected at most 400"),
        ({"run/a.py": "class A:\n" + "    x = 1\n" * 150}, "run/a.py: class A has 151 lines; expected at most 150"),
        ({"run/a.py": "def f(a, b, c, d, e, f, g, *, h, i): ..."}, "run/a.py: f has 9 parameters; expected at most 8"),
        (
            {"tests/run/test_a.py": 'def f():\n    """Whether it does."""\n'},
            "tests/run/test_a.py:2: the docstring opens with Whether; say what it is (a noun), or what it does (Return …)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_violation_of_a_rule_is_reported(tmp_path, files, line):
    write(tmp_path, files)
    assert list(house.violations(tmp_path)) == [line]


def local_file(module):
    """Return the file of a local module, or of the module that a name is imported from; None where it is not ours."""
    parts = module.split(".")
    for count in (len(parts), len(parts) - 1):
        path = ROOT.joinpath(*parts[:count]).with_suffix(".py")
        if count and path.is_file():
            return path
    return None


def test_help_imports_no_tensorflow_at_module_level():
    waiting, seen = [ROOT / "dlrm.py", ROOT / "run/command.py"], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        heavy = rooms(path, top_level=True) & {"tensorflow", "keras", "horovod", "tensorstore", "polars", "tensorboardX"}
        assert not heavy, f"{name_of(path)} imports {', '.join(heavy)}"
        waiting += filter(None, map(local_file, imports(path, top_level=True)))
    assert ROOT / "utils/dialects/command_line.py" in seen


WITHOUT_TENSORFLOW = (
    *("dlrm", "utils.dialects.command_line", "preproc.criteo", "deployment.deploy", "deployment.evaluate_accuracy", "report.tensorboard"),
    *(f"dataloading.{name}" for name in ("transcribe", "validate", "transcode", "gen_csv", "prepare_synthetic_dataset", "dataloader_benchmark")),
)


@pytest.mark.parametrize("module", WITHOUT_TENSORFLOW)
def test_import_loads_no_tensorflow(module):
    code = f"import sys, {module}; print([name for name in ('tensorflow', 'keras', 'horovod') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert result.stdout == "[]\n", result.stdout + result.stderr


@pytest.mark.parametrize(
    "path", [ROOT / "model/embedding/placement.py", ROOT / "utils/metrics/binary.py", ROOT / "training/schedule.py"], ids=name_of
)
def test_pure_modules_stay_pure(path):
    assert not rooms(path) & {"tensorflow", "keras", "horovod"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_are_absolute_and_files_small(path):
    imports(path)
    assert len(path.read_text().splitlines()) <= 400


DOORS = (
    *("preproc.table", "preproc.criteo", "preproc.outbrain", "dataloading.validate", "dataloading.transcribe", "serving.client", "serving.publish"),
    *("deployment.deploy", "deployment.evaluate_accuracy", "report.tensorboard"),
)


@pytest.mark.parametrize("door", [*DOORS, "benchmarks.train_step"])
def test_command_runs_own_modules_whatever_is_in_the_folder(tmp_path, door):
    """The user has modules of his own with the same names (utils.py, model.py, run/) in the folder and on PYTHONPATH."""
    names = ("utils", "model", "training", "run")
    write(tmp_path, {f"{name}.py": f"raise SystemExit('the {name} of the user')" for name in names})
    write(tmp_path, {"preproc/notes.txt": "", "serving/notes.txt": "", "run/__init__.py": "raise SystemExit('the run of the user')"})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    words = [sys.executable, "-m", door, "--help"]
    result = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.startswith("usage: ") and not result.stderr, result.stderr


def test_importing_a_package_leaves_sys_path_unchanged(tmp_path):
    """Only a command puts the project first on the path: a user's program that imports a part of the project keeps its own modules."""
    write(tmp_path, {"utils.py": "mine = 1", "program.py": "import dataloading, utils\nprint(utils.mine)"})
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "program.py", "-m"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert result.stdout == "1\n", result.stderr


ROAD = {
    "run/a.py": "import run.between",
    "run/between.py": "import utils.b",
    "utils/b.py": "",
    "utils/c.py": "",
    "run/caller.py": "import utils.b, utils.c",
    "utils/beside.py": "",
    "docs/architecture.md": "## The journey of a flag\n\n`run/a.py` → `b.py` (`utils/beside.py`) → `utils/c.py`\n\n`utils/beside.py`\n\n## Words\n",
}


def test_journey_includes_the_files_between_its_stops(tmp_path):
    write(tmp_path, ROAD)
    assert list(house.journeys(tmp_path)) == [("a flag", ["run/a.py", "run/between.py", "utils/b.py", "run/caller.py", "utils/c.py"], [])]


def test_journey_with_a_missing_file_or_too_long_is_reported(tmp_path, monkeypatch):
    write(tmp_path, ROAD | {"docs/architecture.md": ROAD["docs/architecture.md"].replace("`utils/c.py`", "`utils/gone.py`")})
    monkeypatch.setitem(house.LONGEST, "a flag", 2)
    ((_, _, faults),) = house.journeys(tmp_path)
    assert faults == [
        "docs/architecture.md: the journey of a flag: no file utils/gone.py",
        "docs/architecture.md: the journey of a flag passes 3 files; expected at most 2",
    ]
