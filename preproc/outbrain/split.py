"""The rule by which displays are held out for evaluation."""

from dataclasses import dataclass

import numpy as np

_STEP, _FACTORS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # constants of SplitMix64


@dataclass(frozen=True)
class SplitRule:
    """A split that holds out for evaluation all displays from a day on, and a share of earlier ones, drawn by a hash of seed and display.

    Attributes:
        seed: seed of the hash.
        fraction: share of the displays of earlier days.
        from_day: the first day, from 0, of which all displays are for evaluation.
    """

    seed: int
    fraction: float
    from_day: int

    def evaluates(self, displays: np.ndarray, days: np.ndarray) -> np.ndarray:
        """Return a mask of the displays for evaluation, `[n]` bool.

        Args:
            displays: ids of the displays, `[n]` int64.
            days: days of the displays, `[n]`, -1 where there is no event: such displays are for training.
        """
        drawn = hashed(displays, self.seed) < np.uint64(min(round(self.fraction * 2.0**64), 2**64 - 1))
        return (days >= self.from_day) | (drawn & (days >= 0))


def hashed(ids: np.ndarray, seed: int) -> np.ndarray:
    """Hash ids to numbers uniform in [0, 2^64), `[n]` uint64: the finalizer of SplitMix64 of id + (seed + 1) * 0x9E3779B97F4A7C15."""
    mixed = ids.astype(np.uint64) + np.uint64((seed + 1) * _STEP % 2**64)
    for shift, factor in _FACTORS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
