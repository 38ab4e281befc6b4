"""Stochastic gradient descent, with and without momentum."""

from model.native import DenseRule
from training.optimizers.rule import Rule, Slot


class Sgd(Rule):
    """Plain gradient descent: row −= learning_rate · gradient."""

    name = "sgd"
    linear = True

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        rows.subtract(gradients if scalars is None else gradients * scalars[0])

    def dense_update(self):
        """See `Rule.dense_update`."""
        return DenseRule(self.name, (), ())

    def dense(self):
        """See `Rule.dense`."""
        import keras

        return keras.optimizers.SGD(0.0)


class Momentum(Rule):
    """Gradient descent with momentum (Polyak 1964, in Keras's form): velocity = momentum · velocity − learning_rate · gradient; row += velocity.

    A row that a batch does not touch neither moves nor loses velocity.
    """

    name = "momentum"
    slots = (Slot("velocity"),)

    def __init__(self, momentum: float):
        self.constants = (momentum,)

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        velocity = self.constants[0] * rows.slot(0) - gradients * scalars[0]
        rows.set_slot(0, velocity)
        rows.subtract(-velocity)

    def dense_update(self):
        """See `Rule.dense_update`."""
        return DenseRule(self.name, ("momentum",), self.constants)

    def dense(self):
        """See `Rule.dense`."""
        import keras

        return keras.optimizers.SGD(0.0, momentum=self.constants[0])
