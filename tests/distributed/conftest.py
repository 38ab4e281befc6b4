"""The data and the trained models that the tests share: a launch costs seconds, so there are few."""

import fcntl
import os
import sys
from pathlib import Path

import pytest
from launching import launch
from outcomes import Outcomes
from small_data import LISTS, ROWS, write_dataset, write_lists


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A tf_raw dataset, `train` of the size `partial`; in folders of it, by the names of ROWS, others with so many rows to train on."""
    folder = write_dataset(tmp_path_factory.mktemp("data") / "dataset", {"train": ROWS["partial"], "test": ROWS["test"]})
    for name, rows in ROWS.items():
        write_dataset(folder / "of" / name, {"train": rows, "test": ROWS["test"]})
    for name in LISTS:
        write_lists(folder / "of" / name, name, {"train": ROWS["partial"], "test": ROWS["test"]})
    return folder


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory):
    """By number of workers, what `trainings.CHOSEN` came to; launched when first asked for, by one of pytest's processes for all."""
    known: dict[int, Outcomes] = {}
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def outcomes(workers: int) -> Outcomes:
        if workers not in known:
            folder = shared / f"trained-on-{workers}"
            with (shared / f"{folder.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.exists():
                    _train(workers, dataset, folder)
            known[workers] = Outcomes(folder, workers)
        return known[workers]

    return outcomes


def _train(workers: int, dataset: Path, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.writing")
    partial.mkdir()
    result = launch(workers, sys.executable, Path(__file__).with_name("trainings.py"), dataset, partial, limit_s=480)
    assert result.code == 0, result.err
    partial.rename(folder)
