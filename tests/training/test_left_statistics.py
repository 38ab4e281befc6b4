"""Tests of the moving statistics of batch normalisation at the edges: skipped steps, slices without a real sample, a single real sample."""

import numpy as np
import pytest

import dlrm
from tests.cli.runs import write_dataset
from tests.model.tiny_model import assert_equal, batch, model_and_trainer, report_of, weights
from utils.checkpoint.reading import Checkpoint

HALF = ("--amp", "--amp_dtype", "float16", "--loss_scale", "dynamic")
WHOLE = ("--dense_update_rows", "9", "--table_l2", "0.1", "--optimizer", "adam")


def values_of(model, trainer):
    """Return all that a step changes: weights, moving statistics, and slots without the loss scale's."""
    found = weights(model)
    assert any(name.endswith("moving_variance") for name in found)
    slots = {name: variable.numpy() for name, variable in trainer.groups.slots().items() if name != "loss_scale"}
    return found | slots | {f"{local.name}/{kind}": slot.numpy() for local in model.embedding.shards for kind, slot in local.slots.items()}


def test_a_skipped_step_leaves_statistics_weights_and_slots():
    """The loss scale is far too high, so gradients overflow; then it falls until they do not, and all of it moves."""
    model, trainer = model_and_trainer("--batch_norm", *HALF, *WHOLE, dtype="float16")
    trainer.groups.slots()["loss_scale"].assign([2.0**24, 0.0])
    before, skipped = values_of(model, trainer), 0
    while not report_of(trainer, batch(16, seed=skipped), skipped, 0.01).finite:
        skipped += 1
        assert_equal(values_of(model, trainer), before)
        assert skipped < 24
    assert skipped >= 2
    after = values_of(model, trainer)
    assert all((after[name] != values).any() for name, values in before.items() if "moving" in name or name.endswith("kernel"))


@pytest.mark.parametrize("flags", [(), ("--dropout", "0.3", *WHOLE)], ids=["plain", "whole"])
def test_slices_without_a_real_sample_and_a_single_real_sample(flags):
    model, trainer = model_and_trainer("--batch_norm", "--gradient_slices", "8", *flags)
    for step, real in enumerate((16, 3, 1, 2)):  # of 8 slices of 2 rows, 8, 2, 1 and 1 have a real sample
        before = values_of(model, trainer)
        report = report_of(trainer, batch(16, real, seed=step), step, 0.1)
        assert report.finite and np.isfinite(report.loss)
        for name, values in values_of(model, trainer).items():
            assert np.isfinite(values).all(), name
            if "moving" in name:
                assert (values == before[name]).all() == (real == 1), (name, real)
                assert "variance" not in name or (values >= 0).all()


def test_a_run_whose_last_batch_has_one_real_sample(tmp_path):
    """The epoch has one row more than a batch. What the padded step leaves as it is comes from its checkpoints."""
    data = write_dataset(tmp_path / "data", rows={"train": 65, "test": 40})
    flags = {"embedding_dim": 4, "bottom_mlp_dims": "8,4", "top_mlp_dims": "8,1", "optimizer": "adam", "learning_rate": 0.01, "warmup_steps": 0}
    saving = {"save_checkpoint_path": tmp_path / "c", "checkpoint_every_steps": 1, "log_path": ""}
    result = dlrm.train(dataset_path=data, cpu=True, batch_norm=True, batch_size=64, gradient_slices=8, **flags, **saving)
    assert result.figures["steps"] == 2 and result.figures["samples"] == 65 and np.isfinite(result.figures["train_loss"])
    before, after = (Checkpoint(tmp_path / f"c/step-0000000{step}") for step in (1, 2))
    for name in before.names(""):
        assert np.isfinite(after.read(name)).all(), name
        assert not ("moving" in name and (after.read(name) != before.read(name)).any()), name
    assert (after.read("dense/top_mlp/1/bias") != before.read("dense/top_mlp/1/bias")).all()
    assert before.read("dense/top_mlp/0/moving_mean").any()
