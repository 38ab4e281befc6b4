"""FTRL: follow the regularised leader."""

from training.optimizers.rule import Rule, Slot

_ROOT = -0.5  # with this power sqrt replaces pow: it is exact, and the same in C++


class Ftrl(Rule):
    """FTRL-Proximal (McMahan et al., KDD 2013, algorithm 1), in Keras's form with an initial accumulator of 0.1.

    n' = n + gradient²; z += gradient − (n'^−power − n^−power) / learning_rate · row;
    row = (clip(z, −l1, l1) − z) / (n'^−power / learning_rate + 2·l2).
    z starts at 0, so little of a row's initial value remains after its first update.

    Args:
        l1, l2: strengths of the regularisation, 0 or more.
        power: the power of the accumulator in the learning rate, 0 or less.
    """

    name = "ftrl"
    slots = (Slot("accumulator", 0.1), Slot("linear"))
    divides_by_rate = True

    def __init__(self, l1: float, l2: float, power: float):
        self._l1, self._l2, self._power = l1, l2, power
        self.constants = (l1, 2 * l2)
        self.native = power == _ROOT

    def _root(self, accumulator):
        import tensorflow as tf

        return tf.sqrt(accumulator) if self._power == _ROOT else tf.pow(accumulator, -self._power)

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        import tensorflow as tf

        rate, (l1, twice_l2) = scalars[0], self.constants
        weights, before, linear = rows.weights(), rows.slot(0), rows.slot(1)
        total = before + tf.square(gradients)
        root = self._root(total)
        leader = linear + (gradients - (root - self._root(before)) / rate * weights)
        changed = (tf.clip_by_value(leader, -l1, l1) - leader) / (root / rate + twice_l2)
        # The update divides by the rate, so a step with rate 0 must leave weights and slots unchanged.
        rows.set_slot(0, tf.where(rate > 0, total, before))
        rows.set_slot(1, tf.where(rate > 0, leader, linear))
        rows.set_weights(tf.where(rate > 0, changed, weights))

    def dense(self):
        """See `Rule.dense`."""
        import keras

        options = {"l1_regularization_strength": self._l1, "l2_regularization_strength": self._l2, "learning_rate_power": self._power}
        return keras.optimizers.Ftrl(0.0, **options)
