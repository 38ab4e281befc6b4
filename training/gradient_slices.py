"""The flag `--gradient_slices`: its default, and a run's messages about it; see `model.ordered_sums`. Imports no TensorFlow."""

from collections.abc import Callable
from dataclasses import replace

from model.slices import keeps_order, same_bits
from utils.config.config import Config
from utils.config.options import TRAIN

MOST = 8
DEPENDS = "the bits of the weights depend on the number of workers"
SAMPLES = 1024  # the fewest samples of a slice: its activations stay in the second-level cache, and more slices cost time


def default_gradient_slices(batch_size: int, device: str) -> int:
    """Return the default of `--gradient_slices`. It does not depend on N, so a run can be resumed with another number of workers.

    Args:
        batch_size: B.
        device: "CPU" or "GPU". On a GPU, where gradients of repeated ids are added in no fixed order, slices have no benefit.

    Returns:
        the largest power of two up to 8 that divides B and leaves 1,024 samples or more a slice; 1 where none does, and on a GPU.
    """
    slices = 1
    while device == "CPU" and slices < MOST and batch_size % (2 * slices) == 0 and batch_size >= 2 * slices * SAMPLES:
        slices *= 2
    return slices


def gradient_slices(config: Config, device: str) -> int:
    """Return the number of slices of a run on this device ("CPU" or "GPU")."""
    return config.device.gradient_slices or default_gradient_slices(config.data.batch_size, device)


def gradient_slices_described(config: Config, workers: int, device: str) -> str:
    """Describe in one line the N for which the bits of the weights are equal, or the reason why they depend on N."""
    slices, batch_size = gradient_slices(config, device), config.data.batch_size
    depends = DEPENDS
    if device == "GPU":
        return f"{depends}: a GPU adds the gradients of repeated ids in no fixed order"
    if config.device.xla == "all":
        return f"{depends}: --xla all compiles other shapes for each number"
    more = f"; --gradient_slices {MOST} makes them the same for {_listed(same_bits(MOST, batch_size))}" if batch_size % MOST == 0 else ""
    if batch_size % slices:
        return f"{depends}: a batch of {batch_size} cannot be cut into {slices} slices of gradients (--gradient_slices)"
    if not keeps_order(slices, batch_size, workers):
        cause = "the gradients are summed as a whole" if slices == 1 else f"{workers} cannot share {slices} slices of gradients (--gradient_slices)"
        return f"{depends}: {cause}" + (more if keeps_order(MOST, batch_size, workers) else "")
    if slices == 1:
        return f"{depends}: the gradients are summed as a whole{more}"
    return f"the bits of the weights are the same for {_listed(same_bits(slices, batch_size))} workers ({slices} slices of gradients)"


def with_gradient_slices(config: Config, device: str, workers: int, warn: Callable[[str], None]) -> Config:
    """Return the configuration with the number of slices filled in, as checkpoints keep it; warn where `--gradient_slices` has no effect."""
    if line := _warning(config, workers, device):
        warn(line)
    return replace(config, device=replace(config.device, gradient_slices=gradient_slices(config, device)))


def _warning(config: Config, workers: int, device: str) -> str | None:
    """Return a warning where `--gradient_slices` was given but has no effect; else None."""
    slices, batch_size = config.device.gradient_slices, config.data.batch_size
    if config.run.mode != TRAIN or "gradient_slices" not in config.given or slices is None or slices == 1:
        return None
    if device == "GPU":
        return f"--gradient_slices {slices} costs time without a benefit on a GPU, which adds the gradients of repeated ids in no fixed order"
    if batch_size % slices:
        return f"--gradient_slices {slices} has no effect: a batch of {batch_size} cannot be cut into {slices} equal slices"
    if not keeps_order(slices, batch_size, workers):
        able = _listed(same_bits(slices, batch_size))
        return f"--gradient_slices {slices} has no effect on {workers} workers; expected {able} workers, each of which sums a whole subtree"
    return None


def _listed(numbers: list[int]) -> str:
    words = list(map(str, numbers))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
