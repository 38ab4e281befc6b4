"""The trial before training that finds out whether all workers share a folder of checkpoints: each worker's view of it."""

import threading
import time
from types import SimpleNamespace

import pytest

from utils.checkpoint import trial
from utils.errors import UserError


def worker(token=77, first=False, before=lambda name: None):
    """Make one of two workers, which does not receive the other's errors."""

    def agree(problem, name):
        if problem:
            raise UserError(problem)
        before(name)

    return SimpleNamespace(first=first, from_first=lambda value, name: token, agree=agree)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(trial, "REMOTE_WITHIN_S", 1.0)


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(trial, "REMOTE_WITHIN_S", 60.0)
    monkeypatch.setattr(trial, "LOCAL_WITHIN_S", 60.0)


def test_shared_folder_passes(tmp_path, patient):
    """The other worker may look before the first one has written."""
    written = threading.Event()

    def first():
        trial.try_folder(tmp_path, ["a"], worker(first=True, before=lambda name: name == "checkpoint_seen" and written.wait(60)))

    other = threading.Thread(target=first)
    other.start()
    trial.try_folder(tmp_path, ["a"], worker())
    written.set()
    other.join(60)
    assert not other.is_alive() and list(tmp_path.iterdir()) == []


def test_folder_that_is_not_shared_is_an_error_after_the_time_limit(tmp_path):
    start = time.monotonic()
    with pytest.raises(UserError, match=r"does not see the files that the first one writes there; expected a folder that all workers share"):
        trial.try_folder(tmp_path, ["a"], worker())
    assert time.monotonic() - start >= 1


def test_array_of_another_run_does_not_pass(tmp_path):
    kept = {}

    def before(name):
        if name == "checkpoint_tried":
            kept["start"] = time.monotonic()
            with pytest.raises(UserError, match="does not see"):
                trial.try_folder(tmp_path, ["a"], worker(token=78))

    trial.try_folder(tmp_path, ["a"], worker(first=True, before=before))
    assert kept
