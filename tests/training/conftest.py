"""Fixture: a checkpoint of the tiny model after one step."""

import pytest

from tests.model.tiny_model import NUMERICAL, ROWS, batch, model_and_trainer
from training.features import ModelFeatures
from training.state import arrays, parts
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import save
from utils.distributed import World


@pytest.fixture
def saved(tmp_path):
    """Train the tiny model for one step and save it; return the model and its Checkpoint."""
    model, trainer = model_and_trainer("--optimizer", "adam")
    trainer.step(batch(16), 0, 0.1)
    save(tmp_path, 1, arrays(model), parts(model), {"features": ModelFeatures(ROWS, NUMERICAL).to_dict()}, World())
    return model, Checkpoint(tmp_path)
