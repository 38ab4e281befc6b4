"""Runs with tables in memory and lazy ones, whose results must be equal bit by bit."""

import json
from pathlib import Path

import numpy as np

from tests.distributed.small_data import BATCH, DIMS
from utils.checkpoint.reading import Checkpoint

LAZY = ("--table_storage", "lazy", "--table_storage_above", "1", "--table_memory_gb", "0.5")
STEPS, EPOCHS = 10, 2
BASE = ("--cpu", "--batch_size", str(BATCH), "--gradient_slices", "8", "--valid_batch_size", "96", "--warmup_steps", "0", "--seed", "5")


def command(dataset: Path, folder: Path, name: str, *flags: str) -> list[str]:
    """Return the command line of a run whose checkpoints and log are in FOLDER/NAME."""
    saved, dims = folder / name, DIMS if dataset.name != "shapes" else DIMS[-2:]  # the specification of that dataset has the widths of the tables
    return ["--dataset_path", str(dataset), *BASE, *dims, "--save_checkpoint_path", str(saved), "--log_path", f"{saved}.log", *flags]


def everything(folder: Path) -> dict[str, np.ndarray]:
    """Return all arrays of a folder's newest checkpoint."""
    checkpoint = Checkpoint(folder)
    return {name: checkpoint.read(name) for name in checkpoint.names("")}


def assert_equal(folder: Path, expected: Path) -> None:
    """Check that the newest checkpoints of two folders hold the same bits, and the same rows touched."""
    found, wanted = everything(folder), everything(expected)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name].view(np.int32), values.view(np.int32), err_msg=f"{folder.name}: {name}")
    one, other = Checkpoint(folder), Checkpoint(expected)
    assert one.content("touched.bin") == other.content("touched.bin")
    assert one.step == other.step


def figures(log: Path) -> dict:
    """Return the metrics of a log's last line."""
    last = json.loads(log.read_text().splitlines()[-1].removeprefix("DLLL "))["data"]
    return {name: last[name] for name in ("auc", "validation_loss", "train_loss", "samples")}
