"""The data and the trained models that the tests share: a launch costs seconds, so there are few."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from launching import launch
from trainings import BATCH

from dataloading.feature_spec import generator_spec
from dataloading.synthetic import SyntheticSplit
from dataloading.tf_raw import TfRawWriter

# The first features of criteo_t15_synthetic; tables of more than 200 rows are cut to that.
CARDINALITIES = tuple(min(rows, 200) for rows in (7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114))
NUM_NUMERICAL = 3
ROWS = {"whole": 5 * BATCH, "partial": 5 * BATCH - 17, "large": 5000, "test": 397}  # 397 is prime: no batch and no N divides it


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A tf_raw dataset whose splits are the keys of ROWS; `train` is the same as `partial`."""
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", ROWS | {"train": ROWS["partial"]})


def write_dataset(folder: Path, rows: dict[str, int]) -> Path:
    spec = generator_spec(CARDINALITIES, NUM_NUMERICAL, 1.2)
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for split, count in rows.items():
            numerical, ids, labels, _ = SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)
            writer.append(split, numerical, ids, labels)
        writer.publish({})
    return folder


@dataclass
class Outcome:
    """What one configuration came to on N workers."""

    losses: np.ndarray
    before: dict[str, np.ndarray]  # weights by checkpoint name, put together from the workers' parts
    after: dict[str, np.ndarray]
    scores: tuple[np.ndarray, np.ndarray] | None  # logits and labels of the test split
    calls: list[list]  # by worker: (operation, name, bytes sent) of one step
    plan: dict
    files: list[list[str]]  # by worker: the split's files that it had open
    diverged: list[str]  # by worker: what it said when the last one's weights were off


class Outcomes:
    """All configurations on N workers, by name; `threads[r]` is worker r's number of threads."""

    def __init__(self, folder: Path, workers: int):
        self._files = [np.load(folder / f"{rank}.npz") for rank in range(workers)]
        self.names = sorted({key.split("/")[0] for key in self._files[0].files if "/" in key})
        self.threads = [int(file["threads"]) for file in self._files]

    def __getitem__(self, name: str) -> Outcome:
        every = {key: [file[f"{name}/{key}"] for file in self._files] for key in ("losses", "calls", "files", "diverged")}
        for losses in every["losses"]:
            np.testing.assert_array_equal(losses, every["losses"][0], err_msg="the workers saw different losses")
        first = self._files[0]
        return Outcome(
            every["losses"][0],
            self._weights(f"{name}/before/"),
            self._weights(f"{name}/after/"),
            (first[f"{name}/logits"], first[f"{name}/labels"]) if f"{name}/logits" in first.files else None,
            [json.loads(str(calls)) for calls in every["calls"]],
            json.loads(str(first[f"{name}/plan"])),
            [files.tolist() for files in every["files"]],
            [str(text) for text in every["diverged"]],
        )

    def _weights(self, prefix: str) -> dict[str, np.ndarray]:
        columns: dict[str, dict[int, np.ndarray]] = {}
        for file in self._files:
            for key in file.files:
                if key.startswith(prefix):
                    array, first = key.removeprefix(prefix).split("@")
                    assert int(first) not in columns.setdefault(array, {}), f"{key} is held twice"
                    columns[array][int(first)] = file[key]
        return {array: np.concatenate([found[first] for first in sorted(found)], axis=-1) for array, found in columns.items()}


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
