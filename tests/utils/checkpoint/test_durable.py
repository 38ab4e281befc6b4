"""A replacement is complete on the disk before it gets its name."""

import os
from pathlib import Path

import pytest

from utils.checkpoint.durable import sync_folder, sync_tree, write_text


@pytest.fixture
def synced(monkeypatch):
    """Record the files and folders that are synced, with the content of each file at that time."""
    found, fsync = [], os.fsync

    def watched(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        found.append((str(path), None if path.is_dir() else path.read_text()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    return found


def test_new_file_is_complete_and_synced_before_it_replaces_the_old_one(tmp_path, synced, monkeypatch):
    path = tmp_path / "manifest.json"
    path.write_text("old")
    seen, rename = [], Path.rename

    def watched(partial, target):
        seen.append((len(synced), path.read_text()))
        return rename(partial, target)

    monkeypatch.setattr(Path, "rename", watched)
    write_text(path, "new " * 1000)
    assert synced == [(str(tmp_path / ".manifest.json.writing"), "new " * 1000)]
    assert seen == [(1, "old")] and path.read_text() == "new " * 1000
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.json"]


def test_folders_are_synced(tmp_path, synced):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("x")
    sync_folder(tmp_path)
    assert synced == [(str(tmp_path), None)]
    synced.clear()
    sync_tree(tmp_path)
    assert sorted(synced) == [(str(tmp_path), None), (str(tmp_path / "a"), None), (str(tmp_path / "a" / "b"), None)]
