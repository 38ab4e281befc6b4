"""A run of a combination that nobody cuts, and runs that are cut and resumed, which must end with its bits."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.combinations.combined import EVERY, STEPS, Combination
from tests.combinations.one_trace import OneTrace, log_lines
from training.evaluator import SplitScores
from utils.checkpoint.kept_files import TOUCHED_FILE
from utils.checkpoint.reading import Checkpoint

SIGNAL, LIMIT = "a signal", "--max_steps"
OF_BEST = ("best_auc", "best_epoch", "evals_without_gain", "evals_on_plateau")  # of a position
STEPS_TO_STOP = 2  # from the number of the step that a signal comes in, counted from 0: the next step tells all workers, and is the last


class Cut(NamedTuple):
    """A run that begins at a step's checkpoint, as one does after `kill -9`, is ended after another step, and then goes on to the end."""

    begins: int
    how: str
    ends: int

    def __str__(self) -> str:
        return f"from step {self.begins}, {self.how} at step {self.ends}"


class Unbroken:
    """A run of a combination that ends by itself, and writes checkpoints.

    Args:
        combination: the combination.
        data: the folder of the dataset.
        folder: an empty folder.
        every: steps between checkpoints.

    Attributes:
        checkpoints: the folder of its checkpoints.
        scores: the scores of the test split by TensorFlow, at the end.
        position: the position at the end.
    """

    def __init__(self, combination: Combination, data: Path, folder: Path, every: int = 1):
        self.combination, self.checkpoints = combination, folder / "whole"
        self._data, self._folder, self._runs = data, folder, OneTrace()
        folder.mkdir(parents=True, exist_ok=True)
        saving = {"save_checkpoint_path": self.checkpoints, "checkpoint_every_steps": every, "keep_checkpoints": STEPS}
        self._runs.train(dataset_path=data, log_path=folder / "whole.json", **saving, **combination.flags)
        self.scores: SplitScores = self._runs.scores
        self.position: dict[str, Any] = Checkpoint(self.checkpoints).manifest["position"]
        assert self.position["step"] == STEPS
        self._lines, self._end = log_lines(folder / "whole.json"), _contents(self.checkpoints)

    def release(self) -> None:
        """Forget the model, which no further run can share."""
        self._runs = None

    def check(self, cut: Cut) -> None:
        """Cut a run and resume it; raise AssertionError where its end or its log is not the unbroken run's."""
        seldom = {"checkpoint_every_steps": STEPS}
        saved, lines, begins = self._folder / "cut", {}, self.checkpoints / f"step-{cut.begins:08}"
        shutil.rmtree(saved, ignore_errors=True)
        end = {"signal_in": cut.ends - STEPS_TO_STOP} if cut.how == SIGNAL else {"max_steps": cut.ends}
        for number, more in enumerate(({"restore_checkpoint_path": begins, **end}, {"resume": "auto"})):
            log = self._folder / f"{number}.json"
            log.unlink(missing_ok=True)
            self._runs.train(dataset_path=self._data, cpu=True, log_path=log, print_freq=1, save_checkpoint_path=saved, **more, **seldom)
            found = Checkpoint(saved)
            assert found.step == (STEPS if number else cut.ends), f"{cut}: ended at step {found.step}"
            lines |= log_lines(log)
        extra = cut.how == LIMIT and f"valid_auc {cut.ends}" not in self._lines  # one more evaluation, which may be the best
        position = {name: value for name, value in found.manifest["position"].items() if not (extra and name in OF_BEST)}
        assert position == {name: self.position[name] for name in position}, cut
        found, expected = _contents(saved), self._end
        assert found.keys() == expected.keys()
        assert not (differing := [name for name, values in found.items() if values != expected[name]]), f"{cut}: {differing}"
        expected = {name: value for name, value in self._lines.items() if int(name.split()[-1]) > cut.begins}
        assert not (differing := [name for name, value in expected.items() if lines.get(name) != value]), f"{cut}: {differing}"


def cut_of(combination: Combination, number: int) -> Cut:
    """Return a cut of a combination's run; over 11 numbers they begin at every step from the third on, but the last two.

    The run with a plateau is ended by `--max_steps` at its evaluations only, because the evaluation at any other end would count for the plateau.
    """
    begins = 3 + number % (STEPS - 4)
    how = SIGNAL if (number + number // 11) % 2 and begins + STEPS_TO_STOP < STEPS else LIMIT
    first = begins + (STEPS_TO_STOP if how == SIGNAL else 1)
    ends = min(first + 2 * number % 5, STEPS - 1)
    if how == LIMIT and combination.plateau:
        ends = min(ends + ends % EVERY, STEPS - 1)
    return Cut(begins, how, ends)


def _contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all arrays of the newest checkpoint, and the rows that the run has touched."""
    checkpoint = Checkpoint(folder)
    names = checkpoint.names("")
    assert all(np.isfinite(checkpoint.read(name)).all() for name in names)
    return {name: checkpoint.read(name).tobytes() for name in names} | {TOUCHED_FILE: bytes(checkpoint.content(TOUCHED_FILE))}
