"""Stochastic gradient descent, with and without momentum."""

from training.optimizers.rule import Rule, Slot


class Sgd(Rule):
    """row −= learning_rate · gradient."""

    name = "sgd"
    linear = True

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        rows.subtract(gradients if scalars is None else gradients * scalars[0])

    def dense(self):
        """See `Rule.dense`."""
        import keras

        return keras.optimizers.SGD(0.0)


class Momentum(Rule):
    """velocity = momentum · velocity − learning_rate · gradient; row += velocity (Polyak 1964, in Keras's form).

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

    def dense(self):
        """See `Rule.dense`."""
        import keras

        return keras.optimizers.SGD(0.0, momentum=self.constants[0])
