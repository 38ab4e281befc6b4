"""RMSprop of dense weights, in the form of Keras's legacy optimizers."""

import keras
from keras import ops


class LegacyRMSprop(keras.optimizers.RMSprop):
    """RMSprop that divides by sqrt(velocity) + epsilon, where Keras 3 divides by sqrt(velocity + epsilon); no momentum, not centred."""

    def update_step(self, gradient, variable, learning_rate):
        """Update one weight; Keras calls this."""
        velocity = self._velocities[self._get_variable_index(variable)]
        self.assign(velocity, self.rho * velocity + (1 - self.rho) * ops.square(gradient))
        self.assign_sub(variable, learning_rate * gradient / (ops.sqrt(velocity) + self.epsilon))
