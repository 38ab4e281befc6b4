"""Tests that tables whose rows exist once they are touched train to the bits of tables in memory."""

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


def commands(dataset, folder, workers, names):
    """Return the runs of each pair: in memory; lazy; and cut at step 4 and resumed, from each storage to the other."""
    found = []
    for name in names:
        rows, words = flags(name)
        data, key, whole = dataset / "of" / rows, name.replace(" ", "-"), ("--epochs", "2")
        if workers == 1:
            found.append(command(data, folder, f"{key}-memory", *words, *whole))
        found.append(command(data, folder, f"{key}-lazy-{workers}", *words, *whole, *LAZY))
        for first, then in ((LAZY, ("--table_storage", "memory")), ((), LAZY)):
            half = f"{key}-{'lazy' if first else 'memory'}-first-{workers}"
            found.append(command(data, folder, half, *words, *whole, *first, "--max_steps", "4"))
            found.append(command(data, folder, half, *words, *whole, *then, "--resume", "auto"))
    return found


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """Return the folder of all runs, on one and on two workers."""
    folder = tmp_path_factory.mktemp("lazy")
    for workers in (1, 2):
        result = run(workers, commands(dataset, folder, workers, PAIRS), folder)
        assert result.code == 0, result.err
    return folder


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", PAIRS)
def test_lazy_tables_end_with_the_bits_of_tables_in_memory(trained, name, workers):
    key = name.replace(" ", "-")
    assert_equal(trained / f"{key}-lazy-{workers}", trained / f"{key}-memory")
    assert figures(trained / f"{key}-lazy-{workers}.log") == figures(trained / f"{key}-memory.log")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("first", ["lazy", "memory"])
@pytest.mark.parametrize("name", PAIRS)
def test_runs_resume_from_either_storage_to_the_other(trained, name, first, workers):
    key = name.replace(" ", "-")
    assert_equal(trained / f"{key}-{first}-first-{workers}", trained / f"{key}-memory")


def test_checkpoint_holds_only_rows_that_batches_have_named(trained):
    lazy, memory = Checkpoint(trained / "sgd-lazy-1"), Checkpoint(trained / "sgd-memory")
    saved = lazy.touched_table("cat_0")
    assert memory.touched_table("cat_0") is None
    assert 0 < saved.count < saved.rows == 200 and lazy.shape("tables/cat_0/weights") == (200, DIM)
    assert lazy.manifest["format"] == 4 and memory.manifest["format"] == 3
