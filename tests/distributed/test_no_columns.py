"""Tests of dlrm.py where one worker holds no column of a sharded table: all tables are replicated but one of width 1."""

import json

import numpy as np
import pytest
from launching import in_process

from tests.distributed.resident import do_in_turn
from utils.checkpoint.reading import Checkpoint

FLAGS = """--dataset_type synthetic --cpu --synthetic_dataset_cardinalities 50,4 --synthetic_dataset_num_numerical_features 2 --embedding_dim 1
    --bottom_mlp_dims 4,1 --top_mlp_dims 4,1 --batch_size 16 --valid_batch_size 16 --gradient_slices 8 --data_parallel_threshold 4
    --synthetic_dataset_train_batches 12 --synthetic_dataset_valid_batches 3 --optimizer adam --learning_rate 0.01 --warmup_steps 0
    --checkpoint_every_steps 5""".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train, evaluate and save checkpoints on one worker and on two; return the folders by number of workers."""
    found = {}
    for workers in (1, 2):
        folder = found[workers] = tmp_path_factory.mktemp(f"on-{workers}")
        flags = (*FLAGS, "--save_checkpoint_path", folder / "checkpoint", "--log_path", folder / "log.json")
        if workers == 1:
            in_process(*flags)
            continue
        result = do_in_turn(workers, [flags])
        assert result.code == 0, result.err
    return found


def test_training_ends_with_the_weights_of_one_worker(trained):
    one, two = (Checkpoint(folder / "checkpoint") for folder in trained.values())
    assert one.step == two.step == 12
    assert set(one.names("")) == set(two.names(""))
    for name in one.names(""):
        np.testing.assert_array_equal(two.read(name), one.read(name), err_msg=name)


def test_evaluation_gives_the_figures_of_one_worker(trained):
    one, two = (json.loads((folder / "log.json").read_text().splitlines()[-1].removeprefix("DLLL "))["data"] for folder in trained.values())
    assert (two["auc"], two["validation_loss"]) == (one["auc"], one["validation_loss"])
    assert two["samples"] == 12 * 16
