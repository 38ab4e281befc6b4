"""RMSprop whose rows catch up on the decay that they missed while untouched."""

import numpy as np

from model.native import DenseRule
from training.optimizers.rule import EPSILON, Rule, Slot

_STEPS = 24  # bits of a step's number, as many as float32 holds exactly; beyond, the count starts again at 0


class Rmsprop(Rule):
    """RMSprop (Hinton 2012) in Keras's form.

    velocity = rho · velocity + (1 − rho) · gradient²; row −= learning_rate · gradient / sqrt(velocity + epsilon).

    With `outside_root` it divides by sqrt(velocity) + epsilon, like Keras's legacy optimizers (those of `tf.keras` up to TensorFlow 2.10) and
    PyTorch. With an epsilon of 1e-7 the two forms differ where gradients are below about 3e-4, as gradients of a large batch's mean are: there, only
    the `outside_root` form still divides by their magnitude.

    When a row is touched after k − 1 steps without a touch, its velocity decays by rho^k. So rows and velocities equal those of the dense rule, whose
    gradient is zero in between. Each row stores the step of its last touch.
    """

    name = "rmsprop"
    slots = (Slot("velocity"), Slot("touched", per_row=True))

    def __init__(self, rho: float, outside_root: bool = False, epsilon: float = EPSILON):
        self._rho, self._outside_root, self._epsilon = rho, outside_root, epsilon
        self.constants = (rho, 1 - rho, *((0.0, epsilon) if outside_root else (epsilon, 0.0)))

    def scalars(self, learning_rate, step):
        """Return the learning rate and the number of the step, counted from 1, modulo 2^24."""
        import tensorflow as tf

        return tf.stack([learning_rate, tf.cast((step + 1) % (1 << _STEPS), tf.float32)])

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        import tensorflow as tf

        rate, now = scalars[0], scalars[1]
        _, rest, inside, outside = self.constants
        velocity = self._decay(now, rows.slot(1)) * rows.slot(0) + rest * tf.square(gradients)
        rows.set_slot(0, velocity)
        rows.set_slot(1, tf.fill([tf.shape(gradients)[0], 1], now))
        root = tf.sqrt(velocity) + outside if self._outside_root else tf.sqrt(velocity + inside)
        rows.subtract(rate * gradients / root)

    def _decay(self, now, touched):
        """Return rho^k for rows last touched k steps ago, by repeated squaring, which gives the same bits as C++.

        On a GPU, where results are not bit-reproducible anyway, one power suffices.
        """
        import tensorflow as tf

        from model.compilation import on_gpu

        if on_gpu():
            return tf.pow(np.float32(self._rho), tf.math.floormod(now - touched, np.float32(1 << _STEPS)))
        steps = tf.cast(now - touched, tf.int32) % (1 << _STEPS)
        power, decay = np.float32(self._rho), tf.ones_like(touched)
        for bit in range(_STEPS):
            is_set = tf.bitwise.bitwise_and(tf.bitwise.right_shift(steps, bit), 1) == 1
            decay = tf.where(is_set, decay * power, decay)
            power = power * power
        return decay

    def dense_update(self):
        """See `Rule.dense_update`."""
        return DenseRule(self.name, ("velocity",), self.constants)

    def dense(self):
        """See `Rule.dense`."""
        import keras

        from training.optimizers.legacy_rmsprop import LegacyRMSprop

        return (LegacyRMSprop if self._outside_root else keras.optimizers.RMSprop)(0.0, rho=self._rho, epsilon=self._epsilon)
