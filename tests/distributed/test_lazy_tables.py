"""Tests that tables whose rows exist once they are touched train to the bits of tables in memory."""

import itertools

import pytest

from tests.distributed.lazy_runs import LAZY, assert_equal, command, figures, run
from tests.distributed.small_data import DIM
from utils.checkpoint.reading import Checkpoint

RATES = {"sgd": "1", "adam": "0.01", "adagrad": "0.1", "rowwise_adagrad": "0.1", "ftrl": "0.1", "rmsprop": "0.01"}
CUT = ("--column_slice_threshold", "800")  # tables of 1600 elements are cut by columns where there are several workers
# Every optimizer, kind of ids, model and initializer is in one of these; a longer product of them runs with --long.
PAIRS = {
    "sgd": ("partial", "--optimizer", "sgd", "--momentum", "0.9"),
    "adam lists": ("lists", "--optimizer", "adam", *CUT),
    "adagrad normal": ("partial", "--optimizer", "adagrad", "--embedding_initializer", "normal", *CUT),
    "rowwise shapes": ("shapes", "--optimizer", "rowwise_adagrad", "--interaction", "cat", *CUT),
    "ftrl wide": ("lists", "--optimizer", "ftrl", "--interaction", "wide_and_deep", "--amp"),
    "rmsprop weights": ("weighted", "--optimizer", "rmsprop", "--data_parallel_threshold", "504", *CUT),
    "frozen": ("partial", "--optimizer", "sgd", "--embedding_trainable", "false"),
}


def flags(name):
    """Return the dataset and the flags of a pair."""
    dataset, *words = PAIRS[name]
    optimizer = words[words.index("--optimizer") + 1]
    return dataset, (*words, "--learning_rate", RATES[optimizer])


# Outcomes to compare with a run in memory on one worker: the pair, the workers, and the storage of the first four steps where a run is cut there and
# goes on with the other storage. A training takes two seconds, so their product runs with --long.
CASES = [
    *((name, 1, None) for name in PAIRS),
    *((name, 2, None) for name in ("adam lists", "rowwise shapes", "rmsprop weights")),
    *(("sgd", 1, first) for first in ("lazy", "memory")),
    ("ftrl wide", 1, "lazy"),
    ("adagrad normal", 2, "memory"),
    ("adam lists", 2, "lazy"),
]
LONG = [case for case in itertools.product(PAIRS, (1, 2), (None, "lazy", "memory")) if case not in CASES]


def folder_of(name, workers, first):
    """Return the name of a case's folder."""
    return f"{name.replace(' ', '-')}-{f'{first}-first' if first else 'lazy'}-{workers}"


def commands(dataset, folder, cases, workers):
    """Return the runs of the cases on so many workers; on one worker, those in memory, too."""
    found, whole = [], ("--epochs", "2")
    for name in dict.fromkeys(name for name, _, _ in cases) if workers == 1 else ():
        rows, words = flags(name)
        found.append(command(dataset / "of" / rows, folder, f"{name.replace(' ', '-')}-memory", *words, *whole))
    for case in cases:
        (rows, words), first = flags(case[0]), case[2]
        if case[1] != workers:
            continue
        one = [dataset / "of" / rows, folder, folder_of(*case), *words, *whole]
        if first:
            found.append(command(*one, *(LAZY if first == "lazy" else ()), "--max_steps", "4"))
            found.append(command(*one, *(("--table_storage", "memory") if first == "lazy" else LAZY), "--resume", "auto"))
        else:
            found.append(command(*one, *LAZY))
    return found


def trained_all(dataset, folder, cases):
    """Run the cases on one and on two workers; return their folder."""
    for workers in (1, 2):
        result = run(workers, [*commands(dataset, folder, cases, workers), *(frozen(dataset, folder) if workers == 2 else ())], folder)
        assert result.code == 0, result.err
    return folder


def frozen(dataset, folder):
    """Return runs with frozen tables cut by columns: of 5 steps, and of 4 in memory and then a lazy one."""
    flags = ("--optimizer", "sgd", "--embedding_trainable", "false", *CUT)

    def steps(name, count, *more):
        return command(dataset / "of" / "partial", folder, name, *flags, *more, "--max_steps", str(count))

    return [steps("cut-memory", 5), steps("cut-lazy", 4), steps("cut-lazy", 5, *LAZY, "--resume", "auto")]


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """Return the folder of the runs of CASES."""
    return trained_all(dataset, tmp_path_factory.mktemp("lazy"), CASES)


@pytest.fixture(scope="module")
def trained_long(dataset, tmp_path_factory):
    """Return the folder of the runs of LONG."""
    return trained_all(dataset, tmp_path_factory.mktemp("lazy_long"), LONG)


def check(folder, case):
    """Check that a case ends with the bits and the figures of the run in memory."""
    key = f"{case[0].replace(' ', '-')}-memory"
    assert_equal(folder / folder_of(*case), folder / key)
    assert figures(folder / f"{folder_of(*case)}.log") == figures(folder / f"{key}.log")


@pytest.mark.parametrize("case", CASES, ids=lambda case: folder_of(*case))
def test_lazy_tables_end_with_the_bits_of_tables_in_memory(trained, case):
    check(trained, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG, ids=lambda case: folder_of(*case))
def test_every_pair_ends_with_the_bits_of_tables_in_memory(trained_long, case):
    check(trained_long, case)


def test_touched_rows_that_never_changed_exist_on_every_worker_that_holds_columns_of_them(trained):
    assert_equal(trained / "cut-lazy", trained / "cut-memory")


def test_checkpoint_holds_only_rows_that_batches_have_named(trained):
    lazy, memory = Checkpoint(trained / "sgd-lazy-1"), Checkpoint(trained / "sgd-memory")
    saved = lazy.touched_table("cat_0")
    assert memory.touched_table("cat_0") is None
    assert 0 < saved.count < saved.rows == 200 and lazy.shape("tables/cat_0/weights") == (200, DIM)
    assert lazy.manifest["format"] == 4 and memory.manifest["format"] == 3
