"""How much memory there is, and what is said where it is too little."""

import psutil
import pytest

from utils.errors import UserError
from utils.memory import GIB, available_bytes, check_fits, device_bytes


def test_available_memory_is_some_of_the_machines():
    assert 0 < available_bytes() <= psutil.virtual_memory().total


def test_what_fits_passes():
    check_fits(10 * GIB, "tables", available=10 * GIB)
    check_fits(1, "tables", available_bytes())


def test_the_shortfall_is_named_in_gib():
    with pytest.raises(UserError, match=r"^the tables need 16\.0 GiB.*12\.5 GiB.*3\.5 GiB short") as raised:
        check_fits(16 * GIB, "the tables", available=int(12.5 * GIB))
    assert "\n" not in str(raised.value)


def test_a_table_larger_than_any_machine_is_refused():
    with pytest.raises(UserError):
        check_fits(1 << 60, "the tables", available_bytes())


GPUS = "0, GPU-aaaa-1, 40000\n1, GPU-bbbb-2, 20000\n2, GPU-cccc-3, 10000\n"


@pytest.mark.parametrize(
    ("visible", "rank", "free"),
    [
        (None, 1, 20000),
        (None, 3, 40000),
        ("2,0", 0, 10000),
        ("2,0", 1, 40000),
        ("GPU-bbbb", 0, 20000),
        ("1,-1,0", 1, 20000),  # CUDA sees none behind a word that names none
    ],
)
def test_a_workers_gpu_is_one_that_cuda_sees_and_counts_what_is_free(tmp_path, monkeypatch, visible, rank, free):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{GPUS}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_bytes(rank) == int(0.9 * free * 2**20)
