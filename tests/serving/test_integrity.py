"""A flipped bit in the files of a version is refused, or changes no score; a stamp spares what was compared."""

import contextlib
import os
import random
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from served_models import PLAIN, export, table_data, train, write

import dlrm
from run.raw_rows import drawn_columns
from run.served_rows import drawn_rows
from serving import weights
from serving.integrity import compare_once
from utils.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DLRM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Export models of ids and of raw values; return the checkpoints of their versions."""
    folder = tmp_path_factory.mktemp("versions")
    plain, table = (
        train(write(folder / "plain", PLAIN), folder / "c"),
        train(table_data(folder, {"user": "categorical", "price": "numerical"}), folder / "t"),
    )
    export(plain, folder / "float32", "--model_name", "m")
    export(plain, folder / "int8", "--model_name", "m", "--precision", "int8")
    export(plain, folder / "bfloat16", "--model_name", "m", "--precision", "bfloat16")
    export(table, folder / "raw", "--model_name", "m", "--inputs", "raw")
    return {name: folder / name / "m/1/checkpoint" for name in ("float32", "int8", "bfloat16", "raw")}


@pytest.fixture
def version(request, versions, tmp_path):
    return shutil.copytree(versions[request.param], tmp_path / "version")


def scores(folder: Path) -> np.ndarray:
    model = dlrm.load(folder, mmap=True, cpu=True)
    if "price" in model.features.numerical:
        scorer, inputs = model.over_raw_arrays(), (drawn_columns(model.raw_inputs(), seed=3),)
    else:
        drawn = drawn_rows(model.features, 3)
        scorer, inputs = model.over_arrays(), (drawn.numerical, drawn.ids)
    return scorer.score(*scorer.checked(*inputs))


def flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        (value,) = os.pread(file.fileno(), 1, place)
        os.pwrite(file.fileno(), bytes([value ^ 1 << bit]), place)


@pytest.mark.parametrize("version", ["float32", "int8", "bfloat16", "raw"], indirect=True)
def test_a_flipped_bit_is_refused_or_changes_no_score(version):
    draw, expected, refused, kinds = random.Random(7), scores(version), 0, defaultdict(list)
    for path in sorted(path for path in version.rglob("*") if path.is_file()):
        kinds[path.relative_to(version).parts[0], path.suffix or "data"].append(path)
    for files in kinds.values():
        for _ in range(6):
            path = draw.choice(files)
            place, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
            flip(path, place, bit)
            try:
                compare_once(version)
                assert np.array_equal(scores(version), expected), (path, place, bit)
            except UserError as error:
                assert str(version) in str(error), error
                refused += 1
            flip(path, place, bit)
    compare_once(version)
    assert refused > 8


@pytest.mark.parametrize("version", ["float32", "int8", "bfloat16"], indirect=True)
def test_every_row_of_a_table_is_compared(version):
    (path,) = [path for path in sorted(version.glob("tables/b/**/*")) if path.is_file() and path.name not in ("zarr.json", "scales.bin")]
    for place in (path.stat().st_size // 2, 0, path.stat().st_size - 9):
        flip(path, place, 6)
        with pytest.raises(UserError, match=r"tables/b.*: (its data do not match their checksum|.*checksum)"):
            compare_once(version)
        flip(path, place, 6)
    compare_once(version)


@pytest.mark.parametrize("version", ["float32", "int8"], indirect=True)
def test_a_stamp_spares_what_was_compared_until_a_file_changes(version, cache, monkeypatch):
    read, original = [], weights.check_contents
    monkeypatch.setattr(weights, "check_contents", lambda checkpoint: (read.append(checkpoint.folder), original(checkpoint)))
    for _ in range(3):
        compare_once(version)
    assert len(read) == 1
    path = next(path for path in sorted(version.glob("tables/b/**/*")) if path.is_file() and path.name != "zarr.json")
    times = path.stat()
    flip(path, 40, 3)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a tool that hides a change
    for _ in range(2):  # what was refused is read again
        with pytest.raises(UserError, match="checksum"):
            compare_once(version)
    flip(path, 40, 3)
    for _ in range(2):
        compare_once(version)
    assert len(read) == 4
    assert len([stamp for stamp in (cache / "compared").iterdir() if (stamp / "done.json").is_file()]) == 1  # the older one was removed
    moved = shutil.copytree(version, version.with_name("moved"))
    compare_once(moved)
    assert len(read) == 5


@pytest.mark.parametrize("version", ["float32"], indirect=True)
def test_without_a_cache_every_start_compares(version, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DLRM_CACHE_DIR", str(tmp_path / "file/cache"))
    said = []
    for _ in range(2):
        compare_once(version, said.append)
    assert len(said) == 2 and all("set DLRM_CACHE_DIR to a writable folder" in text for text in said)
    flip(next(version.glob("tables/b/weights/c/0/0")), 40, 3)
    with pytest.raises(UserError, match="checksum"):
        compare_once(version, said.append)


@pytest.mark.parametrize("version", ["float32"], indirect=True)
def test_only_the_comparing_thread_has_low_priority(version, monkeypatch):
    found, original = [], weights.check_contents

    def checks(checkpoint):
        found.append(os.getpriority(os.PRIO_PROCESS, 0))  # of this thread
        original(checkpoint)

    monkeypatch.setattr(weights, "check_contents", checks)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    compare_once(version)
    assert found == [19] and os.getpriority(os.PRIO_PROCESS, 0) == before < 19
    with contextlib.suppress(UserError):
        flip(next(version.glob("tables/b/weights/c/0/0")), 40, 3)
        compare_once(version)
    assert found == [19, 19] and os.getpriority(os.PRIO_PROCESS, 0) == before
