"""Every training of `tests/distributed/lazy_cases.py`, compared with tables in memory stored whole; ./scripts/test runs a few of them."""

from collections.abc import Callable
from pathlib import Path

from campaign import Row

from tests.distributed.lazy_cases import EVERY, PAIRS, check, train_all, write_all


def all_cases(folder: Path) -> list[Callable[[], Row]]:
    """Return a function for each optimizer, kind of ids and model; they train and return their lines of the table.

    A line's function raises AssertionError where one ends with another bit than tables in memory.
    """
    return [lambda pair=pair: _compare(folder, pair) for pair in PAIRS]


def _compare(folder: Path, pair: str) -> Row:
    datasets, runs = folder / "datasets", folder / pair.replace(" ", "-")
    runs.mkdir(parents=True)
    if not datasets.exists():
        write_all(datasets)
    cases = [case for case in EVERY if case.pair == pair]
    train_all(datasets, runs, cases)
    row = Row(f"lazy tables and touched rows, {pair}: {', '.join(dict.fromkeys(case.way for case in cases))}, 1, 2 and 4 workers")
    for case in cases:
        check(runs, case)
        row.tries += 1
        row.outcome["bit-identical to tables in memory"] += 1
    return row
