"""The folder of a run's checkpoints, while others read it, wait for it, or kill the process that writes it."""

import errno
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from utils.checkpoint import folder, lock, writing
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Array, ArrayPart, save
from utils.cluster.processes import MARK
from utils.distributed import World
from utils.errors import UserError


def write(path, step):
    values = np.full(4, step, np.float32)
    return save(path, step, {"a": Array((4,))}, [ArrayPart("a", lambda start, stop: values[start:stop])], {}, World())


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("text", ["step-00000002", "../other/step-00000001", "nonsense", "", ".", "step-00000001/a"])
def test_invalid_pointer_gives_none(tmp_path, text):
    for name in ("c", "other"):
        write(tmp_path / name, 1)
    pointer = tmp_path / "c/best"
    pointer.write_text("step-00000001\n")
    assert folder.pointed(pointer) == tmp_path / "c/step-00000001"
    pointer.write_text(text)
    assert folder.pointed(pointer) is None
    pointer.write_bytes(b"\xff\xfe")
    assert folder.pointed(pointer) is None


def test_disk_full_during_publishing_changes_nothing(tmp_path, monkeypatch):
    write(tmp_path, 1)
    with monkeypatch.context() as patched:
        patched.setattr(folder, "write_text", full)
        with pytest.raises((OSError, UserError), match="No space left"):
            write(tmp_path, 2)
    assert Checkpoint(tmp_path).step == 1 and not (tmp_path / "step-00000002").exists()
    write(tmp_path, 3)
    assert Checkpoint(tmp_path).step == 3


def test_disk_full_at_the_first_array_leaves_no_other_arrays(tmp_path, monkeypatch):
    """The other arrays are still being created when the first one has failed."""
    write(tmp_path, 1)

    def later(place):
        time.sleep(0.3)
        place.mkdir(parents=True)

    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr(writing, "create_array", lambda place, *_: pool.submit(full if place.name == "a" else later, place))
        with pytest.raises(UserError, match="No space left"):
            save(tmp_path, 2, {"a": Array((4,)), "b": Array((4,))}, [], {}, World())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"]


@pytest.mark.parametrize("call", ["write_text", "rename", "sync_folder"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_newest_complete_step_is_taken_after_a_kill_at_any_point(tmp_path, monkeypatch, call, before):
    """Step 2 is taken once it has its name; until then step 1."""

    class Killed(BaseException):
        pass

    def killed(original):
        def patched(*arguments):
            if not before:
                original(*arguments)
            raise Killed

        return patched

    write(tmp_path, 1)
    with monkeypatch.context() as patched:
        owner = type(tmp_path) if call == "rename" else folder
        patched.setattr(owner, call, killed(getattr(owner, call)))
        with pytest.raises(Killed):
            folder_with_step(tmp_path, 2)
    newest = folder.complete_steps(tmp_path)[0]
    assert Checkpoint(tmp_path / "latest")  # the pointer's own path works, too
    assert newest.name == ("step-00000002" if (tmp_path / "step-00000002").exists() else "step-00000001")


def folder_with_step(path, step):
    """Publish a step that is complete."""
    shutil.copytree(path / "step-00000001", folder.being_written(path, step))
    folder.publish(path, step, best=False)


def test_step_removed_during_the_search_is_left_out(tmp_path, monkeypatch):
    """A run with --keep_checkpoints removes steps while another process looks for the newest."""
    for step in (1, 2, 3):
        write(tmp_path, step)
    original = folder.pointed

    def pointed(pointer):
        shutil.rmtree(tmp_path / "step-00000001", ignore_errors=True)
        return original(pointer)

    monkeypatch.setattr(folder, "pointed", pointed)
    assert folder.complete_steps(tmp_path)[0] == tmp_path / "step-00000003"


def test_modification_time_of_zero_is_valid(tmp_path):
    """Some archives set all times to the beginning of 1970."""
    os.utime(write(tmp_path, 1) / "manifest.json", ns=(0, 0))
    (tmp_path / "latest").unlink()
    assert [step.name for step in folder.complete_steps(tmp_path)] == ["step-00000001"]


def test_lock_waits_only_under_elastic(tmp_path, monkeypatch):
    held = lock.Lock(tmp_path)
    with pytest.raises(UserError, match="another run writes its checkpoints there"):
        lock.Lock(tmp_path)
    monkeypatch.setenv(MARK, "1-1")
    start = time.monotonic()
    threading.Timer(0.3, held.release).start()
    lock.Lock(tmp_path).release()
    assert time.monotonic() - start > 0.2
    held = lock.Lock(tmp_path)
    monkeypatch.setattr(lock, "WAIT_S", 0.2)
    with pytest.raises(UserError, match="another run writes its checkpoints there"):
        lock.Lock(tmp_path)
    held.release()
