"""The data and the trained models that the tests share: a launch costs seconds, so there are few."""

import sys
from pathlib import Path

import pytest
from launching import launch
from outcomes import Outcomes
from small_data import ROWS, write_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A tf_raw dataset, `train` of the size `partial`; in folders of it, by the names of ROWS, others with so many rows to train on."""
    folder = write_dataset(tmp_path_factory.mktemp("data") / "dataset", {"train": ROWS["partial"], "test": ROWS["test"]})
    for name, rows in ROWS.items():
        write_dataset(folder / "of" / name, {"train": rows, "test": ROWS["test"]})
    return folder


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory):
    """By number of workers, what `trainings.CHOSEN` came to; launched when first asked for."""
    known: dict[int, Outcomes] = {}

    def outcomes(workers: int) -> Outcomes:
        if workers not in known:
            folder = tmp_path_factory.mktemp(f"trained-on-{workers}")
            result = launch(workers, sys.executable, Path(__file__).with_name("trainings.py"), dataset, folder, limit_s=480)
            assert result.code == 0, result.err
            known[workers] = Outcomes(folder, workers)
        return known[workers]

    return outcomes
