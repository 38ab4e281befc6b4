"""Definitions of the optimizers' rules as in their docstrings or papers, in float64 and row by row; the reference for the fast ones."""

import numpy as np

EPSILON = 1e-7


class Definition:
    """A table updated by a rule: weights `[V, D]` and the rule's state; each step updates the given rows once."""

    def __init__(self, name, weights, **options):
        self.weights = np.array(weights, np.float64)
        self._name, self._options, self._epsilon = name, options, options.get("epsilon", EPSILON)
        start = {"adagrad": 0.1, "rowwise_adagrad": 0.1, "ftrl": 0.1}.get(name, 0.0)
        self.first, self.second = np.full_like(self.weights, start), np.zeros_like(self.weights)
        self.count = 0  # steps done

    def step(self, ids, gradients, rate):
        """Update by the gradients `[n, D]` of the ids `[n]`."""
        self.count += 1
        if self._name == "rmsprop":  # as in the dense rule, every row's average decays
            self.first *= self._options["rho"]
        for row in np.unique(ids):
            getattr(self, f"_{self._name}")(row, np.asarray(gradients, np.float64)[np.asarray(ids) == row].sum(axis=0), rate)

    def _sgd(self, row, g, rate):
        self.weights[row] -= rate * g

    def _momentum(self, row, g, rate):
        self.first[row] = self._options["momentum"] * self.first[row] - rate * g
        self.weights[row] += self.first[row]

    def _adagrad(self, row, g, rate):
        self.first[row] += g**2
        self.weights[row] -= rate * g / np.sqrt(self.first[row] + self._epsilon)

    def _rowwise_adagrad(self, row, g, rate):
        self.first[row] += np.mean(g**2)
        self.weights[row] -= rate * g / np.sqrt(self.first[row] + self._epsilon)

    def _adam(self, row, g, rate):
        beta1, beta2 = self._options["beta1"], self._options["beta2"]
        self.first[row] = beta1 * self.first[row] + (1 - beta1) * g
        self.second[row] = beta2 * self.second[row] + (1 - beta2) * g**2
        correction = np.sqrt(1 - beta2**self.count) / (1 - beta1**self.count)
        self.weights[row] -= rate * correction * self.first[row] / (np.sqrt(self.second[row]) + self._epsilon)

    def _ftrl(self, row, g, rate):
        if rate == 0:
            return
        l1, l2, power = self._options["l1"], self._options["l2"], -self._options["power"]
        total = self.first[row] + g**2
        self.second[row] += g - (total**power - self.first[row] ** power) / rate * self.weights[row]
        self.first[row], z = total, self.second[row]
        self.weights[row] = np.where(np.abs(z) <= l1, 0, (np.sign(z) * l1 - z) / (total**power / rate + 2 * l2))

    def _rmsprop(self, row, g, rate):
        self.first[row] += (1 - self._options["rho"]) * g**2
        outside = self._options.get("outside_root", False)
        self.weights[row] -= rate * g / (np.sqrt(self.first[row]) + self._epsilon if outside else np.sqrt(self.first[row] + self._epsilon))
