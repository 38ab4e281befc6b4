"""Every optimizer's update of tables on several workers: against its definition in float64, and bit by bit against one worker."""

import functools

import numpy as np
import pytest
from updates import DIM, FLAGS, OPERATIONS, PLACEMENTS, RATES, ROWS, STEPS, batch, dense_gradient, start

from tests.training.optimizers.definitions import Definition

OPTIONS = {
    "momentum": {"momentum": 0.7},
    "adam": {"beta1": 0.8, "beta2": 0.95},
    "ftrl": {"l1": 0.05, "l2": 0.1, "power": -0.5},
    "rmsprop": {"rho": 0.8},
}


@functools.cache
def defined(rule):
    """The tables after all steps."""
    tables = [Definition(rule, start(table), **OPTIONS.get(rule, {})) for table in range(len(ROWS))]
    for step in range(STEPS):
        ids, gradients = batch(step)
        for number, table in enumerate(tables):
            table.step(ids[number], gradients[:, number], RATES[step])
    return [table.weights for table in tables]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("where", PLACEMENTS)
@pytest.mark.parametrize("rule", FLAGS)
def test_an_update_is_its_definition_wherever_the_columns_are(trained, rule, where, workers):
    for operations in OPERATIONS[where]:
        found, alone = trained(workers).tables(f"updates/{rule}/{where}/{operations}/"), trained(1).tables(f"updates/{rule}/whole/TensorFlow/")
        for number, expected in enumerate(defined(rule)):
            values = found[f"cat_{number}"]
            assert values.shape == (ROWS[number], DIM)
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=2e-5, err_msg=f"cat_{number}, {operations}")
            if where not in ("replicated", "mixed"):  # where replicated, gradients are summed by slices of the batch
                np.testing.assert_array_equal(values, alone[f"cat_{number}"], err_msg=f"cat_{number}, {operations}")
        same = trained(1).tables(f"updates/{rule}/{where}/{operations}/")
        for name, values in same.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{name}, {operations}")


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("rule", FLAGS)
def test_a_dense_update_is_its_definition(trained, rule, workers):
    name = "adagrad" if rule == "rowwise_adagrad" else rule  # whose dense weights are Adagrad's
    expected = Definition(name, start(0), **OPTIONS.get(rule, {}))
    for step in range(STEPS):
        expected.step(np.arange(ROWS[0]), dense_gradient(step).sum(axis=0, dtype=np.float64), RATES[step])
    for values in trained(workers).everywhere(f"dense updates/{rule}"):
        np.testing.assert_allclose(values, expected.weights, rtol=1e-4, atol=2e-5)
        np.testing.assert_array_equal(values, trained(1).everywhere(f"dense updates/{rule}")[0])
