"""docs/notebook.ipynb is executed as a reader would, on the real server too, and its stored output is what the cells of today print."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.real_server import needed

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/notebook.ipynb"
SCRIPT = ROOT / "scripts/notebook.py"


def text(part):
    return part if isinstance(part, str) else "".join(part)


def shown(cell):
    """Return the kinds of a cell's outputs: the name of each stream, the formats of each picture and table."""
    return [output.get("name") or sorted(output["data"]) for output in cell.get("outputs", ())]


def measured(notebook):
    """Return the AUC and the log loss of each line of the table of metrics."""
    tables = [text(output["data"]["text/plain"]) for cell in notebook["cells"] for output in cell.get("outputs", ()) if "data" in output]
    (table,) = [table for table in tables if "log loss" in table]
    lines = re.findall(r"│ ([\w ]+?) +┆ ([\d.]+) +┆ ([\d.]+)", table)
    return {name: (float(auc), float(loss)) for name, auc, loss in lines}


@pytest.fixture(scope="module")
def stored():
    return json.loads(NOTEBOOK.read_text())


def execute(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    needed()
    path, before = tmp_path_factory.mktemp("notebook") / "executed.ipynb", NOTEBOOK.read_bytes()
    ended = execute("--output", path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert NOTEBOOK.read_bytes() == before and [one.name for one in path.parent.iterdir()] == ["executed.ipynb"]
    assert not (ROOT / "notebook_data").exists() and not (ROOT / "docs/notebook_data").exists()
    return json.loads(path.read_text())


def test_stored_output_belongs_to_the_stored_cells(executed, stored):
    """`scripts/notebook` stores the output again after a change of a cell, or of what a cell shows."""
    assert [text(cell["source"]) for cell in executed["cells"]] == [text(cell["source"]) for cell in stored["cells"]]
    for old, new in zip(stored["cells"], executed["cells"], strict=True):
        assert shown(old) == shown(new), text(old["source"])[:200]
        assert old.get("execution_count") == new.get("execution_count")


def test_stored_metrics_are_those_of_today(executed, stored):
    old, new = measured(stored), measured(executed)
    assert list(old) == list(new) == ["the model", "best possible", "click rate of all rows"]
    for name, values in new.items():
        assert values == pytest.approx(old[name], abs=0.01), "run scripts/notebook"
    assert new["best possible"][0] - 0.04 < new["the model"][0] < new["best possible"][0] and new["click rate of all rows"][0] == 0.5


def test_stored_notebook_is_clean(stored):
    """It has output for every plot, no warning, no error, no path of a machine, and less than 1 MB."""
    assert NOTEBOOK.stat().st_size < 1_000_000
    outputs = [output for cell in stored["cells"] for output in cell.get("outputs", ())]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 5
    words = [
        text(output.get("text", "")) + "".join(text(part) for kind, part in output.get("data", {}).items() if "image" not in kind)
        for output in outputs
    ]
    for word in words:
        assert not re.search(r"(?i)warn|traceback|deprecat|error:", word), word
        assert not re.search(r"(^|[\s'\"(])/(?!td|th|tr|v2)\w+/", word), word
    counts = [cell["execution_count"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert set(stored["metadata"]) == {"kernelspec", "language_info"} and stored["metadata"]["language_info"] == {"name": "python"}


def test_links_of_the_notebook_exist(stored):
    pages = [text(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "markdown"]
    links = [link for page in pages for link in re.findall(r"\]\(([^)#\s]+)\)", page)]
    assert len(links) >= 6 and all((NOTEBOOK.parent / link).is_file() for link in links)


def test_failing_cell_stores_nothing(tmp_path, stored):
    """A copy of the script beside a notebook whose only cell fails."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/notebook.py").write_bytes(SCRIPT.read_bytes())
    cell = {"cell_type": "code", "id": "one", "metadata": {}, "source": ["1 / 0"], "execution_count": None, "outputs": []}
    before = json.dumps(stored | {"cells": [cell]})
    (tmp_path / "docs/notebook.ipynb").write_text(before)
    ended = subprocess.run([sys.executable, tmp_path / "scripts/notebook.py"], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1 and "nothing is stored" in ended.stderr and "ZeroDivisionError" in ended.stderr
    assert "Traceback (most recent call last):\n  File" not in ended.stderr
    assert (tmp_path / "docs/notebook.ipynb").read_text() == before and len(list((tmp_path / "docs").iterdir())) == 1


def test_output_without_a_folder_is_an_error():
    ended = execute("--output", "/no/such/copy.ipynb")
    assert (ended.returncode, ended.stderr) == (1, "notebook: error: --output /no/such/copy.ipynb: its folder does not exist\n")
