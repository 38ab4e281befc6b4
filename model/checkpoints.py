"""When a training run writes checkpoints: begun between two steps, written while the next ones run."""

import time
from collections.abc import Callable

from model.snapshot import Snapshot
from model.trainer import TensorBatch
from utils.checkpoint import Saving
from utils.config import TrainingConfig

KEPT_BYTES = 512 << 20  # rows that are kept for a checkpoint being written; beyond that training waits for the disk


class Checkpoints:
    """The checkpoints of a run, at most one being written at a time.

    Every worker calls `write`, `finish` and `told` after the same steps.

    Args:
        begin: starts to write a checkpoint of the current state, the best so far or not; None for no checkpoints.
        options: how often.
        step: steps done so far, which are saved already.
        say: is told of every checkpoint that is complete.
    """

    def __init__(
        self,
        begin: Callable[[bool], tuple[Saving, Snapshot]] | None,
        options: TrainingConfig,
        step: int,
        say: Callable[[str], None] = lambda text: None,
    ):
        self._begin, self._options, self._say = begin, options, say
        self._saving: Saving | None = None
        self._snapshot: Snapshot | None = None
        self._written = False  # by this worker
        self._saved_at, self._time = step, time.monotonic()
        self._begun_at = -1  # by this run
        self._start = self._waited = 0.0

    @property
    def wanted(self) -> bool:
        """Whether the run writes checkpoints at all."""
        return self._begin is not None

    def wishes(self) -> tuple[float, float]:
        """What this worker tells the others with a step: that the minutes have passed; that it is still writing."""
        minutes = self._options.checkpoint_every_minutes
        passed = self.wanted and minutes is not None and time.monotonic() - self._time >= 60 * minutes
        return float(passed), float(self._saving is not None and not self._written)

    def is_due(self, step: int, told_passed: float) -> bool:
        """Whether a checkpoint is to be written after `step` steps."""
        if not self.wanted or self._saved_at == step:
            return False
        every = self._options.checkpoint_every_steps
        return bool(told_passed) or (every is not None and step % every == 0)

    def write(self, step: int, best: bool = False, wait: bool = False) -> None:
        """Begin to write a checkpoint, and with `wait` finish it; nothing is written twice."""
        self.finish()
        if step == self._begun_at:
            return
        self._start = time.monotonic()
        self._saving, self._snapshot = self._begin(best)
        self._written, self._saved_at, self._begun_at, self._time = False, step, step, time.monotonic()
        self._waited = self._time - self._start
        if wait:
            self.finish()

    def before_step(self, batch: TensorBatch) -> None:
        """Keep what the step will overwrite."""
        if self._saving is None or self._written:
            return
        start = time.monotonic()
        kept = self._snapshot.protect(batch.ids.numpy())
        while kept > KEPT_BYTES and not self._written:
            self._written = self._saving.advance(wait=True)
            kept = self._snapshot.bytes
        self._waited += time.monotonic() - start

    def after_step(self) -> None:
        """Write on."""
        if self._saving is not None and not self._written:
            start = time.monotonic()
            self._written = self._saving.advance()
            self._waited += time.monotonic() - start

    def told(self, step: int, writing: float) -> None:
        """Hear how many workers were still writing when step number `step` was done; when none is, the checkpoint becomes visible."""
        if self._saving is not None and step >= self._saved_at and not writing:
            self.finish()

    def finish(self) -> None:
        """Finish the checkpoint that is being written, if there is one."""
        saving, self._saving, self._snapshot = self._saving, None, None
        if saving is None:
            return
        start = time.monotonic()
        folder = saving.finish()
        now = time.monotonic()
        self._say(f"checkpoint written: {folder} ({now - self._start:.1f} s, of which training waited {self._waited + now - start:.1f} s)")

    def abandon(self) -> None:
        """Leave nothing of the checkpoint that is being written."""
        saving, self._saving, self._snapshot = self._saving, None, None
        if saving is not None:
            saving.abandon()
