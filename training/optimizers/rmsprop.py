"""RMSprop, with the decay that an untouched row misses made up for."""

import numpy as np

from training.optimizers.rule import EPSILON, Rule, Slot

_STEPS = 24  # bits of a step's number: float32 holds so many; the count starts again beyond


class Rmsprop(Rule):
    """velocity = rho · velocity + (1 − rho) · gradient²; row −= learning_rate · gradient / sqrt(velocity + 1e-7) (Hinton 2012, in Keras's form).

    With `outside_root` it divides by sqrt(velocity) + 1e-7, as Keras's legacy optimizers (those of `tf.keras` up to TensorFlow 2.10) and PyTorch do.
    The forms differ where gradients are below about 3e-4, as those of a large batch's mean are: then only this one still divides by their size.

    A row that no batch touched for k − 1 steps has its velocity decay by rho^k when it is touched next, so that rows and velocities are
    those of the dense rule, whose gradient is zero in between. Each row keeps the step it was touched at.
    """

    name = "rmsprop"
    slots = (Slot("velocity"), Slot("touched", per_row=True))

    def __init__(self, rho: float, outside_root: bool = False):
        self._rho, self._outside_root = rho, outside_root
        self.constants = (rho, 1 - rho, *((0.0, EPSILON) if outside_root else (EPSILON, 0.0)))

    def scalars(self, learning_rate, step):
        """The learning rate and the number of the step, from 1, modulo 2^24."""
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
        """rho^k for rows last touched k steps ago, by repeated squaring: the same bits in C++. On a GPU, which keeps no bits, by one power."""
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

    def dense(self):
        """See `Rule.dense`."""
        import keras

        from training.optimizers.legacy_rmsprop import LegacyRMSprop

        return (LegacyRMSprop if self._outside_root else keras.optimizers.RMSprop)(0.0, rho=self._rho, epsilon=EPSILON)
