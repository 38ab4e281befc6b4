"""What `--xla` compiles: what was measured to be faster compiled, by device (docs/performance.md), or all that is dense."""

import os
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from utils.config.config import Config
from utils.config.options import TRAIN

ALL = "all"


class Compiled(NamedTuple):
    """Which parts of the step XLA compiles."""

    dense: bool = False  # MLPs, interaction, loss and their gradients
    optimizer: bool = False  # of the dense weights


def compiled(xla: bool | str) -> Compiled:
    """The parts that are compiled on this process's device; `--xla all` compiles both on any.

    On a CPU, XLA's matrix products are slower than oneDNN's (up to 10% in float32, by a factor of three in bfloat16), so the dense part is left
    to them, and to the C++ operations, which XLA cannot see into; the optimizer's update is one pass instead of several.
    """
    return Compiled(dense=xla == ALL or (bool(xla) and on_gpu()), optimizer=bool(xla))


def compilation_described(config: Config) -> str:
    """What is compiled, as a part of the line that announces a run; empty where nothing is."""
    parts, words = compiled(config.device.xla), []
    if parts.dense:
        words.append("dense forward and backward pass" if config.run.mode == TRAIN else "dense forward pass")
    if parts.optimizer and config.run.mode == TRAIN:
        words.append("dense optimizer")
    return f", XLA: {', '.join(words)}" if words else ""


def warn_without_effect(config: Config, warn: Callable[[str], None]) -> None:
    """Say so where `--xla` was given and nothing is compiled."""
    if "xla" in config.given and config.device.xla and not compilation_described(config):
        warn(f"--xla has no effect with --mode {config.run.mode} on a CPU; --xla all compiles the dense forward pass")


def on_gpu() -> bool:
    """Whether this process builds for a GPU: where it computes on one, see `runtime.configure_tensorflow`, or pretends to."""
    return pretends_gpu() or bool(tf.config.get_visible_devices("GPU"))


def pretends_gpu() -> bool:
    """Whether a CPU is to do what a GPU would (DLRM_BUILD_FOR=GPU in the environment): for tests of those branches where there is none."""
    return os.environ.get("DLRM_BUILD_FOR") == "GPU"
