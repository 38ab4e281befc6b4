"""Fixtures: a small dataset, a model trained on it, and a function that runs dlrm.py in this process."""

import shutil
import sys

import pytest
from runs import TRAIN, Result, here, read_log, write_dataset

import dlrm
from utils.commands import run_command


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Return a function that runs dlrm.py's main in this process with the given flags, and returns its Result."""

    def call(*flags):
        log = tmp_path / "run.json"
        log.unlink(missing_ok=True)
        monkeypatch.setattr(sys, "argv", ["dlrm.py", "--log_path", str(log), *map(str, flags)])
        capfd.readouterr()
        code = run_command(dlrm.main, "dlrm.py")
        return Result(code, *capfd.readouterr(), read_log(log))

    return call


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory):
    """Train a model; return its folder and the run's Result."""
    folder = tmp_path_factory.mktemp("trained")
    result = here(folder, "--dataset_path", dataset, *TRAIN, "--epochs", "3", "--print_freq", "10", "--save_checkpoint_path", folder / "checkpoint")
    assert result.code == 0, result.err
    return folder / "checkpoint", result


@pytest.fixture
def copy(dataset, tmp_path):
    """Return a copy of the dataset that a test may damage."""
    return shutil.copytree(dataset, tmp_path / "dataset")
