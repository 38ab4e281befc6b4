"""Learning-rate schedules: linear warm-up, constant and polynomial decay; NVIDIA's Wide & Deep's; a constant; reductions by evaluations."""

from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]  # learning rate of a step, counted from 0


@dataclass(frozen=True)
class LearningRateSchedule:
    """Learning rate as a pure function of the step, counted from 0.

    Below warmup_steps: base·(1 − (warmup_steps−s)/(warmup_steps·2^warmup_factor)), which starts at 0 with factor 0. Below decay_start_step: base.
    Then base·((end−s)/decay_steps)^decay_power with end = decay_start_step + decay_steps, but at least base·end_factor. From `end` on:
    base·end_factor; it never rises again. With decay_steps 0 there is no decay.
    """

    base: float
    warmup_steps: int
    decay_start_step: int
    decay_steps: int
    decay_power: float = 2.0
    warmup_factor: int = 0
    end_factor: float = 0.0

    def __call__(self, step: int) -> float:
        """Return the learning rate of step `step`."""
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
    """The published schedule of the deep part: base·s/warmup_steps below warmup_steps, s = max(1, step); then base/4; after drop_step base/8.

    There is no plateau at `base`. warmup_steps and drop_step need not be whole numbers.
    """

    base: float
    warmup_steps: float
    drop_step: float

    def __call__(self, step: int) -> float:
        """Return the learning rate of step `step`."""
        step = max(1, step)
        if step < self.warmup_steps:
            return self.base * step / self.warmup_steps
        return self.base / 4 if step <= self.drop_step else self.base / 8


@dataclass(frozen=True)
class ConstantSchedule:
    """One learning rate for all steps."""

    base: float

    def __call__(self, step: int) -> float:
        """Return the learning rate of step `step`."""
        return self.base


@dataclass(frozen=True)
class Plateau:
    """Reductions of the learning rate where evaluations do not improve, as in PyTorch's ReduceLROnPlateau.

    Attributes:
        factor: factor of each reduction.
        least: learning rate below which none is reduced.
    """

    factor: float
    least: float

    def reduced(self, rate: float, reductions: int) -> float:
        """Return a rate after so many reductions; a rate that a schedule has set below `least` stays."""
        return max(rate * self.factor**reductions, min(rate, self.least))
