"""Tests of a checkpoint that commit 9546abf wrote (format 2): it loads bit for bit, and a run resumed from it ends as it did with that commit.

`checkpoint_9546abf.tar.gz` is the checkpoint that the commit saved after 12 of 24 steps of FLAGS; `continued_9546abf.npz` holds the commit's weights
after all 24. If DLRM_OLD_TREE is set to a checkout of the commit with a `.venv` and its C++ operations built, the continuation is compared with a run
of that checkout bit by bit instead.
"""

import os
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from run.tables import tables_of
from tests.archives import unpack
from utils.checkpoint.reading import Checkpoint
from utils.dialects.command_line import parse
from utils.distributed import World

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROWS = {"cat_0": 50, "cat_1": 7, "cat_2": 300}
FLAGS = (
    "--dataset_type synthetic --cpu --synthetic_dataset_cardinalities 50,7,300 --synthetic_dataset_num_numerical_features 3 "
    "--synthetic_dataset_train_batches 12 --synthetic_dataset_valid_batches 2 --embedding_dim 8 --bottom_mlp_dims 16,8 --top_mlp_dims 16,1 "
    "--batch_size 1024 --valid_batch_size 128 --epochs 2 --optimizer adam --learning_rate 0.01 --warmup_steps 0"
).split()


@pytest.fixture
def older(tmp_path):
    """Unpack the older checkpoint; return its folder."""
    with tarfile.open(FIXTURES / "checkpoint_9546abf.tar.gz") as archive:
        unpack(archive, tmp_path / "older")
    return tmp_path / "older"


def test_older_checkpoint_loads_bit_for_bit(older):
    from model.build import build_model
    from model.embedding.placement import single
    from training.build import build_trainer
    from training.state import restore, restore_optimizer

    config, names = parse(FLAGS, ""), list(ROWS)
    model = build_model(config.model, single(tables_of(config, names, ROWS.values())), World(), num_numerical=3, seed=1)
    trainer, checkpoint = build_trainer(config, model, "float32"), Checkpoint(older)
    restore(model, checkpoint)
    restore_optimizer(model, trainer.groups, checkpoint)
    for name, weight in model.dense_weights().items():
        np.testing.assert_array_equal(weight.value.numpy(), checkpoint.read(f"dense/{name}"))
    for local in model.embedding.shards:
        for kind, variable in {"weights": local.weights, **local.slots}.items():
            np.testing.assert_array_equal(variable.numpy(), checkpoint.read(f"tables/{local.name}/{kind}"))
    slots = trainer.groups.slots()
    numbers = sorted(
        int(name.removeprefix("optimizer/")) for name in checkpoint.names("optimizer/")
    )  # in Keras's order: all slots of a weight, then those of the next
    assert list(slots) == [f"{name}/{slot}" for name in model.dense_weights() for slot in ("momentum", "velocity")]
    for number, variable in zip(numbers, slots.values(), strict=True):
        np.testing.assert_array_equal(variable.numpy(), checkpoint.read(f"optimizer/{number}"))


def arrays(folder):
    checkpoint = Checkpoint(folder)
    return {name: checkpoint.read(name) for name in (*checkpoint.names("dense/"), *checkpoint.names("tables/"))}


def test_resumed_run_ends_as_with_the_older_commit(older, run, tmp_path):
    assert run(*FLAGS, "--restore_checkpoint_path", str(older), "--save_checkpoint_path", str(tmp_path / "here")).code == 0
    found = arrays(tmp_path / "here")
    with np.load(FIXTURES / "continued_9546abf.npz") as stored:
        for name in stored.files:
            np.testing.assert_allclose(found[name], stored[name], rtol=0, atol=1e-5, err_msg=name)


def test_resumed_run_matches_the_older_commit_bit_for_bit(older, run, tmp_path):
    tree = os.environ.get("DLRM_OLD_TREE")
    if not tree:
        pytest.skip("DLRM_OLD_TREE names no checkout of commit 9546abf")
    go_on = [*FLAGS, "--restore_checkpoint_path", str(older), "--save_checkpoint_path"]
    subprocess.run([".venv/bin/python", "dlrm.py", *go_on, str(tmp_path / "there"), "--log_path", ""], cwd=tree, check=True, timeout=300)
    assert run(*go_on, str(tmp_path / "here")).code == 0
    found, expected = arrays(tmp_path / "here"), arrays(tmp_path / "there")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
