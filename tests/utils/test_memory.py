"""The memory that is available, and the messages where it is too little."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers.commands import run
from utils.errors import UserError
from utils.memory import GIB, available_bytes, check_fits, device_bytes


def test_available_memory_is_at_most_the_machines():
    assert 0 < available_bytes() <= psutil.virtual_memory().total


def test_sizes_that_fit_pass():
    check_fits(10 * GIB, "tables", available=10 * GIB)
    check_fits(1, "tables", available_bytes())


def test_error_states_the_shortfall_in_gib():
    with pytest.raises(UserError, match=r"^the tables need 16\.0 GiB.*12\.5 GiB.*3\.5 GiB short") as raised:
        check_fits(16 * GIB, "the tables", available=int(12.5 * GIB))
    assert "\n" not in str(raised.value)


def test_table_larger_than_any_machine_is_an_error():
    with pytest.raises(UserError):
        check_fits(1 << 60, "the tables", available_bytes())


ROOT = Path(__file__).parents[2]
GPUS = "0, GPU-aaaa-1, 40000\n1, GPU-bbbb-2, 20000\n2, GPU-cccc-3, 10000\n"


@pytest.mark.parametrize(
    ("visible", "rank", "free"),
    [
        (None, 1, 20000),
        (None, 3, 40000),
        ("2,0", 0, 10000),
        ("2,0", 1, 40000),
        ("GPU-bbbb", 0, 20000),
        ("1,-1,0", 1, 20000),  # CUDA sees no GPU listed behind an invalid one
    ],
)
def test_device_bytes_is_from_the_free_memory_of_a_visible_gpu(tmp_path, monkeypatch, visible, rank, free):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{GPUS}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_bytes(rank) == int(0.9 * free * 2**20)


def limited(folder, limit, *words):
    """Run a command under a limit of the shell (`ulimit`); return its exit code and its error lines."""
    script = f'ulimit -c 0 && ulimit {limit} && exec "$@"'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = run("-c", script, "sh", sys.executable, *words, program="sh", cwd=folder, env=environment)
    return result.returncode, [line for line in result.stderr.splitlines() if "error: " in line or "Traceback" in line or "Error" in line]


BATCHES = ("--valid_batch_size", "64", "--synthetic_dataset_train_batches", "2", "--synthetic_dataset_valid_batches", "1")
SMALL = ("--dataset_type", "synthetic", "--cpu", "--batch_size", "64", "--embedding_dim", "16", "--bottom_mlp_dims", "16", "--top_mlp_dims", "4,1")


# Of the first two limits one gave a segmentation fault, and one a traceback of threads that could not be started: which one depends on the machine.
@pytest.mark.parametrize("limit", ["-v 4280000", "-v 4320000", "-d 3000000"])
def test_ulimit_too_low_for_the_tables_is_a_one_line_error(tmp_path, limit):
    """The tables of 2.4 GiB alone would fit, but TensorFlow takes twice as much."""
    code, lines = limited(tmp_path, limit, ROOT / "dlrm.py", *SMALL, *BATCHES, "--synthetic_dataset_cardinalities", "40000000,60", "--log_path", "")
    assert code == 1 and len(lines) == 1, (code, lines)
    assert "the embedding tables take 2.4 GiB" in lines[0]
    assert lines[0].endswith(f"(limited by ulimit {limit}, not by the machine's memory)")


def test_ulimit_too_low_for_tensorflow_is_a_one_line_error(tmp_path):
    code, lines = limited(tmp_path, "-v 500000", ROOT / "dlrm.py", *SMALL, "--log_path", "")
    assert code == 1 and len(lines) == 1 and "out of memory" in lines[0], (code, lines)


def test_limits_of_all_parent_control_groups_count(tmp_path, monkeypatch):
    inner = tmp_path / "a.slice/b.service"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "max"), (inner.parent, 5000), (tmp_path, 7000)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("3000\n")
        (folder / "memory.stat").write_text("anon 2000\ninactive_file 500\n")
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/a.slice/b.service\n")
    monkeypatch.setattr("utils.memory.GROUPS", tmp_path)
    monkeypatch.setattr("utils.memory.OWN_GROUP", tmp_path / "own")
    assert available_bytes() == 2500
    (inner / "memory.max").write_text("3100\n")
    assert available_bytes() == 600
    (tmp_path / "own").unlink()
    assert available_bytes() == 4500
