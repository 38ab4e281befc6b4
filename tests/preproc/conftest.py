"""Small click logs for tests, and the datasets that the command makes of them."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from preproc.criteo import command as criteo
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.preproc.spark.spark_cluster import Sessions
from utils.commands import run_command


def make_line(label="0", num=None, cat=None) -> str:
    """Return a line in which only the named fields are filled: `num={4: "-2"}`, `cat={0: "ab"}`."""
    numbers, hashes = [""] * 13, [""] * 26
    for i, value in (num or {}).items():
        numbers[i] = str(value)
    for i, value in (cat or {}).items():
        hashes[i] = str(value)
    return "\t".join([label, *numbers, *hashes])


@dataclass
class Dataset:
    """A complete dataset, read back."""

    folder: Path
    spec: FeatureSpec

    def columns(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return labels `[n]`, numerical features `[n, M]` and ids `[F, n]`."""
        rows = TfRawSplit(self.spec, split)
        n = rows.num_samples
        ids = np.stack([rows.read_ids(i, 0, n).astype(np.int64) for i in range(len(self.spec.categorical))])
        found = rows.read_labels(0, n), rows.read_numerical(0, n), ids
        rows.close()
        return found

    def vocabulary(self, feature: str) -> list[tuple[int, int, int]]:
        """Return the saved rows (value, id, count)."""
        return pl.read_parquet(self.folder / "vocabulary" / f"{feature}.parquet").rows()


def preprocess(folder: Path, train: list[str] | bytes, test: list[str] | bytes, *flags: str, threshold: int = 0) -> Dataset:
    """Write the logs, run the command in this process, read the dataset's specification."""
    for name, content in (("day_0", train), ("day_1", test)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else "".join(f"{line}\n" for line in content).encode())
    arguments = ["--train", folder / "day_0", "--test", folder / "day_1", "--dst", folder / "out", "--frequency_threshold", threshold, *flags]
    assert do(criteo, *arguments) == 0
    return Dataset(folder / "out", spec_in(folder / "out"))


@pytest.fixture(name="make_line", scope="session")
def _make_line():
    return make_line


@pytest.fixture(name="preprocess", scope="session")
def _preprocess():
    return preprocess


@pytest.fixture
def call(monkeypatch, capfd):
    """Return a function that runs a command's main in this process and returns code, output and errors."""

    def run(main, *flags):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, flags)])
        capfd.readouterr()
        return run_command(main, "command"), *capfd.readouterr()

    return run


@pytest.fixture(scope="session")
def spark_sessions(tmp_path_factory):
    """Yield the Spark session that tests share; end it after the last of them."""
    sessions = Sessions(lambda: tmp_path_factory.mktemp("session"))
    yield sessions
    sessions.end()


@pytest.fixture(scope="module")
def one_spark(spark_sessions):
    """Let all Spark commands that a module's tests call share a session."""
    with spark_sessions.shared():
        yield


@pytest.fixture
def own_spark(spark_sessions):
    """End the shared session for a test that starts a session itself."""
    spark_sessions.end()
