"""Checkpoints on disk: the arrays read equal the arrays written, and damage is detected."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from utils.checkpoint import manifest
from utils.checkpoint import writing as module
from utils.checkpoint.manifest import CheckpointError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.trial import try_folder
from utils.checkpoint.writing import Among, Array, ArrayPart, Saving, save
from utils.checkpoint.zarr_store import file_of
from utils.cluster.agreement import DivergedError
from utils.distributed import World
from utils.errors import UserError


def write(path, step=1, **arrays):
    parts = [ArrayPart(name, lambda start, stop, values=values: values[start:stop]) for name, values in arrays.items()]
    return save(path, step, {name: Array(values.shape) for name, values in arrays.items()}, parts, {"note": "hello"}, World())


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def chunks(folder, array):
    return sorted(path for path in (folder / array / "c").rglob("*") if path.is_file())


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4), (1, 1), (100, 128)])
def test_arrays_are_read_back_bit_for_bit(tmp_path, shape):
    values = random(*shape)
    values.flat[0] = -0.0
    write(tmp_path, a=values)
    found = Checkpoint(tmp_path).read("a")
    assert found.dtype == np.float32 and found.shape == shape
    assert_array_equal(found.view(np.uint32), values.view(np.uint32))


def test_an_array_of_many_chunks_is_read_back_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 10 * 4 * 16)  # ten rows
    values = random(127, 16)
    folder = write(tmp_path, a=values)
    assert len(chunks(folder, "a")) == 13
    blocks = list(Checkpoint(tmp_path).read_rows("a"))
    assert [start for start, _ in blocks] == list(range(0, 127, 10))
    assert_array_equal(np.concatenate([rows for _, rows in blocks]), values)


def test_table_is_read_in_chunks_for_saving(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 10 * 4 * 16)
    values, asked = random(127, 16), []

    def read(start, stop):
        asked.append(stop - start)
        return values[start:stop]

    save(tmp_path, 1, {"a": Array(values.shape)}, [ArrayPart("a", read)], {}, World())
    assert max(asked) == 10 and sum(asked) == 127


def test_chunks_of_zeros_are_written(tmp_path):
    folder = write(tmp_path, a=np.zeros((5, 3), np.float32))
    assert len(chunks(folder, "a")) == 1
    assert not Checkpoint(tmp_path).read("a").any()
    chunks(folder, "a")[0].unlink()
    with pytest.raises(CheckpointError):
        Checkpoint(tmp_path).read("a")


@pytest.mark.parametrize("name", ["tables/user/weights", "tables/cat 1.bin/weights", "tables/ü/weights", "tables/../weights", "tables/%2F/weights"])
def test_names_with_odd_characters(tmp_path, name):
    values = random(4, 2)
    folder = write(tmp_path / "all", **{name: values, "b": values + 1})
    checkpoint = Checkpoint(tmp_path / "all")
    assert_array_equal(checkpoint.read(name), values)
    assert checkpoint.names("tables/") == [name]
    assert {path.name for path in tmp_path.iterdir()} == {"all"}
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "tables", "b"}


@given(
    st.lists(
        st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=12), min_size=1, max_size=4, unique=True
    )
)
@settings(max_examples=15)
def test_every_feature_name_has_its_own_file(names):
    files = [file_of(f"tables/{name}/weights") for name in names]
    assert len(set(files)) == len(names)
    assert all(file.count("/") == 2 and "/./" not in file and "/../" not in file for file in files)


@pytest.mark.parametrize("place", [0, 17, -1])
def test_flipped_bit_is_an_error_that_names_the_array(tmp_path, place):
    folder = write(tmp_path, **{"tables/user/weights": random(20, 4), "b": random(3)})
    path = chunks(folder, "tables/user/weights")[0]
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tables/user/weights.*damaged") as raised:
        Checkpoint(tmp_path).read("tables/user/weights")
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "damage", ["missing chunk", "short chunk", "empty chunk", "missing metadata", "broken metadata", "missing array", "other shape"]
)
def test_damaged_array_is_an_error_that_names_it(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(module, "CHUNK_BYTES", 5 * 4 * 4)
    folder = write(tmp_path, a=random(20, 4), b=random(19, 4))
    last = chunks(folder, "a")[-1]
    if damage == "missing chunk":
        last.unlink()
    elif damage == "short chunk":
        last.write_bytes(last.read_bytes()[:-8])
    elif damage == "empty chunk":
        last.write_bytes(b"")
    elif damage == "missing metadata":
        (folder / "a/zarr.json").unlink()
    elif damage == "broken metadata":
        (folder / "a/zarr.json").write_text("{")
    elif damage == "missing array":
        shutil.rmtree(folder / "a")
    else:
        shutil.rmtree(folder / "a")
        shutil.copytree(folder / "b", folder / "a")
    with pytest.raises(CheckpointError, match=r"/a.*damaged") as raised:
        Checkpoint(tmp_path).read("a")
    assert "\n" not in str(raised.value)


def test_manifest_holds_metadata_and_step(tmp_path):
    folder = write(tmp_path, step=60, a=random(2))
    checkpoint = Checkpoint(tmp_path)
    assert (checkpoint.folder, checkpoint.step, checkpoint.manifest["note"]) == (folder, 60, "hello")
    assert Checkpoint(folder).step == 60  # the folder of a step can be given itself


def test_an_unknown_array_is_an_error(tmp_path):
    write(tmp_path, a=random(2))
    with pytest.raises(CheckpointError, match="no array b"):
        Checkpoint(tmp_path).read("b")


def test_the_newest_step_is_found_and_older_ones_stay(tmp_path):
    for step in (9, 100, 20):  # the newest is the last one written, not the one with the highest number
        write(tmp_path, step=step, a=random(2, seed=step))
    assert (tmp_path / "latest").read_text().strip() == "step-00000020"
    assert Checkpoint(tmp_path).step == 20
    assert Checkpoint(tmp_path / "step-00000100").step == 100


@pytest.mark.parametrize("latest", [None, "step-00000099\n", "", "../elsewhere", "\udc80".encode("utf-8", "surrogatepass")])
def test_highest_step_is_taken_if_latest_is_missing_or_invalid(tmp_path, latest):
    for step in (9, 100):
        write(tmp_path, step=step, a=random(2))
    (tmp_path / "latest").unlink()
    if latest is not None:
        (tmp_path / "latest").write_bytes(latest if isinstance(latest, bytes) else latest.encode())
    assert Checkpoint(tmp_path).step == 100


def test_step_without_manifest_is_ignored(tmp_path):
    write(tmp_path, step=1, a=random(2))
    (write(tmp_path, step=2, a=random(2)) / "manifest.json").unlink()
    assert Checkpoint(tmp_path).step == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "null", "3", '{"format": 2}', '{"format": 2, "step": 1, "arrays": 3}', '{"format": 2, "arrays": {}}', "\0"]
)
def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path, content):
    (write(tmp_path, a=random(2)) / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json: .*; the checkpoint is damaged"):
        Checkpoint(tmp_path)


def test_values_whose_sum_is_beyond_float32_are_saved(tmp_path):
    values = np.full((4, 4), 3e38, np.float32)
    write(tmp_path, a=values)
    assert_array_equal(Checkpoint(tmp_path).read("a"), values)


@pytest.mark.parametrize("array", ["a", "b/c"])
def test_verify_reads_every_chunk(tmp_path, array):
    write(tmp_path, a=random(30, 4), **{"b/c": random(5)})
    checkpoint = Checkpoint(tmp_path)
    checkpoint.verify(World())
    (chunk,) = chunks(checkpoint.folder, array)
    content = bytearray(chunk.read_bytes())
    content[-1 - len(content) // 2] ^= 1
    chunk.write_bytes(content)
    checkpoint = Checkpoint(tmp_path)  # opening succeeds, because only sizes are checked then
    with pytest.raises(UserError, match=f"{array}: its data do not match their checksum; the checkpoint is damaged"):
        checkpoint.verify(World())


@pytest.mark.parametrize(
    "content", [{}, {"step": 1, "arrays": 3, "files": {}}, {"step": 1, "arrays": {}, "files": {"a": 1}}, {"step": "x", "arrays": {}}]
)
def test_invalid_manifest_with_a_valid_checksum_is_an_error(tmp_path, content):
    folder = write(tmp_path, a=random(2))
    content = {"format": 2, **content}
    (folder / "manifest.json").write_text(json.dumps(content | {"checksum": manifest.checksum(content)}))
    with pytest.raises(CheckpointError, match=r"; the checkpoint is damaged"):
        Checkpoint(tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_flipped_bit_is_an_error_or_has_no_effect(tmp_path, data):
    folder = write(tmp_path, a=random(20, 4), b=random(3))
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    try:
        checkpoint = Checkpoint(tmp_path)
        found = checkpoint.read("a"), checkpoint.read("b")
    except CheckpointError as error:
        assert "damaged" in str(error) or "format" in str(error)
        return
    assert checkpoint.step == 1 and checkpoint.manifest["note"] == "hello"
    assert_array_equal(found[0], random(20, 4))
    assert_array_equal(found[1], random(3))


def test_other_format_is_rejected_with_its_version(tmp_path):
    path = write(tmp_path, a=random(2)) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    with pytest.raises(CheckpointError, match=r"format 1, this version reads formats 2, 3, 4$"):
        Checkpoint(tmp_path)


def test_a_missing_or_empty_folder_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        Checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        Checkpoint(tmp_path)


def fail(start, stop):
    raise RuntimeError("interrupted")


@pytest.mark.parametrize("step", [1, 2], ids=["same step", "next step"])
def test_an_interrupted_save_leaves_the_older_checkpoint(tmp_path, step):
    values = random(4, 2)
    write(tmp_path, step=1, a=values)
    with pytest.raises(RuntimeError, match="interrupted"):
        save(tmp_path, step, {"a": Array((4, 2))}, [ArrayPart("a", fail)], {}, World())
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.step == 1
    assert_array_equal(checkpoint.read("a"), values)
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "step-00000001"}


def test_remains_of_a_killed_save_do_not_disturb_the_next(tmp_path):
    write(tmp_path, step=1, a=random(4))
    for name in (".step-00000001.writing", ".step-00000001.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{")
    assert Checkpoint(tmp_path).step == 1
    write(tmp_path, step=1, a=random(4, seed=1))
    assert_array_equal(Checkpoint(tmp_path).read("a"), random(4, seed=1))
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "step-00000001"}


def test_saving_a_step_again_replaces_it(tmp_path):
    write(tmp_path, a=random(4), b=random(3))
    write(tmp_path, a=random(9, seed=1))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.names("") == ["a"]
    assert_array_equal(checkpoint.read("a"), random(9, seed=1))


def test_columns_written_in_slices_can_be_read_in_other_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 10 * 4 * 2)
    values = random(33, 6)
    parts = [ArrayPart("a", lambda start, stop, i=i: values[start:stop, i : i + 2], (i, i + 2)) for i in (4, 0, 2)]
    save(tmp_path, 1, {"a": Array((33, 6), column_step=2)}, parts, {}, World())
    checkpoint = Checkpoint(tmp_path)
    assert_array_equal(checkpoint.read("a"), values)
    for columns in ((0, 3), (3, 6), (1, 5)):
        assert_array_equal(np.concatenate([rows for _, rows in checkpoint.read_rows("a", columns)]), values[:, slice(*columns)])


def test_folder_that_cannot_be_created_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write(tmp_path / "file" / "checkpoint", a=random(2))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, value):
    write(tmp_path, step=1, a=random(20, 4))
    values = random(20, 4, seed=1)
    values[13, 2] = value
    with pytest.raises(UserError, match="a: holds weights that are not finite; nothing is saved"):
        write(tmp_path, step=2, a=values)
    assert_array_equal(Checkpoint(tmp_path).read("a"), random(20, 4))
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "step-00000001"}


def test_incomplete_array_is_not_published(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 10 * 4 * 2)
    values = random(33, 4)
    left = ArrayPart("a", lambda start, stop: values[start:stop, :2], (0, 2))
    for parts, chunk in (([left], "c/0/1"), ([], "c/0/0")):
        with pytest.raises(UserError, match=rf"a/{chunk}: no worker wrote this file, so the checkpoint is discarded"):
            save(tmp_path, 1, {"a": Array((33, 4), column_step=2)}, parts, {}, World())
        assert list(tmp_path.iterdir()) == []


class TwoWorkers(World):
    """The first of two workers; the second one has another value for one name."""

    def __init__(self, name, value):
        super().__init__(0, 2)
        self._name, self._value = name, value

    def everyone(self, value, name):
        return [value, self._value if name == self._name else value]


def test_checkpoint_of_diverged_workers_is_not_published(tmp_path):
    part = ArrayPart("a", lambda start, stop: random(4)[start:stop])
    with pytest.raises(DivergedError, match="the dense weights of worker 1 differ from worker 0's; nothing is saved"):
        Saving(tmp_path, 1, {"a": Array((4,))}, [part], {}, TwoWorkers("checkpoint_digest", "other"), digest="mine").finish()
    assert list(tmp_path.iterdir()) == []
    Saving(tmp_path, 1, {"a": Array((4,))}, [part], {}, TwoWorkers("", None), digest="mine").finish()
    assert Checkpoint(tmp_path).step == 1


@pytest.mark.parametrize("best", [False, True])
def test_alone_removes_all_other_checkpoints(tmp_path, best):
    for step in (5, 60):
        save(tmp_path, step, {"a": Array((4,))}, [ArrayPart("a", lambda start, stop: random(4)[start:stop])], {}, World(), Among(best=step == 5))
    save(tmp_path, 3, {"a": Array((4,))}, [ArrayPart("a", lambda start, stop: random(4)[start:stop])], {}, World(), Among(3, best, alone=True))
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "step-00000003", *(["best"] if best else [])}


def test_trial_leaves_the_folder_unchanged(tmp_path):
    for folder in ("a", "a/.step-trial.writing/tables"):  # left by a killed trial
        (tmp_path / folder).mkdir(parents=True)
    try_folder(tmp_path / "a", ["tables/x/weights", "tables/user/weights"], World())
    assert list((tmp_path / "a").iterdir()) == []
    with pytest.raises(UserError, match=rf"--save_checkpoint_path {tmp_path}/nowhere: .*No such file or directory"):
        try_folder(tmp_path / "nowhere", ["b"], World())
    with pytest.raises(UserError, match=r"File name too long"):
        try_folder(tmp_path / "a", ["short", f"tables/{'x' * 256}/weights"], World())
    assert list((tmp_path / "a").iterdir()) == []
