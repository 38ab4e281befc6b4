"""Files kept beside the arrays of every step: the opened file is the one kept, is stored once on the disk, and a failed copy leaves no step."""

import os

import numpy as np
import pytest

from utils.checkpoint.kept_files import KeptFiles
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Among, Array, ArrayPart, save
from utils.distributed import World
from utils.errors import UserError

VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


def write(path, step, files, among=Among()):  # noqa: B008 - frozen
    return save(path, step, {"a": Array(VALUES.shape)}, [ArrayPart("a", lambda start, stop: VALUES[start:stop])], {}, World(), among, files)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "values"
    path.write_bytes(b"12345678")
    return path


def test_steps_share_one_file_that_outlives_its_source_and_its_steps(tmp_path, source):
    with source.open("rb") as file:
        kept = KeptFiles({"vocabulary/a.parquet": file})
        source.write_bytes(b"87654321")  # changed in place: still the same file
        os.replace(source, tmp_path / "elsewhere")
        first = write(tmp_path / "c", 1, kept)
        os.unlink(tmp_path / "elsewhere")
        second = write(tmp_path / "c", 2, kept)
        assert os.path.samefile(first / "vocabulary/a.parquet", second / "vocabulary/a.parquet")
        third = write(tmp_path / "c", 3, kept, Among(keep=1))
    assert not first.exists() and (third / "vocabulary/a.parquet").read_bytes() == b"87654321"
    np.testing.assert_array_equal(Checkpoint(third).read("a"), VALUES)


def test_a_file_system_without_links_gets_copies(tmp_path, source, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with source.open("rb") as file:
        kept = KeptFiles({"x": file})
        steps = [write(tmp_path / "c", step, kept) for step in (1, 2)]
    assert [(step / "x").read_bytes() for step in steps] == [b"12345678"] * 2


def test_failed_copy_fails_the_save_and_leaves_the_previous_step(tmp_path, source):
    class Failing:
        def seek(self, place):
            """Accept any position, as a file does."""

        def read(self, size):
            raise OSError(28, "No space left on device", "disk")

    with source.open("rb") as file:
        write(tmp_path / "c", 1, KeptFiles({"x": file}))
    with pytest.raises(UserError, match="disk: No space left on device"):
        write(tmp_path / "c", 2, KeptFiles({"x": Failing()}))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["latest", "step-00000001"] and Checkpoint(tmp_path / "c").step == 1


def test_kept_file_of_another_size_is_an_error(tmp_path, source):
    with source.open("rb") as file:
        step = write(tmp_path / "c", 1, KeptFiles({"x": file}))
    (step / "x").write_bytes(b"123")
    with pytest.raises(UserError, match="x: 3 bytes, the manifest says 8"):
        Checkpoint(step)
