"""Tests of the store of trained models that the tests of a run share."""

from pathlib import Path

import pytest

from tests.distributed.resident import FOLDER
from tests.helpers.store import stored


def test_training_is_done_once_for_the_same_flags_and_data(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    data, trained = tmp_path / "data", []
    data.mkdir()
    (data / "rows").write_text("1")

    def train(folder: Path) -> None:
        trained.append(folder)
        folder.mkdir()
        (folder / "weights").write_text(str(len(trained)))

    def ask(name: str, **flags) -> str:
        stored(tmp_path / name, data, flags, train)
        return (tmp_path / name / "weights").read_text()

    assert ask("a", seed=1) == "1" == ask("b", seed=1) and ask("c", seed=2) == "2"
    (tmp_path / "a/weights").write_text("damaged by a test")
    assert ask("d", seed=1) == "1"
    (data / "rows").write_text("2")
    assert ask("e", seed=1) == "3" and len(trained) == 3


def test_training_that_fails_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "data").mkdir()

    def fail(folder: Path) -> None:
        raise ValueError("of the training")

    for name in ("a", "b"):
        with pytest.raises(ValueError, match="of the training"):
            stored(tmp_path / name, tmp_path / "data", {}, fail)
        assert not (tmp_path / name).exists()
