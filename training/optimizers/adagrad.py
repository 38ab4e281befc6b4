"""Adagrad (Duchi et al., JMLR 2011), with an accumulator for every weight or for every row."""

from model.native import DenseRule
from training.optimizers.rule import EPSILON, Rule, Slot

_START = 0.1  # initial value of the accumulator, as in Keras


class Adagrad(Rule):
    """Adagrad: accumulator += gradient²; row −= learning_rate · gradient / sqrt(accumulator + epsilon)."""

    name = "adagrad"
    slots = (Slot("accumulator", _START),)

    def __init__(self, epsilon: float = EPSILON):
        self._epsilon = epsilon
        self.constants = (epsilon,)

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        import tensorflow as tf

        total = rows.slot(0) + tf.square(gradients)
        rows.set_slot(0, total)
        # Not rsqrt: TensorFlow approximates it, and the result depends on the processor and on an element's position in the tensor.
        rows.subtract(scalars[0] * gradients / tf.sqrt(total + self.constants[0]))

    def dense_update(self):
        """See `Rule.dense_update`."""
        return DenseRule(self.name, ("accumulator",), self.constants)

    def dense(self):
        """See `Rule.dense`."""
        import keras

        return keras.optimizers.Adagrad(0.0, epsilon=self._epsilon)


class RowwiseAdagrad(Rule):
    """Adagrad with one accumulator a row, which sums the mean of the squares over the whole row of D columns.

    accumulator += mean(gradient²); row −= learning_rate · gradient / sqrt(accumulator + epsilon). The accumulator takes 1/D of Adagrad's memory
    (Mudigere et al., arXiv:2104.05158, section 4.1.4). Dense weights, which have no such rows, are trained by Adagrad.
    """

    name = "rowwise_adagrad"
    slots = (Slot("accumulator", _START, per_row=True),)
    needs_squares = True

    def __init__(self, dim: int, epsilon: float = EPSILON):
        self._epsilon = epsilon
        self.constants = (epsilon, float(dim))

    def of_width(self, dim):
        """See `Rule.of_width`."""
        return RowwiseAdagrad(dim, self._epsilon)

    def apply(self, rows, gradients, scalars, squares=None):
        """See `Rule.apply`."""
        import tensorflow as tf

        epsilon, dim = self.constants
        total = rows.slot(0) + (squares / dim)[:, tf.newaxis]
        rows.set_slot(0, total)
        rows.subtract(scalars[0] * gradients / tf.sqrt(total + epsilon))

    def dense_update(self):
        """See `Rule.dense_update`."""
        return Adagrad(self._epsilon).dense_update()

    def dense(self):
        """Return Adagrad for the dense weights, see `Rule.dense`."""
        return Adagrad(self._epsilon).dense()
