"""Both commands on a cluster of two workers, of which an executor is killed while it reads: the very files that Polars writes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from preproc import criteo, table, table_spark_reading
from preproc.engines import spark_dictionaries
from tests.preproc.spark_cluster import JAVA, QUICK, Cluster, cluster, needs_spark, tree
from tests.preproc.test_criteo_spark import log
from tests.preproc.test_table_spark import CONFIG, csv, rows

pytestmark = [needs_spark, pytest.mark.usefixtures("one_spark")]


@pytest.fixture(scope="module")
def workers(tmp_path_factory, spark_sessions) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made
        spark_sessions.end()


def on(workers: Cluster) -> tuple:
    conf = ("spark.executor.memory=500m", "spark.driver.host=127.0.0.1", "spark.default.parallelism=2", "spark.ui.enabled=false")
    conf += (f"spark.executor.extraJavaOptions={JAVA}",)
    return ("--engine", "spark", "--spark_master", workers.url, *(word for setting in conf for word in ("--spark_conf", setting)), *QUICK)


@contextmanager
def killed(workers: Cluster, folder: Path, within: int) -> Iterator[None]:
    """An executor is killed when the first of its tasks has ended, and before so many have."""
    ended = []

    def kill() -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not list(folder.glob(".staging-*/spark/reading-*")):
            time.sleep(0.005)
        os.kill(workers.executors()[0].pid, signal.SIGKILL)
        ended.append(len(list(folder.glob(".staging-*/spark/reading-*"))))

    killer = threading.Thread(target=kill)
    killer.start()
    yield
    killer.join()
    assert ended and ended[0] < within, ended


def same(command, words: list, folder: Path, workers: Cluster, capsys) -> None:
    words = list(map(str, words))
    assert command.main([*words, "--dst", str(folder / "polars")]) == 0
    said = capsys.readouterr().err
    with killed(workers, folder / "spark", 14):
        assert command.main([*words, "--dst", str(folder / "spark"), *on(workers)]) == 0
    assert capsys.readouterr().err == said
    assert tree(folder / "spark") == tree(folder / "polars")


def test_criteo(tmp_path, capsys, workers, monkeypatch):
    monkeypatch.setattr(spark_dictionaries, "TASK_COUNTS", 0)  # by Spark SQL, as of very many values
    (tmp_path / "day_0").write_text("".join(f"{line}\n" for line in log(1000, 7)) * 8)
    (tmp_path / "day_1").write_text("".join(f"{line}\n" for line in log(300, 8)))
    words = ["--train", tmp_path / "day_0", tmp_path / "day_1", "--test", tmp_path / "day_1", "--frequency_threshold", 2, "--block_bytes", 60_000]
    same(criteo, words, tmp_path, workers, capsys)


def test_table(tmp_path, capsys, workers, monkeypatch):
    monkeypatch.setattr(table_spark_reading, "TASKS_A_CORE", 15)
    (tmp_path / "train.csv").write_text(csv(rows(500, 10)) + csv(rows(500, 11), None) * 6)
    (tmp_path / "more.csv").write_text(csv(rows(200, 1)))
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    files = [tmp_path / "train.csv", tmp_path / "more.csv"]
    same(table, ["--train", *files, "--config", tmp_path / "columns.yaml", "--test_fraction", 0.1, "--block_bytes", 8_000], tmp_path, workers, capsys)
