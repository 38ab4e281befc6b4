"""Tests of a repository's versions where another program writes at the same time, or one was killed."""

import os

import pytest

from serving import repository as module
from serving.live import CARD, CONFIG, versions
from serving.repository import Staging, remove_version
from utils.errors import UserError


@pytest.mark.parametrize("known", [False, True], ids=["first version", "next version"])
def test_version_written_by_a_concurrent_export_is_an_error(tmp_path, monkeypatch, known):
    """An export fails with the version's name if another writes the same version between its check and its rename."""
    if known:
        (tmp_path / "r/dlrm/1").mkdir(parents=True)
    staging = Staging(tmp_path / "r", tmp_path / "staging", 2)
    (staging.version("dlrm", "") / "model.py").touch()
    staging.card("dlrm", "")

    def slow(source, target, rename=os.rename):
        (tmp_path / "r/dlrm/2").mkdir(parents=True)
        (tmp_path / "r/dlrm/2/model.py").write_text("theirs")
        rename(source, target)

    monkeypatch.setattr(module.os, "rename", slow)
    with pytest.raises(UserError, match="dlrm/2: another export wrote this version in the meantime; this export is discarded"):
        staging.publish()
    assert (tmp_path / "r/dlrm/2/model.py").read_text() == "theirs"
    assert not any((tmp_path / "r/dlrm" / name).exists() for name in (CONFIG, CARD))


def test_files_left_by_a_killed_removal_are_removed_by_the_next(tmp_path):
    for name in ("1", "2", "3", ".removed-1", ".removed-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").touch()
    remove_version(tmp_path, 2)
    assert versions(tmp_path) == [1, 3] and sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


def test_two_concurrent_removals_succeed(tmp_path, monkeypatch):
    """Two processes may remove the same folder, as each takes the other's for one left by a killed program."""
    (tmp_path / "1").mkdir()
    remove = module.shutil.rmtree

    def twice(path, **options):
        remove(path, **options)
        remove(path, **options)

    monkeypatch.setattr(module.shutil, "rmtree", twice)
    remove_version(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []
