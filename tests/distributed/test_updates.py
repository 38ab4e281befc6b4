"""Tests of every optimizer's update of tables on several workers: close to its definition in float64, and equal to one worker's bit by bit."""

import functools

import numpy as np
import pytest
from updates import CASES, RATES, ROWS, STEPS, batch, dense_gradient, lists_of, rules_on, start

from tests.training.optimizers.definitions import Definition

OPTIONS = {
    "momentum": {"momentum": 0.7},
    "adam": {"beta1": 0.8, "beta2": 0.95},
    "ftrl": {"l1": 0.05, "l2": 0.1, "power": -0.5},
    "rmsprop": {"rho": 0.8},
}

WHOLE = (1, "whole", "TensorFlow")
RULES = [(rule, workers) for workers in (1, 2, 4) for rule in rules_on(workers)]


@functools.cache
def defined(key, rule):
    """Return the tables after all steps by name, computed by the rule's definition."""
    case = CASES[key]
    tables = {name: Definition(rule, start(case, name), **OPTIONS.get(rule, {})) for name in case.tables}
    for step in range(STEPS):
        ids, gradients = batch(case, step)
        for name, table in tables.items():
            rows, by_row = [np.empty(0, np.int32)], [np.empty((0, case.tables[name][1]))]
            for feature, columns in case.columns().items():
                if case.features[feature][0] != name:
                    continue
                for sample, (some, factors) in enumerate(lists_of(case, feature, ids[feature])):
                    rows.append(some)
                    by_row += [gradients[np.newaxis, sample, columns].astype(np.float64) * factor for factor in factors]
            table.step(np.concatenate(rows), np.concatenate(by_row), RATES[step])
    return {name: table.weights for name, table in tables.items()}


def pooled(key, tables):
    """Return the vectors of the first step's samples, `[B, C]` in float64, looked up in tables by name."""
    case, ids = CASES[key], batch(CASES[key], 0)[0]
    found = []
    for name, (table, *_) in case.features.items():
        lists = [(tables[table][some].astype(np.float64) * factors[:, np.newaxis]).sum(axis=0) for some, factors in lists_of(case, name, ids[name])]
        found.append(np.stack(lists))
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize(("key", "where"), [(key, where) for key, case in CASES.items() for where in case.operations])
@pytest.mark.parametrize(("rule", "workers"), RULES)
def test_update_follows_its_definition_for_any_placement(trained, rule, key, where, workers):
    for operations in CASES[key].kinds(where, workers):
        found, alone = (
            trained(count).tables(f"updates/{key}/{rule}/{place}/{kind}/") for count, place, kind in ((workers, where, operations), WHOLE)
        )
        for name, expected in defined(key, rule).items():
            values = found[name]
            assert values.shape == CASES[key].tables[name]
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=2e-5, err_msg=f"{name}, {operations}")
            if where not in ("replicated", "mixed"):  # gradients of replicated tables are summed by slices of the batch
                np.testing.assert_array_equal(values, alone[name], err_msg=f"{name}, {operations}")
        same = trained(1).tables(f"updates/{key}/{rule}/{where}/{operations}/")
        for name, values in same.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{name}, {operations}")
        vectors = np.concatenate(trained(workers).everywhere(f"updates/{key}/{rule}/{where}/{operations}/vectors"))
        np.testing.assert_allclose(vectors, pooled(key, found), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(vectors, trained(1).everywhere(f"updates/{key}/{rule}/{where}/{operations}/vectors")[0])


@pytest.mark.parametrize(("rule", "workers"), RULES)
def test_dense_update_follows_its_definition(trained, rule, workers):
    name = "adagrad" if rule == "rowwise_adagrad" else rule  # row-wise Adagrad updates dense weights as Adagrad does
    expected = Definition(name, start(CASES["one id"], "cat_0"), **OPTIONS.get(rule, {}))
    for step in range(STEPS):
        expected.step(np.arange(ROWS[0]), dense_gradient(step).sum(axis=0, dtype=np.float64), RATES[step])
    for values in trained(workers).everywhere(f"dense updates/{rule}"):
        np.testing.assert_allclose(values, expected.weights, rtol=1e-4, atol=2e-5)
        np.testing.assert_array_equal(values, trained(1).everywhere(f"dense updates/{rule}")[0])
