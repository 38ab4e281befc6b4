"""requirements.txt pins every package that the program imports."""

import re
import sys

import pytest
from test_imports import ENTRY, ROOT, SOURCES, house, imports, name_of

LOCAL = {*house.MAY_IMPORT, *ENTRY, "tests"}
# Packages whose name differs from that of their module.
PACKAGES = {
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "xdist": "pytest-xdist",
    "google": "protobuf",
    "fbgemm_gpu": "fbgemm-gpu-cpu",
    "ai_edge_litert": "ai-edge-litert",
    "tensorboardX": "tensorboardx",
}


def pins(name):
    """Return the packages of a requirements file in lower case, each with its version as stated there."""
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    found = [re.fullmatch(r"([\w.-]+?)\s*([=@].*)?", line) for line in lines if line]
    return {match[1].lower(): match[2] for match in found}


def imported(paths):
    """Return the imported packages, each with one file that imports it."""
    found = {}
    for path in paths:
        for module in imports(path):
            top = module.split(".")[0]
            if top not in LOCAL and top not in sys.stdlib_module_names and not list(ROOT.glob(f"tests/**/{top}.py")):
                found[PACKAGES.get(top, top)] = name_of(path)
    return found


PROGRAM = [path for path in SOURCES if not name_of(path).startswith("tests/")]


@pytest.mark.parametrize(("package", "path"), sorted((imported(PROGRAM) | {"mpi4py": "the agreement of workers that MPI started"}).items()))
def test_imports_of_the_program_are_pinned(package, path):
    optional = ("requirements-optional.txt", "requirements-spark.txt", "requirements-serving.txt")
    names = {name: pin for file in ("requirements.txt", *optional) for name, pin in pins(file).items()}
    if path.startswith(("benchmarks/", "scripts/")):  # peers that benchmarks measure the project against; what executes the notebook
        names |= pins("requirements-dev.txt") | pins("benchmarks/requirements-peers.txt") | pins("benchmarks/requirements-published.txt")
    assert package in names, f"{path} imports {package}"


def test_imports_of_the_tests_are_required():
    files = [*ROOT.glob("requirements*.txt"), *ROOT.glob("benchmarks/requirements-*.txt")]
    assert len(files) == 9
    names = {package for file in files for package in pins(file)}
    assert not set(imported(SOURCES)) - names


EXACT = [f"requirements{kind}.txt" for kind in ("", "-dev", "-spark", "-serving", "-stub", "-trackers")]


@pytest.mark.parametrize("name", [*EXACT, *(f"benchmarks/requirements-{kind}.txt" for kind in ("peers", "published"))])
def test_every_version_is_exact(name):
    assert pins(name) and all(re.fullmatch(r"==\d[\w.]*", version) for version in pins(name).values())


def test_dllogger_is_pinned_to_a_commit():
    assert re.fullmatch(r"@ git\+https://github\.com/NVIDIA/dllogger@[0-9a-f]{40}", pins("requirements-optional.txt")["dllogger"])


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile-train"])
def test_images_install_the_log_writer_and_the_clients_of_a_server(name):
    lines = (ROOT / name).read_text().splitlines()
    for file in ("requirements-optional.txt", "requirements-serving.txt"):
        copied, installed = (
            next(i for i, line in enumerate(lines) if re.match(word, line) and file in line) for word in ("COPY", "RUN .*pip install")
        )
        assert copied < installed


def test_versions_are_stated_once():
    """scripts/install, the Dockerfile and the program take versions from the requirements files."""
    for path in (ROOT / "scripts/install", ROOT / "Dockerfile", *(ROOT / "serving").glob("*.py")):
        assert not re.search(r"(?i)(tensorflow|horovod|mpi4py|dllogger|numpy)\S*(=|@v?)\d+\.\d", path.read_text()), path
