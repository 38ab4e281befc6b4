"""Data and trained models that the tests share: a launch takes seconds, so there are few launches."""

import fcntl
import os
import sys
from pathlib import Path

import pytest
from launching import launch
from outcomes import Outcomes
from small_data import LISTS, ROWS, write_dataset, write_lists

from tests.distributed import resident
from tests.left_out import starts


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """Write a tf_raw dataset with `partial` training rows, and in its folder `of` one for each name of ROWS and LISTS; return its folder."""
    folder = write_dataset(tmp_path_factory.mktemp("data") / "dataset", {"train": ROWS["partial"], "test": ROWS["test"]})
    for name, rows in ROWS.items():
        write_dataset(folder / "of" / name, {"train": rows, "test": ROWS["test"]}, weighted=name == "weighted")
    for name in LISTS:
        write_lists(folder / "of" / name, name, {"train": ROWS["partial"], "test": ROWS["test"]})
    return folder


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory):
    """Return a function that returns the Outcomes of `trainings.CHOSEN` on N workers.

    The first call launches them; with pytest-xdist, one process launches for all.
    """
    starts("workers")
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
    partial, failed = (folder.with_name(f"{folder.name}.{name}") for name in ("writing", "failed"))
    if failed.exists():  # every test of these trainings fails by the same cause, without another try
        pytest.fail(failed.read_text(), pytrace=False)
    partial.mkdir()
    if workers in resident.NUMBERS:
        result = resident.call(workers, "trainings:main", dataset, partial)
    else:
        result = launch(workers, sys.executable, Path(__file__).with_name("trainings.py"), dataset, partial, limit_s=480)
    if result.code:
        failed.write_text(f"the trainings on {workers} workers ended with code {result.code}: {result.err}")
        pytest.fail(failed.read_text(), pytrace=False)
    partial.rename(folder)
