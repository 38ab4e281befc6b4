"""The interval at which Horovod looks for work."""

import os

import pytest

from utils.pace import expected_step_ms, set_cycle_time


def test_expected_step_time_follows_from_the_matrix_products():
    assert expected_step_ms(1000, [(10, 20), (5, 4, 1)], 2, False) == pytest.approx(6 * 500 * (200 + 24) / 1e8)
    assert expected_step_ms(1000, [(10, 20)], 1, True) == pytest.approx(6 * 1000 * 200 / 3e8)


@pytest.mark.parametrize(("step_ms", "expected"), [(2, "1.0"), (100, "2.0"), (5000, "2.5")])
def test_cycle_time_grows_with_the_step_on_shared_processors(monkeypatch, step_ms, expected):
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", str(os.cpu_count()))
    set_cycle_time(step_ms)
    assert os.environ["HOROVOD_CYCLE_TIME"] == expected


def test_longest_cycle_time_grows_with_the_workers_of_a_processor(monkeypatch):
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", str(2 * os.cpu_count()))
    set_cycle_time(5000)
    assert os.environ["HOROVOD_CYCLE_TIME"] == "5.0"


def test_cycle_time_from_the_environment_is_kept(monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", str(os.cpu_count()))
    set_cycle_time(5000)
    assert os.environ["HOROVOD_CYCLE_TIME"] == "7"


def test_cycle_time_is_horovods_default_with_spare_processors(monkeypatch):
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", "2")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    set_cycle_time(5000)
    assert "HOROVOD_CYCLE_TIME" not in os.environ


def test_batch_normalisation_shortens_cycles(monkeypatch):
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    monkeypatch.setenv("HOROVOD_LOCAL_SIZE", str(os.cpu_count()))
    set_cycle_time(200, norms=3)
    assert float(os.environ["HOROVOD_CYCLE_TIME"]) == pytest.approx(200 / 50 * 3 / 9, abs=0.05)
