"""The learning-rate schedule: linear warm-up, a plateau, polynomial decay to zero."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LearningRateSchedule:
    """Learning rate as a pure function of the step, counted from 0.

    base·s/warmup_steps below warmup_steps; base below decay_start_step; then base·((end−s)/decay_steps)^decay_power with
    end = decay_start_step + decay_steps; 0 from `end` on, never rising again.
    """

    base: float
    warmup_steps: int
    decay_start_step: int
    decay_steps: int
    decay_power: float = 2.0

    def __call__(self, step: int) -> float:
        """Learning rate of step `step`."""
        if step < self.warmup_steps:
            return self.base * step / self.warmup_steps
        if step < self.decay_start_step:
            return self.base
        left = max(self.decay_start_step + self.decay_steps - step, 0)
        return self.base * (left / self.decay_steps) ** self.decay_power
