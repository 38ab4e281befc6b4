"""Scratch folders: abandoned ones are removed, all others stay."""

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from utils import scratch
from utils.scratch import Scratch, remove_abandoned


def abandoned(destination: Path, kind: str = "staging") -> Path:
    """Make a folder as a killed run leaves it, once the kernel has released its lock."""
    left = Scratch(destination, kind)
    os.close(os.dup(left.lock))
    fcntl.flock(left.lock, fcntl.LOCK_UN)
    (left.folder / "train").mkdir()
    (left.folder / "train" / "label.bin").write_bytes(bytes(100))
    return left.folder


def test_remove_also_removes_the_parents_it_created(tmp_path):
    kept = Scratch(tmp_path / "a" / "b", "writing")
    gone = Scratch(tmp_path / "a" / "b" / "c", "staging")
    (gone.folder / "file").write_text("x")
    assert [path.name for path in gone.entries()] == ["file"]
    gone.remove()
    gone.remove()
    assert [path for path in (tmp_path / "a" / "b").iterdir()] == [kept.folder]
    kept.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["staging", "writing"])
def test_abandoned_folders_are_removed_with_a_message(tmp_path, capsys, kind):
    left, used = abandoned(tmp_path, kind), Scratch(tmp_path, kind)
    assert not left.exists() and used.folder.exists()
    assert capsys.readouterr().err == f"{left}: left by a run that was killed; removed\n"
    remove_abandoned(tmp_path)
    assert used.folder.exists() and capsys.readouterr().err == ""
    used.remove()


def test_folders_not_recognised_as_abandoned_stay(tmp_path, capsys):
    mine = tmp_path / ".staging-abcdefgh"  # no lock: not of this program, or of a version that had none
    mine.mkdir()
    (mine / "file").write_text("x")
    (tmp_path / ".writing-abcdefgh").write_text("a file")
    left = abandoned(tmp_path)
    (tmp_path / ".writing-12345678").symlink_to(left)
    left = left.rename(tmp_path / "staging-elsewhere")
    remove_abandoned(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4 and len(list(left.rglob("*"))) == 3 and capsys.readouterr().err == ""


def test_empty_folder_without_a_lock_is_removed(tmp_path):
    (tmp_path / ".staging-abcdefgh").mkdir()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    left = abandoned(tmp_path)

    def no_locks(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    used = Scratch(tmp_path, "writing")
    assert left.exists() and used.folder.exists()
    used.remove()
    assert list(tmp_path.iterdir()) == [left]


def test_folder_of_another_machine_is_removed_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "machine", lambda: {"another"})
    left = abandoned(tmp_path)
    monkeypatch.undo()
    remove_abandoned(tmp_path)
    assert left.exists()
    for path in (*left.rglob("*"), left):
        os.utime(path, (time.time() - 90_000,) * 2)
    remove_abandoned(tmp_path)
    assert not left.exists()


def test_concurrent_runs_keep_their_folders(tmp_path, capsys):
    faults = []

    def work():
        for _ in range(30):
            own = Scratch(tmp_path / "d", "writing")
            try:
                (own.folder / "file").write_text("x")
                time.sleep(0.001)
                assert (own.folder / "file").read_text() == "x"
            except BaseException as error:
                faults.append(error)
            own.remove()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "d").exists() or list((tmp_path / "d").iterdir()) == []
