"""Tests of training on weighted samples: weight 2 is a sample twice, weight 0 is none, and a common factor has no effect."""

import numpy as np
import pytest

from dataloading.batches import BatchReader
from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from model.build import build_model
from model.embedding.placement import single
from run.tables import tables_and_features
from tests.model import tiny_model
from tests.training.weighted_rows import weighted_spec
from training.build import build_trainer
from training.device_batch import to_device
from utils.dialects.command_line import parse
from utils.distributed import World

ROWS, STEPS = 24, 3
CATEGORICAL = (Categorical("user", 40, "int8"), Categorical("item", 9, "int8"), Categorical("tags", 11, "int8", hotness=3, pooling="mean"))
KINDS = {
    "sgd": (),
    "momentum": ("--optimizer", "sgd", "--momentum", "0.9"),
    "adagrad": ("--optimizer", "adagrad"),
    "row-wise adagrad": ("--optimizer", "rowwise_adagrad"),
    "adam": ("--optimizer", "adam"),
    "rmsprop": ("--optimizer", "rmsprop"),
    "ftrl": ("--optimizer", "ftrl"),
    "batch norm": ("--batch_norm",),
    "regularised": ("--embedding_l2", "0.01", "--mlp_l2", "0.01"),
    "whole tables": ("--optimizer", "adam", "--dense_update_rows", "100000"),
    "lists of deepfm": ("--interaction", "fm"),
}


def trained(folder, flags, rows, weights=None):
    """Train `STEPS` steps on all rows as one batch; return the weights, slots and moving statistics before and after, and the losses."""
    spec = weighted_spec(CATEGORICAL, 2) if weights is not None else FeatureSpec(**vars(weighted_spec(CATEGORICAL, 2)) | {"weight": None})
    numerical, ids, labels = rows
    with TfRawWriter(folder, spec, ("train",)) as writer:
        writer.append("train", numerical, ids, labels, None, None if weights is None else np.asarray(weights, np.float32))
        split = TfRawSplit(writer.publish({}), "train")
    rates = ("--learning_rate", "0.1", "--warmup_steps", "0")
    options = parse(["--dataset_type", "synthetic", "--cpu", *tiny_model.DIMS, *rates, *flags], "")
    tables, features = tables_and_features(options, CATEGORICAL, [one.cardinality for one in CATEGORICAL], 2)
    model = build_model(options.model, single(tables, features), World(), 2, 3)
    trainer = build_trainer(options, model, "float32")
    before, losses = state(model), []
    batch = to_device(next(BatchReader(split, len(labels), for_training=True).epoch()))
    for step in range(STEPS):
        losses.append(float(trainer.step(batch, step, trainer.learning_rates(step))))
    return before, state(model), losses


def state(model):
    return tiny_model.weights(model) | {name: value.numpy() for name, value in model.statistics().items()}


def drawn(count, seed=0):
    draw = np.random.default_rng(seed)
    ids = [draw.integers(0, one.cardinality // 2, (count, one.hotness) if one.hotness > 1 else count).astype(np.int8) for one in CATEGORICAL]
    return draw.random((count, 2)).astype(np.float16), ids, draw.integers(0, 2, count).astype(np.uint8)


def taken(rows, places):
    numerical, ids, labels = rows
    return numerical[places], [column[places] for column in ids], labels[places]


def assert_trained_alike(found, expected):
    assert found[2] == pytest.approx(expected[2], rel=2e-6)
    tiny_model.assert_close(found[1], expected[1], rtol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_2_is_the_sample_twice_and_weight_0_no_sample_that_touches_no_row(tmp_path, kind):
    """The last row of each table is looked up by samples of weight 0 only: it and its slots keep their bits."""
    numerical, ids, labels = drawn(ROWS)
    weights = np.random.default_rng(1).integers(0, 4, ROWS)
    weights[:2], weights[-1] = 0, 0
    shown = [
        np.where((weights > 0).reshape(-1, *[1] * (column.ndim - 1)), column, one.cardinality - 1)
        for column, one in zip(ids, CATEGORICAL, strict=True)
    ]
    noisy = np.where(weights[:, None] > 0, numerical, np.float16(60000))
    found = trained(tmp_path / "weighted", KINDS[kind], (noisy, shown, labels), weights)
    assert_trained_alike(found, trained(tmp_path / "repeated", KINDS[kind], taken((numerical, ids, labels), np.repeat(np.arange(ROWS), weights))))
    assert any(np.abs(found[0][name] - value).max() > 1e-3 for name, value in found[1].items())
    for name in found[1]:
        if name.startswith("tables/") and found[1][name].ndim > 1:
            np.testing.assert_array_equal(found[1][name][-1], found[0][name][-1], err_msg=name)


def test_samples_of_weight_0_leave_the_others_as_they_weigh(tmp_path):
    rows, weights = drawn(ROWS), np.random.default_rng(2).choice([0.0, 1.0, 2.0], ROWS)
    found = trained(tmp_path / "weighted", (), rows, weights)
    assert_trained_alike(found, trained(tmp_path / "left out", (), taken(rows, weights > 0), weights[weights > 0]))


def test_a_common_factor_of_the_weights_has_no_effect(tmp_path):
    rows, weights = drawn(ROWS), np.random.default_rng(3).choice([0.0, 0.5, 4.0], ROWS)
    expected = trained(tmp_path / "plain", KINDS["adam"], rows, weights)
    for factor in (1e-40, 1e-30, 0.25, 1e30):
        found = trained(tmp_path / f"{factor}", KINDS["adam"], rows, weights * factor)
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-5, err_msg=f"{factor}")


def test_weights_of_one_have_the_bits_of_no_weights(tmp_path):
    rows = drawn(ROWS)
    found, plain = trained(tmp_path / "weighted", (), rows, np.ones(ROWS)), trained(tmp_path / "plain", (), rows)
    assert found[2] == plain[2]
    tiny_model.assert_equal(found[1], plain[1])
