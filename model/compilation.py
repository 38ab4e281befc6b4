"""The parts that `--xla` compiles: by device, those measured to be faster compiled (docs/performance.md), or everything dense."""

import os
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from utils.config.config import Config
from utils.config.options import TRAIN

ALL = "all"


class Compiled(NamedTuple):
    """The parts of the step that XLA compiles."""

    dense: bool = False  # MLPs, interaction, loss and their gradients
    optimizer: bool = False  # the update of the dense weights


def compiled(xla: bool | str) -> Compiled:
    """Return the parts that XLA compiles on this process's device; `--xla all` compiles both on any device.

    On a CPU, XLA's matrix products are slower than oneDNN's (up to 10% in float32, by a factor of three in bfloat16), so oneDNN and the C++
    operations, which XLA cannot compile, compute the dense part. The compiled optimizer update is one pass over memory instead of several.
    """
    return Compiled(dense=xla == ALL or (bool(xla) and on_gpu()), optimizer=bool(xla))


def compiled_by(config: Config, workers: int) -> Compiled:
    """Return the parts that XLA compiles in a run on N workers.

    A training step whose layers exchange the statistics of batch normalisation between workers has no compiled dense part.
    """
    parts = compiled(config.device.xla)
    exchanges = workers > 1 and config.run.mode == TRAIN and config.model.batch_norm
    return parts._replace(dense=parts.dense and not exchanges)


def compilation_described(config: Config, workers: int = 1) -> str:
    """Return the compiled parts as text for the line that announces a run on N workers; empty where nothing is compiled."""
    parts, words = compiled_by(config, workers), []
    if parts.dense:
        words.append("dense forward and backward pass" if config.run.mode == TRAIN else "dense forward pass")
    if parts.optimizer and config.run.mode == TRAIN:
        words.append("dense optimizer")
    return f", XLA: {', '.join(words)}" if words else ""


def warn_without_effect(config: Config, workers: int, warn: Callable[[str], None]) -> None:
    """Warn where `--xla` was given but nothing, or not the dense part, is compiled."""
    if compiled(config.device.xla).dense and not compiled_by(config, workers).dense:
        warn("--batch_norm on several workers: XLA does not compile the dense part, whose layers exchange statistics between workers")
    if "xla" in config.given and config.device.xla and not compilation_described(config):
        warn(f"--xla has no effect with --mode {config.run.mode} on a CPU; --xla all compiles the dense forward pass")


def on_gpu() -> bool:
    """Return whether this process builds for a GPU: it computes on one (see `runtime.configure_tensorflow`) or pretends to."""
    return pretends_gpu() or bool(tf.config.get_visible_devices("GPU"))


def pretends_gpu() -> bool:
    """Return whether a CPU takes the GPU's code branches (DLRM_BUILD_FOR=GPU in the environment), to test them without a GPU."""
    return os.environ.get("DLRM_BUILD_FOR") == "GPU"
