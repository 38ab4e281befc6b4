"""What `--xla` compiles: what was measured to be faster compiled, by device (docs/performance.md)."""

from typing import NamedTuple

import tensorflow as tf


class Compiled(NamedTuple):
    """Which parts of the step XLA compiles."""

    dense: bool = False  # MLPs, interaction, loss and their gradients
    optimizer: bool = False  # of the dense weights


def compiled(xla: bool) -> Compiled:
    """The parts that are compiled on this process's device.

    On a CPU, XLA's matrix products are slower than oneDNN's (up to 10% in float32, by a factor of three in bfloat16), so the dense part is left
    to them, and to the C++ operations, which XLA cannot see into; the optimizer's update is one pass instead of several.
    """
    return Compiled(dense=xla and on_gpu(), optimizer=xla)


def on_gpu() -> bool:
    """Whether this process computes on a GPU, see `runtime.configure_tensorflow`."""
    return bool(tf.config.get_visible_devices("GPU"))
