"""Who may import whom, and how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("utils", "dataloading", "model", "training", "preproc", "run", "benchmarks", "tests")
ENTRY = ("dlrm",)
MAY_IMPORT = {
    "utils": {"utils"},
    "dataloading": {"dataloading", "utils"},
    "model": {"model", "utils"},
    "training": {"training", "model", "utils"},
    "run": {"run", "training", "model", "preproc", "dataloading", "utils"},
    "preproc": {"preproc", "dataloading", "utils"},
    "benchmarks": {*ROOMS, *ENTRY} - {"tests"},
    "scripts": set(),
}
HOROVOD = ("utils/distributed.py", "scripts/prove_install.py")
MAX_LINES = 400


def is_source(path):
    return not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)


SOURCES = sorted(path for folder in (*MAY_IMPORT, "tests") for path in (ROOT / folder).rglob("*.py") if is_source(path))
SOURCES += [ROOT / f"{name}.py" for name in ENTRY]


def name_of(path):
    return str(path.relative_to(ROOT))


def imports(path, top_level=False):
    """Names of the modules that a file imports, anywhere or only when it is imported itself."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    if top_level:
        inside = {id(child) for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for child in ast.walk(node)}
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


def test_there_is_something_to_check():
    assert len(SOURCES) > 40


@pytest.mark.parametrize("path", [path for path in SOURCES if path.relative_to(ROOT).parts[0] in MAY_IMPORT], ids=name_of)
def test_rooms_import_only_what_they_may(path):
    room = path.relative_to(ROOT).parts[0]
    forbidden = ({*ROOMS, *ENTRY} - MAY_IMPORT[room]) & rooms(path)
    assert not forbidden, f"{room} must not import {', '.join(forbidden)}"


@pytest.mark.parametrize("path", [path for path in SOURCES if not name_of(path).startswith("tests/")], ids=name_of)
def test_horovod_is_imported_in_one_file(path):
    assert "horovod" not in rooms(path) or name_of(path) in HOROVOD


def local_file(module):
    """The file of a local module or of the module that a name is imported from; None where it is not ours."""
    parts = module.split(".")
    for count in (len(parts), len(parts) - 1):
        path = ROOT.joinpath(*parts[:count]).with_suffix(".py")
        if count and path.is_file():
            return path
    return None


def test_nothing_that_help_needs_imports_tensorflow_at_module_level():
    waiting, seen = [ROOT / "dlrm.py"], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        heavy = rooms(path, top_level=True) & {"tensorflow", "keras", "horovod", "tensorstore", "polars"}
        assert not heavy, f"{name_of(path)} imports {', '.join(heavy)}"
        waiting += filter(None, map(local_file, imports(path, top_level=True)))
    assert ROOT / "utils/config.py" in seen


@pytest.mark.parametrize("module", ["dlrm", "utils.config", "dataloading.transcribe", "dataloading.validate", "preproc.criteo"])
def test_importing_it_loads_no_tensorflow(module):
    code = f"import sys, {module}; print([name for name in ('tensorflow', 'keras', 'horovod') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n", result.stdout + result.stderr


@pytest.mark.parametrize(
    "path", [ROOT / "model/embedding/placement.py", ROOT / "utils/metrics/binary.py", ROOT / "training/schedule.py"], ids=name_of
)
def test_pure_modules_stay_pure(path):
    assert not rooms(path) & {"tensorflow", "keras", "horovod"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES
