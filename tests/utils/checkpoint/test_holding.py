"""A reader keeps its step while the run that writes the checkpoints removes all but its newest ones."""

import sys

import numpy as np
import pytest

from tests.children import child
from utils.checkpoint import reading
from utils.checkpoint.folder import Hold, complete_steps, prune
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Array, ArrayPart, save
from utils.distributed import World


def write(path, step, value=1.0):
    values = np.full((3, 2), value, np.float32)
    return save(path, step, {"a": Array(values.shape)}, [ArrayPart("a", lambda start, stop: values[start:stop])], {}, World())


def steps(path):
    return [entry.name for entry in complete_steps(path)]


def test_step_being_read_stays_until_released(tmp_path):
    write(tmp_path, 1, 7.0)
    checkpoint = Checkpoint(tmp_path)
    write(tmp_path, 2)
    prune(tmp_path, 1)
    assert steps(tmp_path) == ["step-00000002", "step-00000001"]
    assert checkpoint.read("a").max() == 7
    checkpoint.release()
    prune(tmp_path, 1)
    assert steps(tmp_path) == ["step-00000002"]


def test_garbage_collection_releases_a_step(tmp_path):
    write(tmp_path, 1)
    checkpoint = Checkpoint(tmp_path)
    write(tmp_path, 2)
    del checkpoint
    prune(tmp_path, 1)
    assert steps(tmp_path) == ["step-00000002"]


HOLDER = "import sys, time; from utils.checkpoint.reading import Checkpoint; c = Checkpoint(sys.argv[1]); print(1, flush=True); time.sleep(600)"


def test_other_process_holds_a_step_until_killed(tmp_path):
    write(tmp_path, 1)
    with child([sys.executable, "-c", HOLDER, tmp_path]) as process:
        assert process.stdout.readline()
        write(tmp_path, 2)
        prune(tmp_path, 1)
        assert steps(tmp_path) == ["step-00000002", "step-00000001"]
        process.kill()
    prune(tmp_path, 1)
    assert steps(tmp_path) == ["step-00000002"]


def test_newest_step_is_searched_again_if_removed_before_it_is_held(tmp_path, monkeypatch):
    """The step is removed between the search for the newest and its lock."""
    write(tmp_path, 1)

    def late(step, times=[]):  # noqa: B006
        if not times:
            times.append(step)
            write(tmp_path, 2)
            prune(tmp_path, 1)
        return Hold(step)

    monkeypatch.setattr(reading, "Hold", late)
    assert Checkpoint(tmp_path).step == 2


def test_removed_checkpoint_is_not_reported_as_damaged(tmp_path):
    write(tmp_path, 1)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.release()
    write(tmp_path, 2)
    prune(tmp_path, 1)
    with pytest.raises(CheckpointError, match="step-00000001: was removed while it was read"):
        checkpoint.read("a")
    assert checkpoint.gone
