"""Lazy Adam: Adam that updates touched rows only."""

from model.native import DenseRule
from training.optimizers.rule import EPSILON, Rule, Slot


class Adam(Rule):
    """Adam (Kingma & Ba, arXiv:1412.6980) on touched rows: a row's moments decay only when a batch touches the row.

    The bias correction uses the global step. Epsilon is added to the root of the second moment before its correction, as in Keras and in section 2 of
    the paper ("epsilon hat"); PyTorch adds it after.
    """

    name = "adam"
    slots = (Slot("momentum"), Slot("velocity"))

    def __init__(self, beta1: float, beta2: float, epsilon: float = EPSILON):
        self._betas, self._epsilon = (beta1, beta2), epsilon
        self.constants = (beta1, 1 - beta1, beta2, 1 - beta2, epsilon)

    def scalars(self, learning_rate, step):
        """Return the learning rate after bias correction, `[1]`."""
        import tensorflow as tf

        beta1, beta2 = self._betas
        count = tf.cast(step + 1, tf.float32)
        return tf.reshape(learning_rate * tf.sqrt(1 - tf.pow(beta2, count)) / (1 - tf.pow(beta1, count)), [1])

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        import tensorflow as tf

        beta1, rest1, beta2, rest2, epsilon = self.constants
        first = beta1 * rows.slot(0) + rest1 * gradients
        second = beta2 * rows.slot(1) + rest2 * tf.square(gradients)
        rows.set_slot(0, first)
        rows.set_slot(1, second)
        rows.subtract(scalars[0] * first / (tf.sqrt(second) + epsilon))

    def dense_update(self):
        """See `Rule.dense_update`."""
        return DenseRule(self.name, ("momentum", "velocity"), self.constants)

    def dense(self):
        """See `Rule.dense`."""
        import keras

        return keras.optimizers.Adam(0.0, beta_1=self._betas[0], beta_2=self._betas[1], epsilon=self._epsilon)
