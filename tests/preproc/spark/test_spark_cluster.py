"""The commands on a cluster of two workers write the same files as Polars, although an executor is killed while it reads.

With OUTBRAIN_DISPLAYS=40000 raw files of some 200,000 clicks go through `preproc.outbrain`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.testing import assert_array_equal

from dataloading import generate_outbrain
from dataloading.tf_raw import TfRawSplit
from preproc.criteo import command as criteo
from preproc.outbrain import command as outbrain
from preproc.outbrain import on_spark as outbrain_spark
from preproc.spark import dictionaries as spark_dictionaries
from preproc.spark.engine import SparkEngine
from preproc.table import command as table
from preproc.table import spark_reading as table_spark_reading
from tests.children import found
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from tests.preproc.criteo.test_criteo_spark import log
from tests.preproc.spark.spark_cluster import JAVA, QUICK, Cluster, cluster, needs_spark
from tests.preproc.table.test_table_spark import CONFIG, csv, rows

pytestmark = [needs_spark, pytest.mark.usefixtures("one_spark")]


@pytest.fixture(scope="module")
def workers(tmp_path_factory, spark_sessions) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made
        spark_sessions.end()


def on(workers: Cluster) -> tuple:
    conf = ("spark.executor.memory=500m", "spark.driver.host=127.0.0.1", "spark.default.parallelism=2", "spark.ui.enabled=false")
    conf += (f"spark.executor.extraJavaOptions={JAVA}",)
    flags = ("--engine", "spark", "--spark_master", workers.url, "--spark_wait", "300")
    return (*flags, *(word for setting in conf for word in ("--spark_conf", setting)), *QUICK)


@contextmanager
def killed(workers: Cluster, folder: Path) -> Iterator[None]:
    """Kill an executor after the first of the reading tasks has ended, and before all have."""
    tasks, ended, over, ask = [], [], threading.Event(), SparkEngine.map

    def counted(engine: SparkEngine, name: str, work, items, *unit: str):
        if name == "reading":
            tasks.append(len(items))
        return ask(engine, name, work, items, *unit)

    def wait_for(condition):
        while not (value := condition()) and not over.wait(0.005):
            pass
        return value

    def kill() -> None:
        wait_for(lambda: found(folder, ".staging-*/spark/probe-*"))  # the probe that every run begins with: executors have started
        executors = wait_for(workers.executors)
        if wait_for(lambda: found(folder, ".staging-*/spark/reading-*")):
            executors[0].kill()
            ended.append(len(found(folder, ".staging-*/spark/reading-*")))

    killer = threading.Thread(target=kill)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkEngine, "map", counted)
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join()
    assert len(tasks) == 1 and ended and 0 < ended[0] < tasks[0], (ended, tasks)


def same(command, words: list, folder: Path, workers: Cluster, capsys) -> None:
    words = list(map(str, words))
    assert do(command, *words, "--dst", folder / "polars") == 0
    said = capsys.readouterr().err
    with killed(workers, folder / "spark"):
        assert do(command, *words, "--dst", folder / "spark", *on(workers)) == 0
    assert capsys.readouterr().err == said
    assert tree(folder / "spark") == tree(folder / "polars")


@pytest.mark.costly("a cluster of Spark of its own")
def test_criteo(tmp_path, capsys, workers, monkeypatch):
    monkeypatch.setattr(spark_dictionaries, "TASK_COUNTS", 0)  # by Spark SQL, as for very many values
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


@pytest.mark.costly("the end of the cluster, and of its Java, counts here")
def test_outbrain(tmp_path, capsys, workers, monkeypatch):
    """Bytes are the same, and so are the numbers read. No executor is killed; those killed before are back, or the run does without them."""
    monkeypatch.setattr(outbrain_spark, "TASKS_A_CORE", 2)
    displays = os.environ.get("OUTBRAIN_DISPLAYS", "800")
    assert do(generate_outbrain, "--displays", displays, "--dst", tmp_path / "raw") == 0
    words = ["--src", str(tmp_path / "raw"), "--block_bytes", "5000" if displays == "800" else "500000"]
    capsys.readouterr()
    assert do(outbrain, *words, "--dst", tmp_path / "polars") == 0
    said = capsys.readouterr().err
    assert do(outbrain, *words, "--dst", tmp_path / "spark", *on(workers)) == 0
    assert capsys.readouterr().err == said
    assert tree(tmp_path / "spark") == tree(tmp_path / "polars")
    specs = [spec_in(tmp_path / engine) for engine in ("polars", "spark")]
    for split in outbrain.SPLITS:
        first, second = (TfRawSplit(spec, split) for spec in specs)
        n = first.num_samples
        assert n == second.num_samples > int(displays)
        for place in range(13):
            assert_array_equal(first.read_ids(place, 0, n), second.read_ids(place, 0, n))
        assert_array_equal(first.read_labels(0, n), second.read_labels(0, n))
        assert_array_equal(first.read_group(0, n), second.read_group(0, n))
        np.testing.assert_allclose(first.read_numerical(0, n), second.read_numerical(0, n), rtol=0, atol=1e-6)
        first.close()
        second.close()
