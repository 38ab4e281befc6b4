"""Tests of scripts/preproc.sh and scripts/preproc_benchmark.sh: NVIDIA's commands from Outbrain's raw files to TFRecords, and their memory watch."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dataloading import generate_outbrain

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a script with Outbrain's folders in `tmp_path` and returns its exit code, output and errors."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RAW", "TFRECORDS", "FORMAT", "OVERWRITE")}
    environment |= {"OUTBRAIN_DIR": str(tmp_path), "PYTHON": sys.executable}

    def call(script, *arguments, **more):
        words = ["bash", SCRIPTS / script, *map(str, arguments)]
        done = subprocess.run(words, cwd=tmp_path, env=environment | more, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return call


def test_benchmark_runs_the_given_number_of_iterations(run, tmp_path):
    assert generate_outbrain.main(["--displays", "300", "--dst", str(tmp_path / "orig")]) == 0
    code, out, err = run("preproc_benchmark.sh", "-m", "nvtabular", "-t", 3, "-i", 1)
    assert code == 0, err
    assert err.count("nvtabular: using Polars instead") == 1
    assert (tmp_path / "tfrecords/eval/part-r-00000").is_file() and (tmp_path / "tfrecords/transformed_metadata/schema.pbtxt").is_file()
    memory = re.search(r"^\[BENCHMARK\] Memory consumption \(kB\): (\d+)$", out, re.M)[1]
    assert (tmp_path / "mem_consumption.txt").read_text() == f"{memory}\n"
    assert "[BENCHMARK] Iteration=1\n[BENCHMARK] Tfrecords=3\n" in out
    assert re.search(r"^\[BENCHMARK\] Total time elapsed: 0h:\d+m:\d+s$", out, re.M)
    assert re.search(r"^\[BENCHMARK\] Average iteration time: 0h:\d+m:\d+s$", out, re.M)


def test_the_flags_of_each_mode(run, tmp_path):
    """Each mode calls Python with the right flags; a stub prints them."""
    (tmp_path / "orig").mkdir()
    echo = tmp_path / "python"
    echo.write_text("#!/bin/sh\necho called: $*\n")
    echo.chmod(0o755)
    flags = f"-m preproc.outbrain --src {tmp_path}/orig --dst {tmp_path}/tfrecords --format"
    for arguments, more, expected in (
        (("polars",), {}, f"{flags} tfrecord --num_files 40"),
        (("spark", "7"), {}, f"{flags} tfrecord --num_files 7 --engine spark"),
        (("polars", "7"), {"FORMAT": "both", "OVERWRITE": "1"}, f"{flags} both --num_files 7 --overwrite"),
        (("nvtabular",), {"FORMAT": "tf_raw"}, f"{flags} tf_raw"),
    ):
        code, out, _ = run("preproc.sh", *arguments, PYTHON=str(echo), **more)
        assert (code, out) == (0, f"called: {expected}\n")
    code, out, _ = run("preproc.sh", "polars", PYTHON=str(echo), RAW=str(tmp_path), TFRECORDS="elsewhere")
    assert out == f"called: -m preproc.outbrain --src {tmp_path} --dst elsewhere --format tfrecord --num_files 40\n"


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("preproc.sh", (), "expected spark, nvtabular or polars, and a number of files"),
        ("preproc.sh", ("pandas",), "pandas: expected spark, nvtabular or polars"),
        ("preproc.sh", ("polars", "0"), "0 files of TFRecords; expected a whole number"),
        ("preproc.sh", ("polars",), "orig: no such folder; expected Outbrain's raw files there"),
        ("preproc_benchmark.sh", (), "-m is missing"),
        ("preproc_benchmark.sh", ("-m", "gpu"), "-m gpu: expected spark, nvtabular or polars"),
        ("preproc_benchmark.sh", ("-m", "spark", "-i", "0"), "-i 0: expected a whole number from 1 to 999999"),
        ("preproc_benchmark.sh", ("-m",), "-m: a value is missing"),
        ("preproc_benchmark.sh", ("--all",), "--all: expected -m spark|nvtabular|polars"),
    ],
)
def test_invalid_arguments_are_one_line(run, script, arguments, message):
    code, out, err = run(script, *arguments)
    assert code == 1 and out == "" and err.startswith(f"{script}: error: ") and message in err and err.count("\n") == 1


def test_the_memory_watch_keeps_the_largest_drop(tmp_path):
    meminfo, found = tmp_path / "meminfo", tmp_path / "found.txt"

    def says(kilobytes):
        (tmp_path / "new").write_text(f"MemTotal: 9000 kB\nMemAvailable:   {kilobytes} kB\n")
        (tmp_path / "new").rename(meminfo)

    def wait_for(text):
        end = time.monotonic() + 30
        while not found.exists() or found.read_text() != text:
            assert watch.poll() is None and time.monotonic() < end
            time.sleep(0.01)

    says(5000)
    environment = os.environ | {"MEMINFO": str(meminfo), "SLEEP": "0.01", "MEM_CONSUMPTION": str(found)}
    watch = subprocess.Popen(["bash", SCRIPTS / "memscript.sh"], env=environment)
    try:
        wait_for("0\n")
        says(4200)
        wait_for("800\n")
        says(4900)
        time.sleep(0.1)
        wait_for("800\n")
        says(1000)
        wait_for("4000\n")
    finally:
        watch.kill()
        watch.wait()
