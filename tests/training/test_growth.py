"""Tests that a grown model scores old samples as before, and that its new parts can be trained."""

import numpy as np
import pytest
import tensorflow as tf

from dataloading.batches import Batch
from dataloading.feature_spec import Categorical
from model.build import build_model
from model.embedding.placement import single
from model.embedding.table import Table
from run.tables import tables_and_features
from tests.model.tiny_model import NUMERICAL, ROWS, TABLES, batch, config, model_and_trainer, weights
from training.build import build_trainer
from training.device_batch import to_device
from training.features import ModelFeatures, check_features, saved_features
from training.growth import Growth
from training.state import arrays, parts, restore
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import save
from utils.dialects.command_line import parse
from utils.distributed import World


def growth(checkpoint, rows, numerical=NUMERICAL):
    return Growth(checkpoint, saved_features(checkpoint), ModelFeatures(rows, numerical))


def grown_model(checkpoint, rows, numerical, *flags):
    options = config(*flags).model
    placement = single([Table(name, count, options.embedding_dim) for name, count in rows.items()])
    model = build_model(options, placement, World(), len(numerical), seed=9)
    fresh = weights(model)
    restore(model, checkpoint, growth(checkpoint, rows, numerical))
    return model, fresh


def scores(model, names, ids, numerical):
    """Return logits of samples given as ids and numerical values by feature; values of the model's other features are drawn."""
    draw = np.random.default_rng(5)
    size = len(next(iter(ids.values())))
    columns = [ids[name] if name in ids else draw.integers(0, 3, size) for name in model.embedding.names]
    values = [numerical[name] if name in numerical else draw.random(size) for name in names]
    return model((tf.constant(np.stack(values, 1), tf.float32), tf.constant(np.stack(columns, 1), tf.int32))).numpy()


@pytest.mark.parametrize(
    ("rows", "numerical"),
    [
        (ROWS, NUMERICAL),
        (ROWS | {"item": 50}, NUMERICAL),
        (ROWS | {"new": 4}, NUMERICAL),
        ({"new": 4, "page": 3, "other": 6, "user": 9, "item": 5}, NUMERICAL),
        (ROWS, ("fresh", *NUMERICAL, "last")),
        (dict(reversed(ROWS.items())), tuple(reversed(NUMERICAL))),
    ],
    ids=["same", "rows", "feature", "features between, another order", "numerical", "reversed"],
)
def test_old_samples_keep_their_scores(saved, rows, numerical):
    old, checkpoint = saved
    draw = np.random.default_rng(1)
    ids = {table.name: draw.integers(0, table.num_rows, 20) for table in TABLES}
    values = {name: draw.random(20) for name in NUMERICAL}
    new, fresh = grown_model(checkpoint, rows, numerical)
    np.testing.assert_allclose(scores(new, numerical, ids, values), scores(old, NUMERICAL, ids, values), rtol=1e-5, atol=1e-6)
    found = weights(new)
    for name, count in rows.items():
        known = ROWS.get(name, 0)
        table = found[f"tables/{name}/weights"]
        assert table.shape == (count, 4)
        np.testing.assert_array_equal(table[known:], fresh[f"tables/{name}/weights"][known:])
        if known:
            np.testing.assert_array_equal(table[:known], weights(old)[f"tables/{name}/weights"])


CROSS = ("--interaction", "cross", "--cross_layer_projection_dim", "3", "--num_cross_layers", "2")
FULL = ("--interaction", "cross", "--cross_layer_projection_dim", "0", "--num_cross_layers", "2")
PARALLEL, ALONE = (*FULL, "--structure", "parallel"), (*FULL, "--structure", "crossnet", "--top_mlp_dims", "1")
STREAMS = ("--stream1_dims", "6", "--stream2_dims", "4", "--num_heads", "2", "--gate_dims", "3", "--gate1_features", "user")
FINALMLP = ("--interaction", "finalmlp", *STREAMS)
GROWING = {"cross": CROSS, "cat": ("--interaction", "cat"), "full": FULL, "parallel": PARALLEL, "crossnet": ALONE, "finalmlp": FINALMLP}


@pytest.mark.parametrize("flags", GROWING.values(), ids=GROWING)
def test_other_interactions_grow_and_new_weights_learn(tmp_path, flags):
    old, draw = model_and_trainer(*flags)[0], np.random.default_rng(1)
    for weight in old.dense_weights().values():
        weight.assign(weight + 0.1 * draw.normal(size=weight.shape))
    options = config(*flags).model
    model = {"interaction": flags[1], "structure": options.structure, "top_mlp_dims": list(options.top_mlp_dims), "gate_dims": [3]}
    about = {"features": ModelFeatures(ROWS, NUMERICAL).to_dict(), "model": model}
    save(tmp_path, 1, arrays(old), parts(old), about, World())
    rows, numerical = {"new": 4, "page": 3, "other": 6, "user": 9, "item": 5}, ("fresh", *NUMERICAL)
    new, _ = grown_model(Checkpoint(tmp_path), rows, numerical, *flags)
    ids = {table.name: draw.integers(0, table.num_rows, 20) for table in TABLES}
    values = {name: draw.random(20) for name in NUMERICAL}
    np.testing.assert_allclose(scores(new, numerical, ids, values), scores(old, NUMERICAL, ids, values), rtol=1e-5, atol=1e-6)
    inputs = tf.constant(draw.random((20, 3)), tf.float32), tf.constant(draw.integers(0, 3, (20, 5)), tf.int32)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(new(inputs) * tf.constant(draw.random(20), tf.float32))
    first = "stream2/0/kernel" if flags == FINALMLP else "top_mlp/0/kernel"
    by_top = tape.gradient(total, new.dense_weights()[first].value)
    assert np.abs(by_top.numpy()[4:]).sum(axis=1).all()  # the rows after the bottom MLP's output, whose ReLU may give 0


WIDE = ("--interaction", "wide_and_deep", "--optimizer", "rmsprop", "--learning_rate", "0.1")


def wide_and_deep(rows, numerical, *flags, checkpoint=None):
    """Build a Wide & Deep with tables of different widths, grown from a checkpoint if given; return the model, trainer and initial weights."""
    options = parse(["--dataset_type", "synthetic", "--cpu", "--top_mlp_dims", "5,1", *WIDE, *flags], "")
    categorical = [Categorical(name, count, "int32", embedding_dim=2 + len(name)) for name, count in rows.items()]
    tables, features = tables_and_features(options, categorical, list(rows.values()), len(numerical))
    how = checkpoint and Growth(checkpoint, saved_features(checkpoint), ModelFeatures.of(tables, features, numerical))
    model = build_model(options.model, single(how.started(tables) if how else tables, features), World(), len(numerical), 9)
    fresh = weights(model)
    if how:
        restore(model, checkpoint, how)
    return model, build_trainer(options, model, "float32", steps_per_epoch=10), fresh


def columns(draw, rows, numerical, size=20):
    return {name: draw.integers(0, count, size) for name, count in rows.items()}, {name: draw.random(size) for name in numerical}


def logits(model, names, ids, numerical):
    values = np.stack([numerical[name] for name in names], 1)
    return model((tf.constant(values, tf.float32), tf.constant(np.stack(list(ids.values()), 1), tf.int32))).numpy()


def test_wide_and_deep_grows_in_both_parts_and_new_weights_learn(tmp_path):
    old, trainer, _ = wide_and_deep(ROWS, NUMERICAL)
    for step in range(3):
        trainer.step(batch(16, seed=step), step, trainer.learning_rates(step))
    about = {"features": ModelFeatures(ROWS, NUMERICAL).to_dict(), "model": {"interaction": "wide_and_deep"}}
    save(tmp_path, 1, arrays(old), parts(old), about, World())
    rows, numerical = {"new": 4, "page": 3, "other": 6, "user": 9, "item": 5}, ("fresh", *reversed(NUMERICAL))
    model, trainer, fresh = wide_and_deep(rows, numerical, checkpoint=Checkpoint(tmp_path))
    ids, values = columns(np.random.default_rng(1), ROWS | {"new": 4, "other": 6}, numerical)
    before = logits(old, NUMERICAL, {name: ids[name] for name in ROWS}, values)
    np.testing.assert_allclose(logits(model, numerical, {name: ids[name] for name in rows}, values), before, rtol=1e-5, atol=1e-6)
    found = weights(model)
    for part in ("", "_wide"):
        np.testing.assert_array_equal(found[f"tables/user{part}/weights"][:7], weights(old)[f"tables/user{part}/weights"])
        np.testing.assert_array_equal(found[f"tables/user{part}/weights"][7:], fresh[f"tables/user{part}/weights"][7:])
    assert not found["tables/new_wide/weights"].any() and found["tables/new/weights"].all()
    numbers = np.stack([values[name] for name in numerical], 1).astype(np.float32)
    labels, all_real = np.arange(20, dtype=np.uint8) % 2, np.ones(20, np.float32)
    both = to_device(Batch(numbers, np.stack([ids[name] for name in rows]).astype(np.int32), np.empty((0, 20), np.int32), labels, all_real, 20))
    for step in range(3):
        trainer.step(both, step, trainer.learning_rates(step))
    after = weights(model)
    for name in ("tables/new_wide/weights", "tables/other_wide/weights", "tables/new/weights", "tables/other/weights"):
        assert (after[name] != found[name]).any(), name
    kernel = after["dense/deep/0/kernel"]  # its rows read 3 numbers, the first of them new, and then the 5 columns of `new`
    assert after["dense/wide/0/kernel"][0] != 0 and kernel[0].any() and kernel[3:8].any() and not found["dense/deep/0/kernel"][3:8].any()


def test_new_wide_and_deep_feature_in_an_old_table_is_an_error(tmp_path):
    old, *_ = wide_and_deep(ROWS, NUMERICAL)
    about = {"features": ModelFeatures(ROWS, NUMERICAL).to_dict(), "model": {"interaction": "wide_and_deep"}}
    save(tmp_path, 1, arrays(old), parts(old), about, World())
    features = ModelFeatures(ROWS | {"seen": 5}, NUMERICAL, {"seen": {"table": "item"}})
    with pytest.raises(CheckpointError, match="the new feature seen is looked up in table item, whose rows of the linear part would change"):
        Growth(Checkpoint(tmp_path), saved_features(Checkpoint(tmp_path)), features)


def test_a_shared_tables_new_feature_finds_its_rows(saved):
    features = ModelFeatures(ROWS | {"seen": 5}, NUMERICAL, {"seen": {"table": "item", "hotness": 3}})
    found = Growth(saved[1], saved_features(saved[1]), features)
    assert found.new_features == ("seen",) and not found.is_new("item") and not found.new_rows


def test_another_table_or_pooling_is_refused(saved):
    with pytest.raises(CheckpointError, match="feature page was looked up in table page, the dataset says item"):
        Growth(saved[1], saved_features(saved[1]), ModelFeatures(ROWS | {"page": 5}, NUMERICAL, {"page": {"table": "item"}}))
    with pytest.raises(CheckpointError, match="the vectors of feature page were pooled by sum, the dataset says mean"):
        check_features(saved[1], ModelFeatures(ROWS, NUMERICAL, {"page": {"hotness": 2, "pooling": "mean"}}))
    with pytest.raises(CheckpointError, match="no bottom MLP to add new ones"):
        Growth(saved[1], ModelFeatures(ROWS, ()), ModelFeatures(ROWS, NUMERICAL))


def test_description_lists_new_features_and_rows(saved):
    found = growth(saved[1], {"new": 4, **ROWS, "item": 50}, ("fresh", *NUMERICAL))
    assert str(found) == "new features: fresh, new; new rows: item +45"


@pytest.mark.parametrize(
    ("rows", "numerical", "message"),
    [
        ({"user": 7, "item": 5}, NUMERICAL, "has feature page, which the dataset lacks"),
        (ROWS, NUMERICAL[:1], "has feature num_1, which the dataset lacks"),
        (ROWS | {"user": 6}, NUMERICAL, "the table of feature user has 7 rows, the dataset 6"),
        ({"user": 7, "item": 5, "num_0": 9}, ("page", "num_1"), "feature page was categorical and is numerical in the dataset"),
    ],
)
def test_removed_features_or_rows_are_an_error(saved, rows, numerical, message):
    with pytest.raises(CheckpointError, match=message):
        growth(saved[1], rows, numerical)
