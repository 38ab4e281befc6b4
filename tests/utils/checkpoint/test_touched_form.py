"""Checkpoints that store the touched rows of tables: they read like checkpoints of whole tables, and damage is detected."""

import json
import shutil
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.utils.checkpoint.touched_checkpoints import DIM, SLOTS, bits_of, origins, trained, write
from utils.checkpoint import manifest, touched_form
from utils.checkpoint import writing as module
from utils.checkpoint.kept_files import write_checked
from utils.checkpoint.manifest import CheckpointError, DamagedError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import bitmap_name
from utils.checkpoint.writing import Array, ArrayPart, save
from utils.distributed import World
from utils.errors import UserError
from utils.initial_rows import GENERATORS


def assert_reads(checkpoint, table, numbers, name="user"):
    """Assert that a checkpoint gives a table in memory bit for bit, whole and by its touched rows."""
    touched = checkpoint.touched_table(name)
    assert (touched.rows, touched.count) == (len(table["weights"]), len(numbers))
    assert touched.numbers.dtype == np.int32
    assert_array_equal(touched.numbers, numbers)
    for kind, values in table.items():
        array = f"tables/{name}/{kind}"
        assert checkpoint.shape(array) == values.shape
        assert_array_equal(checkpoint.read(array).view(np.uint32), values.view(np.uint32))
        first, last = (0, 1) if values.shape[1] == 1 else (2, 5)
        some = np.concatenate([rows for _, rows in checkpoint.read_rows(array, (first, last))])
        assert_array_equal(some, values[:, first:last])
        place = 0
        for start, rows in checkpoint.read_touched(array, (first, last)):
            assert start == place
            assert_array_equal(rows, values[numbers[start : start + len(rows)], first:last])
            place += len(rows)
        assert place == len(numbers)
    checkpoint.verify(World())


@given(rows=st.integers(1, 700), parts=st.sampled_from([None, 1, 2, 3, 4]), data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_table_of_touched_rows_reads_like_a_whole_one(tmp_path_factory, rows, parts, data):
    count = data.draw(st.sampled_from([0, 1, rows // 2, rows]))
    numbers = np.sort(np.random.default_rng(rows).permutation(rows)[:count])
    lasts = sorted({*data.draw(st.lists(st.integers(1, rows), max_size=2)), rows})
    where = origins(*lasts)
    path, table = tmp_path_factory.mktemp("save"), trained(where, numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", 4 * DIM * data.draw(st.sampled_from([1, 7, 10**6])))
        patch.setattr(touched_form, "_BLOCK_ROWS", data.draw(st.sampled_from([1, 13, 64, 10**6])))
        write(path, where, numbers, table, step=parts)
        assert_reads(Checkpoint(path), table, numbers)


@pytest.mark.parametrize("initializer", GENERATORS)
def test_untouched_rows_come_from_the_tables_generator(tmp_path, initializer):
    where, numbers = origins(3000, 5000, initializer=initializer), np.array([0, 17, 2999, 3000, 4999])
    table = trained(where, numbers)
    write(tmp_path, where, numbers, table)
    assert_reads(Checkpoint(tmp_path), table, numbers)
    assert Checkpoint(tmp_path).touched_table("user").origins == tuple(where)
    assert dict(Checkpoint(tmp_path).touched_table("user").slots) == SLOTS


def test_blocks_of_a_large_table_are_small_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(touched_form, "_BLOCK_BYTES", 4 * DIM * 100)
    where, numbers = origins(1234), np.arange(50, 1100, 3)
    table = trained(where, numbers, ["weights"])
    write(tmp_path, where, numbers, table)
    blocks = list(Checkpoint(tmp_path).read_rows("tables/user/weights"))
    assert [(start, len(rows)) for start, rows in blocks] == [(start, min(100, 1234 - start)) for start in range(0, 1234, 100)]


def test_only_the_touched_rows_are_on_disk(tmp_path):
    where, numbers = origins(100_000), np.array([7, 99_999])
    folder = write(tmp_path, where, numbers, trained(where, numbers))
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 20_000
    content = json.loads((folder / manifest.NAME).read_text())
    assert content["format"] == 4
    assert content["arrays"]["tables/user/weights"] == {"shape": [100_000, DIM], "dtype": "float32", "touched": 2}
    assert (folder / "touched_rows/user.bin").stat().st_size == 12_500 + 4


def test_a_table_without_touched_rows_has_no_array_on_disk(tmp_path):
    where, none = origins(40), np.empty(0, np.int64)
    table = trained(where, none)
    folder = write(tmp_path, where, none, table, dense=np.ones(3, np.float32))
    assert not (folder / "tables").exists()
    assert_reads(Checkpoint(tmp_path), table, none)


def test_whole_tables_stand_beside_tables_of_touched_rows(tmp_path):
    where, numbers, other = origins(40, name="a.b/ü"), np.array([3]), np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    table = trained(where, numbers)
    folder = write(tmp_path, where, numbers, table, name="a.b/ü", **{"tables/item/weights": other})
    assert (folder / bitmap_name("a.b/ü")).parent.parent == folder / "touched_rows"
    checkpoint = Checkpoint(tmp_path)
    assert_reads(checkpoint, table, numbers, "a.b/ü")
    assert_array_equal(checkpoint.read("tables/item/weights"), other)
    assert checkpoint.touched_table("item") is None and checkpoint.touched_table("nowhere") is None
    with pytest.raises(ValueError, match="stored whole"):
        checkpoint.read_touched("tables/item/weights")
    with pytest.raises(CheckpointError, match="holds no array tables/user/weights"):
        checkpoint.read_rows("tables/user/weights")


def test_a_checkpoint_of_whole_tables_has_the_format_that_older_versions_read(tmp_path):
    values = np.ones((3, 2), np.float32)
    folder = save(tmp_path, 1, {"a": Array((3, 2))}, [ArrayPart("a", lambda start, stop: values[start:stop])], {}, World())
    content = json.loads((folder / manifest.NAME).read_text())
    assert content["format"] == 3 and content["arrays"] == {"a": {"shape": [3, 2], "dtype": "float32"}}


def test_stored_rows_are_found_by_number(tmp_path):
    where, numbers = origins(1000), np.array([0, 1, 63, 64, 127, 500, 511, 512, 999])
    write(tmp_path, where, numbers, trained(where, numbers))
    asked = np.random.default_rng(0).permutation(1000)
    stored, places = Checkpoint(tmp_path).touched_table("user").located(asked)
    assert_array_equal(stored, np.isin(asked, numbers))
    assert_array_equal(numbers[places[stored]], asked[stored])


@pytest.fixture
def folder(tmp_path):
    where, numbers = origins(20, 43), np.arange(1, 42, 4)
    return write(tmp_path, where, numbers, trained(where, numbers))


def rewrite(folder, change):
    """Write the manifest anew after a change of its content."""
    content = {name: value for name, value in manifest.read(folder).items() if name not in ("format", "files")}
    change(content)
    manifest.write(folder, content)


def flip(path, place, bit=4):
    content = bytearray(path.read_bytes())
    content[place] ^= bit
    path.write_bytes(content)


def test_a_flipped_bit_of_a_bitmap_is_an_error_that_names_its_file(folder):
    flip(folder / "touched_rows/user.bin", 2)
    for use in (
        lambda checkpoint: checkpoint.read("tables/user/weights"),
        lambda checkpoint: checkpoint.touched_table("user").numbers,
        lambda checkpoint: checkpoint.touched_table("user").located(np.array([3])),
        lambda checkpoint: checkpoint.check("tables/user/momentum"),
    ):
        with pytest.raises(DamagedError, match=r"touched_rows/user\.bin: its checksum is wrong; the checkpoint is damaged$"):
            use(Checkpoint(folder))
    with pytest.raises(UserError, match=r"touched_rows/user\.bin: its checksum is wrong"):
        Checkpoint(folder).verify(World())


def test_a_flipped_bit_of_a_stored_row_is_found_by_a_check(folder):
    flip(folder / "tables/user/momentum/c/0/0", 9)
    for use in (Checkpoint.check, Checkpoint.read):
        with pytest.raises(DamagedError, match=r"tables/user/momentum: its data do not match their checksum"):
            use(Checkpoint(folder), "tables/user/momentum")
    Checkpoint(folder).check("tables/user/weights")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("touched_rows/user.bin", lambda path: path.unlink(), "No such file"),
        ("touched_rows/user.bin", lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, the manifest says"),
        ("touched_rows/user.bin", lambda path: flip(path, -1), "its checksum differs"),
        ("tables/user/weights/c/0/0", lambda path: path.unlink(), "No such file"),
        ("tables/user/weights/c/0/0", lambda path: path.write_bytes(path.read_bytes()[:-8]), "bytes, the manifest says"),
        ("tables/user/momentum/zarr.json", lambda path: path.write_text("{}"), "bytes, the manifest says"),
    ],
)
def test_a_missing_or_short_file_is_found_on_opening(folder, name, damage, message):
    damage(folder / name)
    with pytest.raises(DamagedError, match=message) as raised:
        Checkpoint(folder)
    assert name in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (bits_of(np.arange(12), 43), "names 12 rows, the manifest says 11"),
        (bits_of(np.arange(10), 43), "names 10 rows, the manifest says 11"),
        (bits_of(np.r_[0:10, 43], 48), "names a row beyond the 43 rows of the table"),
        (bits_of(np.arange(11), 56), "7 bytes of bits, expected 6 for 43 rows"),
        (bits_of(np.arange(11), 40), "5 bytes of bits, expected 6 for 43 rows"),
    ],
)
def test_a_bitmap_of_other_rows_is_an_error(folder, bits, message):
    write_checked(folder / "touched_rows/user.bin", bits)
    rewrite(folder, lambda content: None)
    checkpoint = Checkpoint(folder)
    with pytest.raises(DamagedError, match=rf"touched_rows/user\.bin: {message}; the checkpoint is damaged$"):
        next(checkpoint.read_rows("tables/user/weights"))


def test_an_array_of_another_number_of_rows_is_an_error(folder):
    numbers = np.arange(12)
    write_checked(folder / "touched_rows/user.bin", bits_of(numbers, 43))

    def twelve(content):
        for array in content["arrays"].values():
            array["touched"] = 12

    rewrite(folder, twelve)
    assert len(Checkpoint(folder).touched_table("user").numbers) == 12
    with pytest.raises(DamagedError, match=r"tables/user/weights: shape \[11, 6\], the manifest says \[12, 6\]"):
        Checkpoint(folder).read("tables/user/weights")


def changed(*path, to):
    """Return a function that replaces a value deep in a manifest; None removes it."""

    def change(content):
        for name in path[:-1]:
            content = content[name]
        if to is None:
            del content[path[-1]]
        else:
            content[path[-1]] = to

    return change


TABLE = ("touched_rows", "user")
ARRAYS = ("arrays", "tables/user/weights"), ("arrays", "tables/user/momentum"), ("arrays", "tables/user/accumulator")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((changed(*ARRAYS[0], "touched", to=odd), "of 43 rows, expected 0 to as many") for odd in (-1, 44, "11", 11.0, True, [11])),
        (changed(*ARRAYS[0], "touched", to=10), "holds 11 touched rows, expected 10 like the weights"),
        (changed(*ARRAYS[1], "touched", to=10), "tables/user/momentum holds 10 touched rows, expected 11"),
        (changed(*ARRAYS[1], "touched", to=None), "tables/user/momentum holds None touched rows, expected 11"),
        (changed(*ARRAYS[0], "shape", to=[44, 6]), r"tables/user/weights has shape \[44, 6\], its origins are those of a table \[43, 6\]"),
        (changed(*ARRAYS[0], "shape", to=[43, 1]), "its origins are those"),
        (changed(*ARRAYS[0], "shape", to=[43]), "its origins are those"),
        (changed(*ARRAYS[2], "shape", to=[43, 2]), "tables/user/accumulator has shape"),
        (changed(*ARRAYS[0], to=None), "the table has no weights"),
        (changed("touched_rows", to=None), "table user stands in touched_rows or has arrays of touched rows, expected both or neither"),
        (changed("touched_rows", to=[]), r"touched_rows is \[\], expected a mapping of tables"),
        (changed(*TABLE, to=3), "touched_rows.user is 3, expected origins and slots"),
        (changed("touched_rows", "item", to={}), "table item stands in"),
        (changed(*TABLE, "origins", to=[]), "origins of no rows"),
        (changed(*TABLE, "origins", to=None), "expected origins and slots"),
        (changed(*TABLE, "origins", 1, "first", to=21), "origins of rows 21 to 43, 6 columns: expected rows from 20 on"),
        (changed(*TABLE, "origins", 1, "first", to=19), "expected rows from 20 on"),
        (changed(*TABLE, "origins", 1, "last", to=42), r"its origins are those of a table \[42, 6\]"),
        (changed(*TABLE, "origins", 1, "dim", to=7), "expected rows from 20 on, 6 columns"),
        (changed(*TABLE, "origins", 0, "seed", to=None), "origin"),
        (changed(*TABLE, "origins", 0, "initializer", to="odd"), "initializer 'odd', expected one of"),
        (changed(*TABLE, "origins", 0, to="odd"), "origin odd, expected"),
        (changed(*TABLE, "slots", to=None), "expected origins and slots"),
        (changed(*TABLE, "slots", "momentum", to=None), "slot momentum has no start value"),
        *((changed(*TABLE, "slots", "momentum", to=odd), "slot momentum starts with") for odd in ("0", True, float("nan"), [0])),
        (changed("arrays", "dense", to={"shape": [3], "dtype": "float32", "touched": 3}), "dense has touched, which only arrays of tables have"),
    ],
)
def test_a_contradictory_manifest_is_one_error(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(DamagedError, match=message) as raised:
        Checkpoint(folder)
    assert str(raised.value).startswith(f"{folder}/manifest.json: cannot be read") and "\n" not in str(raised.value)


def test_a_bitmap_that_the_manifest_does_not_name_is_an_error(folder):
    (folder / "touched_rows/user.bin").unlink()
    rewrite(folder, lambda content: None)
    with pytest.raises(DamagedError, match=r"touched_rows/user\.bin is missing among the files"):
        Checkpoint(folder)


def test_touched_rows_in_an_older_format_are_an_error(folder):
    path = folder / manifest.NAME
    content = json.loads(path.read_text()) | {"format": 3}
    del content["checksum"]
    path.write_text(json.dumps(content | {"checksum": manifest.checksum(content)}))
    with pytest.raises(DamagedError, match="arrays of touched rows in format 3, expected format 4"):
        Checkpoint(folder)


def test_a_checkpoint_without_its_bitmap_is_not_published(tmp_path):
    where = origins(20)
    described = {"origins": [origin.described() for origin in where], "slots": {}}
    array, row = "tables/user/weights", np.ones((1, DIM), np.float32)
    with pytest.raises(UserError, match=r"touched_rows/user\.bin: no worker wrote this file"):
        save(
            tmp_path,
            1,
            {array: Array((1, DIM), rows=20)},
            [ArrayPart(array, lambda start, stop: row[start:stop])],
            {touched_form.TOUCHED_ROWS: {"user": described}},
            World(),
        )
    with pytest.raises(UserError, match="could not be written: table user stands in touched_rows or has arrays"):
        save(tmp_path, 1, {array: Array((1, DIM), rows=20)}, [ArrayPart(array, lambda start, stop: row[start:stop])], {}, World())
    assert not list(tmp_path.glob("step-*"))


def test_a_table_that_is_removed_while_it_is_read_is_told_apart_from_damage(folder):
    checkpoint = Checkpoint(folder)
    shutil.rmtree(folder)
    for read in (checkpoint.read, checkpoint.check):
        with pytest.raises(CheckpointError, match="was removed while it was read") as raised:
            read("tables/user/weights")
        assert not isinstance(raised.value, DamagedError)


def test_the_bitmaps_checksum_is_at_its_end(folder):
    content = (folder / "touched_rows/user.bin").read_bytes()
    assert content[-4:] == zlib.crc32(content[:-4]).to_bytes(4, "little")
    assert_array_equal(np.unpackbits(np.frombuffer(content[:-4], np.uint8))[:43].nonzero()[0], np.arange(1, 42, 4))


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 1000])
def test_bitmaps_are_those_of_packbits(rows):
    draw = np.random.default_rng(rows)
    for share in (0.0, 0.01, 0.5, 1.0):
        there = draw.random(rows) < share
        numbers = draw.permutation(np.flatnonzero(there)).astype(np.int32)
        assert_array_equal(touched_form.bits_of(numbers, rows), np.packbits(there))
        assert_array_equal(touched_form.numbers_of(np.packbits(there)), np.flatnonzero(there))
