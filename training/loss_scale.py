"""The loss scale of float16 training: static, or dynamic (Micikevicius et al., arXiv:1710.03740, section 3.2)."""

import tensorflow as tf

DYNAMIC = "dynamic"
SLOT = "loss_scale"
START, LARGEST = 65536.0, 2.0**24
GROWTH_STEPS = 2000  # steps without an overflow after which the scale is doubled


class LossScale:
    """The factor that multiplies the loss before the backward pass and divides the gradients after it.

    A step whose gradients are not finite is skipped. The "dynamic" scale is halved in that case, and doubled after 2,000 steps in a row without one.

    Args:
        value: 1 or more, or "dynamic"; 1 where the compute dtype needs no scale.

    Attributes:
        scales: whether there is a loss scale; only then are steps skipped.
    """

    def __init__(self, value: float | str = 1.0):
        self._dynamic = value == DYNAMIC
        self._static = START if self._dynamic else float(value)
        self.scales = self._dynamic or self._static != 1
        self._state = tf.Variable([START, 0.0]) if self._dynamic else None  # the scale, and the number of steps since its last change

    def now(self) -> float | tf.Tensor:
        """Return the scale of this step; a Python number where it is static."""
        return self._static if self._state is None else self._state[0]

    def slots(self) -> dict[str, tf.Variable]:
        """Return the state that a checkpoint keeps, by name."""
        return {} if self._state is None else {SLOT: self._state}

    def after_step(self, finite: tf.Tensor) -> None:
        """Adjust a dynamic scale; `finite` is above 0 if the step's gradients were finite."""
        if self._state is None:
            return
        scale, good = self._state[0], self._state[1] + 1
        grown = good >= GROWTH_STEPS
        after_good = tf.stack([tf.where(grown, tf.minimum(2 * scale, LARGEST), scale), tf.where(grown, 0.0, good)])
        self._state.assign(tf.where(finite > 0, after_good, tf.stack([tf.maximum(scale / 2, 1.0), 0.0])))


NO_SCALE = LossScale()
