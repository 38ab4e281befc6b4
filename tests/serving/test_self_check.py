"""Tests on the real server that a version that would give wrong answers is not loaded, and that one line tells the user what to do."""

import re
import shutil
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from real_server import PORTS, started, tracebacks
from served_models import criteo_data, export, train

from serving.kept_rows import FILE, read_rows
from serving.server import Server
from utils.errors import UserError

# The model.py that `--mode export` wrote at commit 9d7037b.
OLD_MODEL = """
import importlib
import json
import sys
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        sys.path.insert(0, config["parameters"]["PROJECT_PATH"]["string_value"])
        version = Path(__file__).resolve().parent
        triton = importlib.import_module("triton_python_backend_utils")  # there is one in Triton's process only
        self._backend = importlib.import_module("serving.backend").Backend(triton, version, config, args)

    def execute(self, requests):
        return self._backend.execute(requests)
"""
# Changes NumPy's table of C functions for the whole process, so that requested strides are ignored, as at that commit.
WITHOUT_STRIDES = """
import ctypes
from numpy.core import multiarray

POINTER, INT, OBJECT = ctypes.c_void_p, ctypes.c_int, ctypes.py_object
KIND = ctypes.PYFUNCTYPE(OBJECT, POINTER, POINTER, INT, POINTER, POINTER, POINTER, INT, POINTER)
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = POINTER, [OBJECT, ctypes.c_char_p]
functions = (POINTER * 320).from_address(pointer(multiarray._ARRAY_API, None))
real = KIND(functions[94])

@KIND
def new_from_descr(kind, descr, dimensions, shape, strides, data, flags, parent):
    return real(kind, descr, dimensions, shape, None, data, flags, parent)

functions[94] = ctypes.cast(new_from_descr, POINTER).value
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checked")
    export(train(criteo_data(folder), folder / "c"), folder / "r", "--inputs", "raw", "--model_name", "good")
    return folder / "r/good"


@pytest.fixture(scope="module")
def server(good):
    with started(good.parent) as server:
        yield server
        assert tracebacks(server) == []


def copied(good, name):
    """Copy a model under another name, with its own copies of the files that versions share with their checkpoints."""
    copy = shutil.copytree(good, good.with_name(name), ignore=shutil.ignore_patterns("__pycache__"))
    config = copy / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "good"', f'name: "{name}"', 1))
    return copy


def environment(model, path):
    config = model / "config.pbtxt"
    config.write_text(re.sub(r'(EXECUTION_ENV_PATH" value: { string_value: )"[^"]*"', rf'\1"{path}"', config.read_text()))


def older(model):
    """Turn a model into one exported at commit 9d7037b."""
    environment(model, sys.prefix)
    (model / "1/model.py").write_text(OLD_MODEL)
    (model / "1" / FILE).unlink()


def in_the_new_environment(model):
    (model / "1/model.py").write_text(OLD_MODEL)
    (model / "1" / FILE).unlink()


def cut(model):
    path = model / "1" / FILE
    path.write_bytes(path.read_bytes()[:5000])


def flipped(model):
    path = model / "1" / FILE
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def other_scores(model):
    """Change a kept score, as if the program scored otherwise than at the export."""
    path = model / "1" / FILE
    rows = read_rows(path)
    rows.scores[150] += 1e-4
    rows.write(path)


def dropped_strides(model):
    path = model / "1/model.py"
    path.write_text(WITHOUT_STRIDES + path.read_text())


CASES = {
    "older": (older, r"NumPy 2\S+ is not what this Triton was built for: .*Export the model again"),
    "older_moved": (in_the_new_environment, r"1/rows\.npz: is missing, .*serving\.publish write the next version"),
    "cut": (cut, r"1/rows\.npz: cannot be read .*export the model again"),
    "flipped": (flipped, r"1/rows\.npz: cannot be read .*export the model again|row \d+ of the 200 .* export the model again"),
    "other_scores": (
        other_scores,
        r"self-check row 150 of 200 scores 0\.\d+, expected 0\.\d+ as in the export's proof: .*export the model again",
    ),
    "dropped_strides": (dropped_strides, r"values change between Polars \S+ and NumPy \S+;|NumPy \S+ is not what this Triton was built for"),
}


@pytest.mark.parametrize("name", CASES)
def test_version_that_would_give_wrong_answers_is_refused_in_one_line(server, good, name):
    spoil, message = CASES[name]
    model = copied(good, name)
    spoil(model)
    request = urllib.request.Request(f"http://{server.http}/v2/repository/models/{name}/load", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=300)
    said = caught.value.read().decode()
    assert re.search(message, said), said
    assert "Traceback" not in said


def test_server_refuses_a_repository_of_an_older_export(good, tmp_path):
    model = shutil.copytree(good, tmp_path / "r/good", ignore=shutil.ignore_patterns("__pycache__"))
    older(model)
    with Server(model.parent, PORTS) as server, pytest.raises(UserError, match=r"NumPy 2\S+ is not what this Triton was built for") as caught:
        server.wait_until_ready()
    assert "\n" not in str(caught.value) and "Export the model again" in str(caught.value)


def test_version_keeps_the_first_rows_of_its_proof(good):
    rows = read_rows(good / "1" / FILE)
    assert len(rows.scores) == 200 and all(len(values) == 200 for values in rows.inputs.values())
    assert rows.limit == 1e-6 and np.ptp(rows.scores) > 0.01
    kinds = {values.dtype for values in rows.inputs.values()}
    assert kinds == {np.dtype(np.float32), np.dtype(object)} and len(rows.inputs) == 39


def test_export_with_another_numpy_on_pythonpath_is_refused(good, tmp_path, monkeypatch):
    """An export is refused where PYTHONPATH, which comes before the packages of an environment, names another NumPy."""
    monkeypatch.setenv("PYTHONPATH", str(next(path for path in sys.path if path.endswith("site-packages"))))
    with pytest.raises(UserError, match=r"numpy/__init__\.py: is NumPy 2\S+, expected 1\.\S+; check whether PYTHONPATH names another NumPy"):
        export(good.parents[1] / "c", tmp_path / "r", "--inputs", "raw")
    assert not (tmp_path / "r").exists()
