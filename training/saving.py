"""The checkpoints of a training run: begun between two steps, and written while the following steps run."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model.sharded_model import ShardedModel
from training.device_batch import TensorBatch
from training.groups import Groups
from training.partial_state import partial_state
from training.position import Position
from training.report import StepReport
from training.snapshot import Snapshot
from training.state import arrays, digest, parts, snapshot
from training.touched import Touched
from utils.checkpoint.best import adopt_best
from utils.checkpoint.kept_files import NO_FILES, TOUCHED_FILE, KeptFiles
from utils.checkpoint.writing import Among, Saving
from utils.config.options import TrainingConfig
from utils.timing import Spent


class Saver:
    """Begins to write checkpoints of a model and its training.

    Args:
        model: the model, whose weights are written.
        groups: the groups of weights, whose slots are written.
        options: the folder to write to, and the number of checkpoints to keep.
        metadata: entries of the manifest beside the position; any JSON values.
        alone: the folder's other checkpoints belong to another run, and are removed once the first checkpoint is visible.
        files: files that each checkpoint keeps beside the arrays.
        best: the checkpoint that is the run's best so far; None where there is none.
        touched: the rows touched so far in the run, which each checkpoint keeps; None to keep none.
    """

    def __init__(
        self,
        model: ShardedModel,
        groups: Groups,
        options: TrainingConfig,
        metadata: Mapping[str, Any],
        alone: bool,
        files: KeptFiles = NO_FILES,
        best: Path | None = None,
        touched: Touched | None = None,
    ):
        self._files, self._touched = files, touched
        self._settle: Callable[[Path], None] | None = lambda folder: adopt_best(folder, best)  # for the first checkpoint only
        self._model, self._groups, self._metadata, self._alone = model, groups, metadata, alone
        self._path, self._keep = Path(options.save_checkpoint_path), options.keep_checkpoints

    def begin(self, position: Position, best: bool) -> tuple[Saving, Snapshot]:
        """Begin to write a checkpoint of the current state; `best`: it is the best so far. Every worker calls this after the same step."""
        model, groups = self._model, self._groups
        frozen, metadata = snapshot(model, self._touched), {**self._metadata, "position": position.to_dict()}
        marks = b""
        if self._touched:
            metadata, marks = metadata | self._touched.described(), b"".join(bits.tobytes() for bits in self._touched.bits())
        partial = partial_state(model, frozen)
        metadata |= partial.metadata()
        written, everything = parts(model, groups, frozen), arrays(model, groups, partial.counts)
        among = Among(self._keep, best, self._alone, None if best else self._settle)
        saving = Saving(self._path, position.step, everything, written, metadata, model.embedding.world, among, digest(model, groups))
        saving.keep(self._files)
        for name, content in partial.files().items():
            saving.put(name, content)
        if self._touched:
            saving.put(TOUCHED_FILE, marks)
        self._alone, self._settle = False, None
        return saving, frozen


class Checkpoints:
    """The checkpoints of a run; at most one is being written at a time.

    Every worker calls `write`, `finish` and `take_report` after the same steps.

    Args:
        saver: begins to write a checkpoint; None for no checkpoints.
        options: the intervals between checkpoints.
        position: the position of the run; the steps done so far are saved already.
        say: called with a message for every completed checkpoint.
        log: called with the data of the log's line about it.
        spent: gets the time that training waits, as `saving`.
    """

    def __init__(
        self,
        saver: Saver | None,
        options: TrainingConfig,
        position: Position,
        say: Callable[[str], None] = lambda text: None,
        log: Callable[[Mapping[str, Any]], None] = lambda data: None,
        spent: Spent | None = None,
    ):
        self._saver, self._options, self._position, self._say, self._log = saver, options, position, say, log
        self._spent = spent or Spent()
        self._about: Mapping[str, Any] = {}  # of the checkpoint that is being written, for the log
        self._saving: Saving | None = None
        self._snapshot: Snapshot | None = None
        self._written = False  # this worker has written all its parts
        self._saved_at, self._time = position.step, time.monotonic()
        self._begun_at = -1  # step of this run's last checkpoint
        self._start = self._waited = 0.0

    @property
    def wanted(self) -> bool:
        """True if the run writes checkpoints at all."""
        return self._saver is not None

    def state(self) -> tuple[bool, bool]:
        """Return this worker's report to the others: whether the minutes between checkpoints have passed, and whether it is still writing."""
        minutes = self._options.checkpoint_every_minutes
        passed = self.wanted and minutes is not None and time.monotonic() - self._time >= 60 * minutes
        return passed, self._saving is not None and not self._written

    def is_due(self, passed: bool, ends_epoch: bool = False) -> bool:
        """Return whether a checkpoint is to be written now; `passed`: the minutes have passed by some worker's clock."""
        step = self._position.step
        if not self.wanted or self._saved_at == step:
            return False
        every = self._options.checkpoint_every_steps
        return passed or (every is not None and step % every == 0) or (ends_epoch and self._options.checkpoint_every_epoch)

    def write(self, best: bool = False, wait: bool = False) -> None:
        """Begin to write a checkpoint, and with `wait` finish it. A step that this run has saved already is not written again."""
        self.finish()
        step = self._position.step
        if step == self._begun_at:
            return
        self._start = time.monotonic()
        self._about = {"epoch": self._position.epoch, "step": step, "best": best}
        self._saving, self._snapshot = self._saver.begin(self._position, best)
        self._written, self._saved_at, self._begun_at, self._time = False, step, step, time.monotonic()
        self._waited = 0.0
        self._wait_ended(self._start)
        if wait:
            self.finish()

    def before_step(self, batch: TensorBatch) -> None:
        """Keep copies of the rows that the step will overwrite; where the copies exceed the limit, continue writing first."""
        if self._saving is None or self._written:
            return
        start = time.monotonic()
        kept = self._snapshot.protect(batch.rows)
        while kept > self._snapshot.limit and not self._written:
            self._written = self._saving.advance(wait=True)
            kept = self._snapshot.bytes
        self._wait_ended(start)

    def after_step(self) -> None:
        """Continue writing."""
        if self._saving is not None and not self._written:
            start = time.monotonic()
            self._written = self._saving.advance()
            self._wait_ended(start)

    def take_report(self, step: int, report: StepReport) -> None:
        """Take the report of step number `step`. If no worker was still writing, the checkpoint becomes visible."""
        if self._saving is not None and step >= self._saved_at and not report.writing:
            self.finish()

    def finish(self) -> None:
        """Finish the checkpoint that is being written, if any."""
        saving, self._saving, self._snapshot = self._saving, None, None
        if saving is None:
            return
        start = time.monotonic()
        folder = saving.finish()
        self._wait_ended(start)
        seconds = time.monotonic() - self._start
        self._say(f"checkpoint written: {folder} ({seconds:.1f} s, of which training waited {self._waited:.1f} s)")
        self._log({**self._about, "folder": str(folder.absolute()), "seconds": seconds, "waited_seconds": self._waited})

    def _wait_ended(self, start: float) -> None:
        """Count the time that training waited since `start`."""
        seconds = time.monotonic() - start
        self._waited += seconds
        self._spent.add("saving", seconds)

    def abandon(self) -> None:
        """Discard the checkpoint that is being written, if any."""
        saving, self._saving, self._snapshot = self._saving, None, None
        if saving is not None:
            saving.abandon()
