"""Tests of the norms by group of weights: against a slow reference, and that a step that does not measure them is as before."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.distributed import GroupUpdate
from tests.model.tiny_model import TABLES, assert_equal, batch, model_and_trainer, report_of, sample, slow_gradients, weights
from training.norms import GradientSquares, gradient_norms, weight_norms
from training.report import WorkerReport
from utils.distributed import World

FLAGS = ("--log_norms",)


def squares(trainer, tensors, step=0, rate=0.03, measured=True):
    return report_of(trainer, tensors, step, rate, None, measured).squares


def norm(values):
    return math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in values))


# Without the C++ operations, a step that XLA compiles differs in the tables only, as the plain one does.
@pytest.mark.parametrize(
    ("flags", "terms", "native"),
    [
        ((), {}, "1"),
        ((), {}, "0"),
        (("--gradient_slices", "4", "--optimizer", "adam"), {}, "1"),
        (("--xla", "all"), {}, "1"),
        (("--embedding_l2", "0.3", "--mlp_l2", "0.2"), {"embedding_l2": 0.3, "mlp_l2": 0.2}, "0"),
    ],
    ids=str,
)
def test_gradient_norms_equal_the_slow_reference(monkeypatch, native, flags, terms):
    monkeypatch.setenv("DLRM_NATIVE_OPS", native)
    model, trainer = model_and_trainer(*FLAGS, *flags)
    for step in range(3):
        tensors, before = batch(32, seed=step), weights(model)
        _, gradients = slow_gradients(before, *sample(tensors), **terms)
        expected = {
            f"gradient_norm/{group}": norm([value for name, value in gradients.items() if name.startswith(f"{group}/")])
            for group in ("dense", "tables")
        }
        found = gradient_norms(squares(trainer, tensors, step), trainer.groups.names, World())
        assert found == pytest.approx(expected, rel=1e-4)
    assert set(squares(trainer, batch(32), measured=False)) == {0.0}


def test_duplicate_rows_are_summed_before_they_are_squared():
    model, trainer = model_and_trainer(*FLAGS)
    tensors = batch(16)
    ids = np.zeros_like(tensors.host.ids)  # every sample has the same rows
    same = tensors._replace(inputs=tensors.inputs._replace(ids=tensors.inputs.ids * 0), host=tensors.host._replace(ids=ids))
    _, gradients = slow_gradients(weights(model), *sample(same))
    expected = norm([gradients[f"tables/{table.name}/weights"] for table in TABLES])
    assert gradient_norms(squares(trainer, same), trainer.groups.names, World())["gradient_norm/tables"] == pytest.approx(expected, rel=1e-4)


def test_measuring_changes_no_bit_of_the_weights():
    (plain, trainer), (other, measuring) = model_and_trainer("--optimizer", "adagrad"), model_and_trainer("--optimizer", "adagrad", *FLAGS)
    for step in range(4):
        trainer.reporting_step(batch(16, seed=step), step, 0.1, WorkerReport())
        measuring.reporting_step(batch(16, seed=step), step, 0.1, WorkerReport(), step % 2 == 0)
    assert_equal(weights(other), weights(plain))


def test_a_step_without_norms_has_no_operation_for_them():
    _, trainer = model_and_trainer()
    graph = trainer.graph(batch(16).inputs)
    ops = Counter(op.type for op in graph.get_operations())
    assert not {"If", "StatelessIf", "Timestamp"} & ops.keys()
    assert graph.outputs[0].shape == [6] and graph.outputs[0].dtype == "float32"


def test_norms_of_a_skipped_step_are_undefined():
    model, trainer = model_and_trainer(*FLAGS, "--amp", "--loss_scale", "16", dtype="float16")
    for weight in model.dense_weights().values():
        weight.value.assign(np.full(weight.shape, np.inf))
    assert all(map(math.isnan, squares(trainer, batch(16))))


def test_a_loss_scale_does_not_change_the_norms():
    one, other = (model_and_trainer(*FLAGS, "--amp", "--loss_scale", scale, dtype="float16")[1] for scale in ("2", "64"))
    assert squares(one, batch(16)) == pytest.approx(squares(other, batch(16)), rel=0.02)


def test_weight_norms_by_group_and_by_table():
    model, trainer = model_and_trainer()
    values = weights(model)
    by_group, by_table = weight_norms(model, trainer.groups)
    assert by_table == pytest.approx({table.name: norm([values[f"tables/{table.name}/weights"]]) for table in TABLES}, rel=1e-12)
    groups = {
        f"weight_norm/{group}": norm([value for name, value in values.items() if name.startswith(f"{group}/")]) for group in ("dense", "tables")
    }
    assert by_group == pytest.approx(groups, rel=1e-12)


def test_frozen_tables_have_no_group():
    model, trainer = model_and_trainer("--embedding_trainable", "false", *FLAGS)
    assert trainer.groups.names == ("dense",) and len(squares(trainer, batch(16))) == 1
    by_group, by_table = weight_norms(model, trainer.groups)
    assert by_group.keys() == {"weight_norm/dense"} and len(by_table) == len(TABLES)


def test_groups_of_wide_and_deep():
    model, trainer = model_and_trainer(*FLAGS, "--interaction", "wide_and_deep", "--linear_learning_rate", "0.25")
    assert trainer.groups.names == ("dense", "wide/dense", "wide/tables", "tables")
    assert trainer.groups.own_rates(5) == {"wide": 0.25}
    dense, wide, wide_tables, tables = squares(trainer, batch(16))
    assert min(dense, wide, tables) > 0 and wide_tables == 0  # the tiny model has no wide tables
    assert weight_norms(model, trainer.groups)[0].keys() == {f"weight_norm/{name}" for name in trainer.groups.names}


def test_every_worker_builds_as_many_conditions(monkeypatch):
    """Names of exchanges inside a condition contain the number of conditions before; with other names the workers would wait for ever."""
    built = []
    for rank, shards in ((0, True), (1, False)):
        count = Counter()
        monkeypatch.setattr("training.norms.tf.cond", lambda *branches, count=count: count.update(["cond"]) or branches[1]())
        groups = SimpleNamespace(names=("tables",), dense=())
        embedding = SimpleNamespace(world=World(rank, 2), replicated_groups=[])
        squares = GradientSquares(tf.constant(True), groups, embedding)
        squares.add_known(dict, [GroupUpdate(None, None)], [])
        monkeypatch.setattr("training.norms.gradients_of_rows", lambda *gradients: [tf.constant([2.0])])
        (one,) = squares.watching([GroupUpdate(None, None)], 1.0)
        one.watch(["a shard"] if shards else [], None)
        assert squares.total().numpy().tolist() == [4.0 if shards else 0.0]
        built.append(count["cond"])
    assert built == [2, 2]
