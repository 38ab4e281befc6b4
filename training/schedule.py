"""Learning-rate schedules: linear warm-up, a plateau, polynomial decay; that of NVIDIA's Wide & Deep; none."""

from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]  # learning rate of a step, counted from 0


@dataclass(frozen=True)
class LearningRateSchedule:
    """Learning rate as a pure function of the step, counted from 0.

    base·(1 − (warmup_steps−s)/(warmup_steps·2^warmup_factor)) below warmup_steps: from 0 with factor 0; base below decay_start_step; then
    base·((end−s)/decay_steps)^decay_power with end = decay_start_step + decay_steps, but not below base·end_factor, which it is from `end` on,
    never rising again. With decay_steps 0 it does not fall.
    """

    base: float
    warmup_steps: int
    decay_start_step: int
    decay_steps: int
    decay_power: float = 2.0
    warmup_factor: int = 0
    end_factor: float = 0.0

    def __call__(self, step: int) -> float:
        """Learning rate of step `step`."""
        if step < self.warmup_steps:
            if not self.warmup_factor:
                return self.base * step / self.warmup_steps
            return self.base * (1 - (self.warmup_steps - step) / (self.warmup_steps * 2**self.warmup_factor))
        if step < self.decay_start_step or not self.decay_steps:
            return self.base
        left = max(self.decay_start_step + self.decay_steps - step, 0)
        return self.base * max((left / self.decay_steps) ** self.decay_power, self.end_factor)


@dataclass(frozen=True)
class WideAndDeepSchedule:
    """The published one of the deep part: base·s/warmup_steps below warmup_steps, s = max(1, step); then base/4; after drop_step base/8.

    There is no plateau at `base`. The steps need not be whole.
    """

    base: float
    warmup_steps: float
    drop_step: float

    def __call__(self, step: int) -> float:
        """Learning rate of step `step`."""
        step = max(1, step)
        if step < self.warmup_steps:
            return self.base * step / self.warmup_steps
        return self.base / 4 if step <= self.drop_step else self.base / 8


@dataclass(frozen=True)
class ConstantSchedule:
    """One learning rate for all steps."""

    base: float

    def __call__(self, step: int) -> float:
        """Learning rate of step `step`."""
        return self.base
