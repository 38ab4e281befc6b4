"""Into how many slices the global batch is cut whose gradients are summed in a fixed order, and what that buys. Imports no TensorFlow."""

import math
from collections.abc import Callable
from dataclasses import replace

from utils.config import TRAIN, Config

MOST = 8
SAMPLES = 1024  # of a slice: its activations stay in the second-level cache, and more slices cost time
_TOGETHER = 8  # small slices that are computed at once
_TOGETHER_BELOW = 128  # samples of a slice, by measurement (docs/performance.md)


def default_gradient_slices(batch_size: int, device: str) -> int:
    """The slices where `--gradient_slices` says nothing; they do not depend on N, so that a run can go on with another.

    Args:
        batch_size: B.
        device: "CPU" or "GPU"; on a GPU, where repeated ids are added in no fixed order, slices buy nothing.

    Returns:
        a power of two that divides B, at most 8, and leaves 1,024 samples a slice or more; 1 where none does.
    """
    slices = 1
    while device == "CPU" and slices < MOST and batch_size % (2 * slices) == 0 and batch_size >= 2 * slices * SAMPLES:
        slices *= 2
    return slices


def gradient_slices(config: Config, device: str) -> int:
    """The slices of a run on this device ("CPU" or "GPU")."""
    return config.device.gradient_slices or default_gradient_slices(config.data.batch_size, device)


def keeps_order(slices: int, batch_size: int, workers: int) -> bool:
    """Whether N workers sum the slices' gradients as one worker does: each a whole subtree of the tree of additions."""
    return batch_size % slices == 0 and (workers == 1 or (slices % workers == 0 and _is_power_of_two(slices // workers)))


def same_bits(slices: int, batch_size: int) -> list[int]:
    """The numbers of workers that train the same bits."""
    able = {1} | {slices >> i for i in range(slices.bit_length()) if slices % (1 << i) == 0}
    return sorted(workers for workers in able if keeps_order(slices, batch_size, workers))


def described(config: Config, workers: int, device: str) -> str:
    """One line: for which N the bits are the same, and why not for others, or for any."""
    slices, batch_size = gradient_slices(config, device), config.data.batch_size
    depends = "the bits of the weights depend on the number of workers"
    if device == "GPU":
        return f"{depends}: a GPU adds the gradients of repeated ids in no fixed order"
    if config.device.xla == "all":
        return f"{depends}: --xla all compiles other shapes for each"
    more = f"; --gradient_slices {MOST} makes them the same for {_listed(same_bits(MOST, batch_size))}" if batch_size % MOST == 0 else ""
    if batch_size % slices:
        return f"{depends}: {slices} slices of gradients (--gradient_slices) cannot be cut from a batch of {batch_size}"
    if not keeps_order(slices, batch_size, workers):
        cause = "the gradients are summed whole" if slices == 1 else f"{workers} cannot share {slices} slices of gradients (--gradient_slices)"
        return f"{depends}: {cause}" + (more if keeps_order(MOST, batch_size, workers) else "")
    if slices == 1:
        return f"{depends}: the gradients are summed whole{more}"
    return f"the bits of the weights are the same for {_listed(same_bits(slices, batch_size))} workers ({slices} slices of gradients)"


def settled(config: Config, device: str, workers: int, warn: Callable[[str], None]) -> Config:
    """The configuration with the slices in it, as a checkpoint keeps them; warns where `--gradient_slices` cannot do what it is for."""
    if line := _warning(config, workers, device):
        warn(line)
    return replace(config, device=replace(config.device, gradient_slices=gradient_slices(config, device)))


def _warning(config: Config, workers: int, device: str) -> str | None:
    """A line where `--gradient_slices` was asked for and cannot do what it is for; None where it can."""
    slices, batch_size = config.device.gradient_slices, config.data.batch_size
    if config.run.mode != TRAIN or "gradient_slices" not in config.given or slices is None or slices == 1:
        return None
    if device == "GPU":
        return f"--gradient_slices {slices} costs time and buys nothing on a GPU, where the gradients of repeated ids are added in no fixed order"
    if batch_size % slices:
        return f"--gradient_slices {slices} has no effect: a batch of {batch_size} cannot be cut into {slices} equal slices"
    if not keeps_order(slices, batch_size, workers):
        able = _listed(same_bits(slices, batch_size))
        return f"--gradient_slices {slices} has no effect on {workers} workers; expected {able}, of which each sums a part of the tree of additions"
    return None


def parts(slices: int, samples: int) -> tuple[int, int | None]:
    """How a worker computes its slices.

    Args:
        slices: of this worker; 1 where the order of sums is not kept.
        samples: of this worker.

    Returns:
        the parts that its samples are computed in, and the slices of each part, which `mlp.dense` computes together; None for one that is computed
        whole. Which of the two it is depends on the samples of a slice only, for the bits do.
    """
    if samples >= _TOGETHER_BELOW * slices:
        return slices, None
    together = math.gcd(slices, _TOGETHER)  # a power of two: the sums over the parts go on where those over a part's slices end
    return slices // together, together


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _listed(numbers: list[int]) -> str:
    words = list(map(str, numbers))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
