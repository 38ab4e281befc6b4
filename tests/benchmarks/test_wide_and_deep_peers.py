"""The peers of `benchmarks.train_step --model wide_and_deep` train the same model on the same batches."""

import numpy as np
import pytest

from benchmarks.options import parse
from benchmarks.train_step import StepOptions
from benchmarks.wide_and_deep_peers import KerasWideAndDeep
from benchmarks.workload import Workload, options
from training.build import build_trainer
from training.device_batch import to_device
from training.state import arrays, parts
from utils.distributed import World

ROWS = (5, 3, 4)
DEEP_RATE, WIDE_RATE, STEPS = 0.001, 0.02, 4


def workload(hotness=(1,)):
    """Make tables so small that every batch touches every row: Keras's dense FTRL sets the rows that a batch does not touch to 0."""
    flags = ["--interaction", "wide_and_deep", "--embedding_dim", "4,2,3", "--top_mlp_dims", "16,8,1", "--batch_size", 128, "--cpu"]
    flags += ["--optimizer", "rmsprop", "--rho", 0.5, "--learning_rate", DEEP_RATE, "--linear_learning_rate", WIDE_RATE]
    return Workload(ROWS, options(*flags), hotness=hotness)


def weights(model):
    shapes = arrays(model, None)
    return {part.array: np.array(part.read(0, shapes[part.array].shape[0])) for part in parts(model, None)}


@pytest.mark.parametrize(("compiled", "hotness"), [(False, (1, 2, 1)), (True, (1,))])
def test_keras_peer_trains_like_the_project(compiled, hotness):
    work = workload(hotness)
    model, peer = work.build("float32", World()), KerasWideAndDeep(work, "float32")
    trainer, step = build_trainer(work.config, model, "float32"), peer.step(compiled)
    assert peer.weights().keys() == weights(model).keys()
    for name, values in weights(model).items():
        peer.weights()[name].assign(values)
    for number, batch in enumerate(map(to_device, work.batches("uniform", STEPS))):
        loss = trainer.step(batch, number, (DEEP_RATE, WIDE_RATE, WIDE_RATE, DEEP_RATE))
        assert float(step(batch.inputs)) == pytest.approx(float(loss), abs=1e-6)
    for name, values in weights(model).items():
        np.testing.assert_allclose(values, peer.weights()[name].numpy(), rtol=0, atol=2e-6, err_msg=name)


def test_the_workload_counts_deep_and_wide_columns():
    work = workload()
    assert work.widths == (4, 2, 3, 1, 1, 1)
    assert work.layers == [(13 + 9, 16), (16, 8), (8, 1), (13, 1)]


def test_default_model_is_the_published_one():
    chosen = parse(StepOptions, "", ["--model", "wide_and_deep", "--batch_size", "131072"])
    work = chosen.workload(chosen.rows, "float32")
    assert (len(work.rows), sum(work.rows), sum(work.widths)) == (13, 672_304, 976 + 13)
    assert work.layers == [(989, 1024), *[(1024, 1024)] * 4, (1024, 1), (13, 1)]
    options = work.config.optimizer
    rates = work.config.schedule.learning_rate, options.linear_learning_rate
    assert (options.optimizer, options.rho, *rates) == ("rmsprop", 0.5, 0.00012, 0.02)
    assert (work.config.regularisation.dropout, work.batch_size) == (0.1, 131_072)


def test_requested_tables_replace_the_published_ones():
    chosen = parse(StepOptions, "", ["--model", "wide_and_deep", "--num_tables", "2", "--cardinality", "9", "--embedding_dim", "4"])
    work = chosen.workload(chosen.rows, "float32")
    assert (work.rows, work.widths) == ((9, 9), (4, 4, 1, 1))
