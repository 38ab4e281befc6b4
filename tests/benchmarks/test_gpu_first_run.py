"""Tests of scripts/gpu_first_run without a GPU: a dry run, and parts that fail, take too long or are never started."""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.first_run import run
from benchmarks.gpu.parts import DRY, Command, Sizes, parts
from tests.helpers.commands import run as run_child
from utils.cluster.launcher import Process
from utils.dialects.command_line import parse

SCRIPT = Path(__file__).parents[2] / "scripts/gpu_first_run"


def first_run(folder, *arguments):
    return run_child(*arguments, program=SCRIPT, cwd=folder, timeout=600)


# One part of each group of parts that differ only by flags of dlrm.py.
WALKED = ("device", "products", "rows_int64", "steps_GPU", "steps_CPU", "steps_compared", "specification", "dataset")
WALKED += ("train_and_save", "eval", "eval_on_the_cpu", "train_by_horovodrun")


def test_flags_of_all_parts_are_valid(tmp_path):
    for sizes in (DRY, Sizes()):
        for command in parts(tmp_path, sizes):
            words = list(map(str, command.words))
            if any(word.endswith("dlrm.py") for word in words):
                parse(words[next(i for i, word in enumerate(words) if word.endswith("dlrm.py")) + 1 :], "")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dry_run_of_all_kinds_of_parts(tmp_path):
    result = first_run(tmp_path, "out", "--dry", "--only", ",".join(WALKED))
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    results = [json.loads(path.read_text()) for path in sorted((tmp_path / "out").glob("[0-9]*.json"))]
    assert [one["name"] for one in results] == [command.name for command in parts(tmp_path / "out", DRY) if command.name in WALKED]
    by_name = {one["name"]: one["figures"] for one in results}
    assert all(one["code"] == 0 and (one["figures"] or one["name"] in ("specification", "dataset")) for one in results)
    assert by_name["rows_int64"]["read_as_written"] and by_name["steps_compared"]["float32_matches"]
    assert by_name["eval"]["auc"] == pytest.approx(by_name["eval_on_the_cpu"]["auc"], abs=0.01)
    assert by_name["train_and_save"]["steps"] == DRY.steps


def test_full_size_parts_have_unique_names_and_time_limits():
    commands = list(parts(Path("/out"), Sizes()))
    assert len({command.name for command in commands}) == len(commands) > 20
    assert all(0 < command.limit_s <= 360 for command in commands)


def test_part_beyond_its_time_limit_is_ended_with_its_children(tmp_path):
    starts = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    result = run(Command("waits", (sys.executable, "-c", starts), 15), tmp_path, 7, {})
    assert (result["code"], result["timed_out"]) == (124, True) and 15 <= result["seconds"] < 90
    started, deadline = int(result["out"]), time.monotonic() + 60  # after the kill the child may still run for a moment
    while Process.of(started) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert Process.of(started) is None
    failing = Command("fails", (sys.executable, "-c", "import sys; print('{\"a\": 1}'); sys.exit('why')"), 90)
    result = run(failing, tmp_path, 8, {})
    assert (result["code"], result["figures"], result["err"]) == (1, {"a": 1}, "why\n")


def test_exceeded_time_used_folder_and_unknown_part_are_errors(tmp_path):
    late = first_run(tmp_path, "late", "--dry", "--only", "device,specification", "--minutes", "0")
    assert late.returncode == 1 and "device: not started, because the 0 minutes (--minutes) are over" in late.stdout
    used = first_run(tmp_path, ".", "--dry")
    assert used.returncode == 1 and "already exists; name a new folder" in used.stderr
    unknown = first_run(tmp_path, "new", "--dry", "--only", "speed")
    assert unknown.returncode == 1 and "--only speed: expected some of device, products" in unknown.stderr and len(unknown.stderr.splitlines()) == 1
