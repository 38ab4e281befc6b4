"""NVIDIA's commands make a dataset of raw logs, and make it only once."""

import os
import sys
from pathlib import Path

import pytest

from preproc import sample_log
from preproc.criteo import command as criteo
from tests.helpers.commands import do, run
from tests.helpers.folders import tree
from tests.preproc.spark.spark_cluster import needs_spark

PREPROC = Path(__file__).parents[2] / "preproc"
FOLDERS = {"download_dir": "in", "spark_output_path": "out", "conversion_intermediate_dir": "between", "final_output_dir": "final"}

FLAGS = "--frequency_threshold 3 --output_ordering total_random --dictionary_days all --halve_test --bad_lines skip"


@pytest.fixture
def script(tmp_path):
    """Return a function that runs a script with NVIDIA's folders below `tmp_path` and returns code, output and errors."""
    environment = os.environ | {name: str(tmp_path / folder) for name, folder in FOLDERS.items()}
    environment |= {"LAST_DAY": "1", "PYTHON": sys.executable, "TOTAL_CORES": "2", "TOTAL_MEMORY": "2"}

    def call(name, *arguments, **more):
        done = run(*arguments, program=PREPROC / name, env=environment | more)
        return done.returncode, done.stdout, done.stderr

    return call


def test_script_for_the_cpu_makes_the_same_dataset(script, tmp_path):
    """It calls the command that prepare_dataset.sh calls for the CPU, which the next test lets run; here `echo` stands for Python."""
    folders = tmp_path / "in", tmp_path / "out"
    for folder in folders:
        folder.mkdir()
    for name in ("day_0.tsv", "day_1.tsv"):
        (folders[0] / name).write_text("a line\n")
    code, out, err = script("run_spark_cpu.sh", *folders, 3, PYTHON="/bin/echo")
    said = f"-m preproc.criteo --engine spark --spark_master local[2] --spark_conf spark.driver.memory=1g {FLAGS} --dst {folders[1]}"
    assert (code, out, err) == (0, f"{said} --train {folders[0]}/day_0.tsv --test {folders[0]}/day_1.tsv\n", "")
    complete = "out is complete (days 0 to 1, frequency limit 3, ordering total_random, dictionaries of all days)\n"
    assert script("run_spark.sh", "CPU", *folders, 3)[1].endswith(complete)
    said = "run_spark.sh: error: TOTAL_CORES is 'many'; expected a whole number of at least 1\n"
    assert script("run_spark_cpu.sh", *folders, TOTAL_CORES="many")[::2] == (1, said)


@needs_spark
def test_dataset_is_made_from_logs_only_once(script, tmp_path):
    assert do(sample_log, "--dst", tmp_path / "in", "--rows", "600", "301") == 0
    code, out, err = script("prepare_dataset.sh", "CPU", 3)
    assert code == 0, err
    assert "final is complete: train with  python dlrm.py --dataset_path" in out and list((tmp_path / "between").iterdir()) == []
    days = ["--train", tmp_path / "in" / "day_0.tsv", "--test", tmp_path / "in" / "day_1.tsv", "--dst", tmp_path / "polars"]
    assert do(criteo, *days, *FLAGS.split()) == 0
    final = tree(tmp_path / "final")
    assert final.pop("_SUCCESS") == b"days 0 to 1, frequency limit 3, ordering total_random, dictionaries of all days\n"
    assert final == tree(tmp_path / "polars")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, out, err = script("prepare_dataset.sh", "CPU", 3, PYTHON="/bin/false")  # the complete dataset is found, and no command is run
    assert (code, err) == (0, "") and "final is complete" in out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times
    code, out, err = script("prepare_dataset.sh", "CPU", 4)
    assert code == 1 and "out holds another dataset (days 0 to 1, frequency limit 3" in err
    (tmp_path / "final" / "_SUCCESS").write_text("other\n")
    code, out, err = script("prepare_dataset.sh", "CPU", 3)
    assert code == 1 and "final holds another dataset (other); choose another final_output_dir" in err


def test_missing_logs_and_invalid_arguments_are_errors(script, tmp_path):
    code, _, err = script("prepare_dataset.sh", "CPU", 3)
    assert (code, err) == (1, f"verify_criteo_downloaded.sh: error: {tmp_path / 'in'}: no such folder; expected the Criteo logs, day_0 to day_1\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "day_0.gz").write_bytes(b"x")
    (tmp_path / "in" / "day_1").write_bytes(b"")
    code, _, err = script("verify_criteo_downloaded.sh", tmp_path / "in")
    assert code == 1 and err.startswith(f"verify_criteo_downloaded.sh: error: {tmp_path / 'in' / 'day_1'}: no such file, or empty")
    (tmp_path / "in" / "day_1").write_bytes(b"x")
    assert script("verify_criteo_downloaded.sh", tmp_path / "in")[0] == 0
    for words, said in (
        (("TPU",), "expected CPU, GPU or DGX2 as first argument, found 'TPU'"),
        (("GPU", tmp_path / "in", tmp_path / "out"), "SPARK_RAPIDS_JAR: expected the path of rapids-4-spark_2.13-VERSION.jar, found ''"),
    ):
        assert script("run_spark.sh", *words)[::2] == (1, f"run_spark.sh: error: {said}\n")
    said = "run_spark.sh: error: TOTAL_CORES is 'many'; expected a whole number of at least 1\n"
    assert script("run_spark.sh", "CPU", TOTAL_CORES="many")[2] == said
    assert script("prepare_dataset.sh", "CPU")[2].startswith("prepare_dataset.sh: error: expected CPU, GPU or DGX2 and a frequency limit")
