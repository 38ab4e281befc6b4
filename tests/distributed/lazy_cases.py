"""Trainings with lazy tables, or checkpoints of touched rows, whose results must be those of tables in memory stored whole: what is trained, on how
many workers, and how it gets to its end."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.distributed.lazy_runs import LAZY, assert_equal, command, figures
from tests.distributed.resident import do_in_turn
from tests.distributed.small_data import LISTS, ROWS, write_dataset, write_lists

RATES = {"sgd": "1", "adam": "0.01", "adagrad": "0.1", "rowwise_adagrad": "0.1", "ftrl": "0.1", "rmsprop": "0.01"}
CUT = ("--column_slice_threshold", "800")  # tables of 1600 elements are cut by columns where there are several workers
# Every optimizer, kind of ids, model and initializer is in one of these: a dataset and flags.
PAIRS = {
    "sgd": ("partial", "--optimizer", "sgd", "--momentum", "0.9"),
    "adam lists": ("lists", "--optimizer", "adam", *CUT),
    "adagrad normal": ("partial", "--optimizer", "adagrad", "--embedding_initializer", "normal", *CUT),
    "rowwise shapes": ("shapes", "--optimizer", "rowwise_adagrad", "--interaction", "cat", *CUT),
    "ftrl wide": ("lists", "--optimizer", "ftrl", "--interaction", "wide_and_deep", "--amp"),
    "rmsprop weights": ("weighted", "--optimizer", "rmsprop", "--data_parallel_threshold", "504", *CUT),
    "frozen": ("partial", "--optimizer", "sgd", "--embedding_trainable", "false"),
}
AT_ONCE, LAZY_FIRST, MEMORY_FIRST, GROWN = "lazy", "lazy first", "memory first", "grown"
TOUCHED, TOUCHED_FIRST, ALL_FIRST, TOUCHED_GROWN = "touched", "touched first", "all first", "touched grown"
TOUCHED_TO_LAZY, LAZY_TO_TOUCHED = "touched to lazy", "lazy to touched"
_MEMORY = ("--table_storage", "memory", "--checkpoint_rows", "all")
_TOUCHED = ("--table_storage", "memory", "--checkpoint_rows", "touched")
# The storage of the tables and the form of their checkpoints, in the first steps and in the others.
WAYS = {
    AT_ONCE: (LAZY, LAZY),
    LAZY_FIRST: (LAZY, _MEMORY),
    MEMORY_FIRST: (_MEMORY, LAZY),
    GROWN: (LAZY, LAZY),
    TOUCHED: (_TOUCHED, _TOUCHED),
    TOUCHED_FIRST: (_TOUCHED, _MEMORY),
    ALL_FIRST: (_MEMORY, _TOUCHED),
    TOUCHED_GROWN: (_TOUCHED, _TOUCHED),
    TOUCHED_TO_LAZY: (_TOUCHED, LAZY),
    LAZY_TO_TOUCHED: (LAZY, _TOUCHED),
}
_GROW = (GROWN, TOUCHED_GROWN)
_ONE_RUN = (AT_ONCE, TOUCHED)
_MORE_ROWS = 20  # of every table, in each of two growths


class Case(NamedTuple):
    """A training.

    Attributes:
        pair: a key of PAIRS.
        workers: the number of workers.
        way: a key of WAYS: one run from the first step to the last; four steps with one storage, the others with another; or grown twice.
    """

    pair: str
    workers: int
    way: str

    @property
    def folder(self) -> str:
        """The name of the folder of its checkpoints."""
        return "-".join([*self.pair.split(), *self.way.split(), str(self.workers)])

    @property
    def reference(self) -> str:
        """The name of the folder of the training in memory, on one worker, that it must equal."""
        return "-".join([*self.pair.split(), "memory", *([GROWN] if self.way in _GROW else [])])


EVERY = [Case(*one) for one in itertools.product(PAIRS, (1, 2, 4), WAYS)]


def write_all(folder: Path) -> Path:
    """Write the datasets of PAIRS, and those that they grow to; return the folder."""
    for more in (0, 1, 2):
        of = folder / ("of" + "-grown" * more)
        rows = {"train": ROWS["partial"], "test": ROWS["test"]}
        for name in ("partial", "weighted"):
            write_dataset(of / name, rows, weighted=name == "weighted", more=more * _MORE_ROWS)
        for name in LISTS:
            write_lists(of / name, name, rows, more=more * _MORE_ROWS)
    return folder


def train_all(datasets: Path, folder: Path, cases: Iterable[Case]) -> None:
    """Run the cases, and the trainings in memory that they must equal; all of one number of workers in turn."""
    cases = list(cases)
    commands: dict[int, list] = {1: []}
    for case in dict.fromkeys(case._replace(workers=1, way=GROWN if case.way in _GROW else AT_ONCE) for case in cases):
        commands[1] += _commands(datasets, folder / case.reference, case, (_MEMORY, _MEMORY))
    for case in cases:
        commands.setdefault(case.workers, []).extend(_commands(datasets, folder / case.folder, case, WAYS[case.way]))
    for workers, some in commands.items():
        result = do_in_turn(workers, some)
        assert result.code == 0, result.err


def _commands(datasets: Path, end: Path, case: Case, storages: tuple[tuple[str, ...], ...]) -> list[list[str]]:
    """Return the runs of a case, the last of which saves to `end`."""
    dataset, *flags = PAIRS[case.pair]
    flags += ["--learning_rate", RATES[flags[flags.index("--optimizer") + 1]]]

    def one(of: str, name: str, *more: str) -> list[str]:
        return command(datasets / of / dataset, end.parent, name, *flags, *more)

    storage, other = storages
    if case.way in _GROW:
        first, second = f"{end.name}-1", f"{end.name}-2"
        grown = ("--allow_growth", "--max_steps", "2", "--restore_checkpoint_path")
        return [
            one("of", first, *storage, "--max_steps", "2"),
            one("of-grown", second, *storage, *grown, str(end.parent / first), "--seed", "6"),
            one("of-grown-grown", end.name, *storage, *grown, str(end.parent / second), "--seed", "7"),
        ]
    whole = ("--epochs", "2")
    if case.way in _ONE_RUN:
        return [one("of", end.name, *storage, *whole)]
    return [one("of", end.name, *storage, *whole, "--max_steps", "4"), one("of", end.name, *other, *whole, "--resume", "auto")]


def check(folder: Path, case: Case) -> None:
    """Check that a case has ended with the bits and the figures of the training in memory."""
    assert_equal(folder / case.folder, folder / case.reference)
    assert figures(folder / f"{case.folder}.log") == figures(folder / f"{case.reference}.log")
