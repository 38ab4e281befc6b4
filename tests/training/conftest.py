"""Fixture: a checkpoint of the tiny model after one step."""

import shutil

import pytest

from tests.model.tiny_model import NUMERICAL, ROWS, batch, model_and_trainer
from training.features import ModelFeatures
from training.state import arrays, parts
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import save
from utils.distributed import World


@pytest.fixture(scope="session")
def saved_once(tmp_path_factory):
    """Train the tiny model for one step and save it; return the model and the folder."""
    folder = tmp_path_factory.mktemp("saved")
    model, trainer = model_and_trainer("--optimizer", "adam")
    trainer.step(batch(16), 0, 0.1)
    save(folder, 1, arrays(model), parts(model), {"features": ModelFeatures(ROWS, NUMERICAL).to_dict()}, World())
    return model, folder


@pytest.fixture
def saved(saved_once, tmp_path):
    """Return the trained model, which no test may change, and its Checkpoint in a copy of the folder, which a test may damage."""
    model, folder = saved_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return model, Checkpoint(tmp_path)
