"""Tests that every mode gives the same from a checkpoint of touched rows, read into lazy tables or into memory, as from one of whole tables."""

import json

import polars
import pytest

from tests.distributed.lazy_runs import LAZY, assert_equal, command, everything
from tests.distributed.resident import do_in_turn
from utils.checkpoint.reading import Checkpoint

FLAGS = ("--optimizer", "adagrad", "--learning_rate", "0.1", "--epochs", "2")
TRAINED = {"memory": (), "lazy": LAZY}
READ = {"as saved": (), "lazy": LAZY, "memory": ("--table_storage", "memory")}


@pytest.fixture(scope="module")
def folder(dataset, tmp_path_factory):
    """Return the folder of two trained models, and of the log of each mode by checkpoint and by the storage that it is read into."""
    folder = tmp_path_factory.mktemp("modes")
    data = dataset / "of" / "partial"
    words = [command(data, folder, name, *FLAGS, *flags) for name, flags in TRAINED.items()]
    full = command(data, folder, "full", *FLAGS, *LAZY[:-1], "0.00002")
    for name in TRAINED:
        for into, flags in READ.items():
            key = f"{name}-{into.replace(' ', '-')}"
            base = ("--cpu", "--dataset_path", data, "--restore_checkpoint_path", folder / name, *flags)
            sizes = ("--inference_benchmark_batch_sizes", "7,96", "--inference_benchmark_steps", "3")
            words.append([*base, "--mode", "eval", "--log_path", folder / f"{key}-eval.log"])
            words.append([*base, "--mode", "predict", "--predictions_path", folder / f"{key}.parquet"])
            words.append([*base, "--mode", "inference", *sizes, "--log_path", folder / f"{key}-inference.log"])
    # tables of vectors are lazy, those of the linear weights are not
    mixed = (*LAZY[:2], "--table_storage_above", "3000", "--table_memory_gb", "0.5")
    words.append(command(data, folder, "mixed", *FLAGS, "--interaction", "wide_and_deep", *mixed))
    for into, flags in {"mixed": (), "memory": ("--table_storage", "memory")}.items():
        base = ("--cpu", "--dataset_path", data, "--restore_checkpoint_path", folder / "mixed", *flags, "--inference_benchmark_batch_sizes", "1,96")
        words.append([*base, "--mode", "inference", "--inference_benchmark_steps", "3", "--log_path", folder / f"mixed-in-{into}.log"])
    result = do_in_turn(1, words)
    assert result.code == 0, result.err
    ended = do_in_turn(1, [full])
    (folder / "ended").write_text(json.dumps([ended.code, ended.err]))
    assert do_in_turn(1, [command(data, folder, "full", *FLAGS, *LAZY, "--resume", "auto")]).code == 0
    return folder


def last(log):
    return json.loads(log.read_text().splitlines()[-1].removeprefix("DLLL "))["data"]


@pytest.mark.parametrize("into", READ)
@pytest.mark.parametrize("name", TRAINED)
def test_every_mode_gives_the_same(folder, name, into):
    key, expected = f"{name}-{into.replace(' ', '-')}", "memory-as-saved"
    for figure in ("auc", "test_loss", "samples"):
        assert last(folder / f"{key}-eval.log")[figure] == last(folder / f"{expected}-eval.log")[figure]
    for figure in ("auc_batch_7", "auc_batch_96"):
        assert last(folder / f"{key}-inference.log")[figure] == pytest.approx(last(folder / f"{expected}-inference.log")[figure], abs=1e-6)
    assert polars.read_parquet(folder / f"{key}.parquet").equals(polars.read_parquet(folder / f"{expected}.parquet"))


def test_lazy_tables_beside_linear_weights_in_memory_are_scored(folder):
    saved = Checkpoint(folder / "mixed")
    names = [name.removeprefix("tables/").removesuffix("/weights") for name in saved.names("tables/") if name.endswith("/weights")]
    lazy = [name for name in names if saved.touched_table(name)]
    assert lazy and all(saved.shape(f"tables/{name}/weights")[1] > 1 for name in lazy) and len(lazy) < len(names)
    found, expected = (last(folder / f"mixed-in-{into}.log") for into in ("mixed", "memory"))
    for figure in ("auc_batch_1", "auc_batch_96"):
        assert found[figure] == pytest.approx(expected[figure], abs=1e-6)


def test_full_memory_ends_with_a_checkpoint_from_which_more_memory_goes_on(folder):
    code, printed = json.loads((folder / "ended").read_text())
    (line,) = [line for line in printed.splitlines() if "error" in line]
    assert code and "which is saved" in line and "--table_memory_gb" in line and "--resume auto" in line and "Traceback" not in printed
    assert_equal(folder / "full", folder / "memory")


def test_full_memory_ends_after_the_batch_that_exceeds_it(folder):
    steps = sorted(path.name for path in (folder / "full").glob("step-*"))
    assert len(steps) > 1 and 0 < Checkpoint(folder / "full" / steps[0]).step < Checkpoint(folder / "full").step
    assert everything(folder / "full" / steps[0]).keys() == everything(folder / "memory").keys()
