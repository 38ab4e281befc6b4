"""Tests of the C++ places of rows against a dictionary, and of the numbers of single rows against NumPy's generator."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import native_places, native_scorer
from model.native_places import PlaceMap, places_available, row_numbers
from utils.errors import UserError
from utils.initial_rows import numbers_of_rows

ROOT = Path(__file__).parents[2]
MOST_ROWS = 2**31 - 1
KEY = (0x9E3779B97F4A7C15, 0x243F6A8885A308D3)


@pytest.fixture(scope="module", autouse=True)
def built():
    if os.environ.get("DLRM_NATIVE_OPS") == "0":
        pytest.skip("DLRM_NATIVE_OPS=0")
    assert places_available(), "the library is not built for this machine: run .venv/bin/python ops/build"


class SlowMap:
    """The slow, obvious map: a dictionary from ids to places, which keeps the order in which ids were added."""

    def __init__(self):
        self.places: dict[int, int] = {}

    def plan(self, ids):
        return np.array([-1 if id < 0 else self.places.setdefault(id, len(self.places)) for id in ids.ravel().tolist()]).reshape(ids.shape)

    def find(self, ids, known, scratch):
        absent: dict[int, int] = {}
        found = []
        for id in ids.ravel().tolist():
            place = self.places.get(id, known)
            found.append(-1 if id < 0 else place if place < known else absent.setdefault(id, scratch + len(absent)))
        return np.array(found).reshape(ids.shape), list(absent)

    def truncate(self, count):
        self.places = {id: place for id, place in self.places.items() if place < count}


def planned(places, ids):
    out = np.full(ids.shape, -7, np.int32)
    places.plan(ids, out)
    return out


def found(places, ids, known, scratch):
    out = np.full(ids.shape, -7, np.int32)
    absent = places.find(ids, out, known, scratch)
    assert absent.dtype == np.int32
    return out, absent.tolist()


def check(places, slow):
    assert len(places) == len(slow.places) and places.ids().dtype == np.int32
    assert places.ids().tolist() == list(slow.places)


# Places ----------------------------------------------------------------------------------------------------------------


def test_places_worked_out_by_hand():
    places = PlaceMap(10)
    np.testing.assert_array_equal(planned(places, np.array([[7, 0, 7, -1], [9, 9, 0, 3]], np.int32)), [[0, 1, 0, -1], [2, 2, 1, 3]])
    assert places.ids().tolist() == [7, 0, 9, 3] and places.ids(2).tolist() == [9, 3] and places.ids(4).tolist() == places.ids(9).tolist() == []

    out, absent = found(places, np.array([[3, 5, 7, -1], [9, 3, 1, 5]], np.int32), known=2, scratch=100)
    np.testing.assert_array_equal(out, [[100, 101, 0, -1], [102, 100, 103, 101]])
    assert absent == [3, 5, 9, 1] and len(places) == 4

    places.truncate(2)
    np.testing.assert_array_equal(planned(places, np.array([[3, 9, 0]], np.int32)), [[2, 3, 1]])
    assert places.ids().tolist() == [7, 0, 3, 9]


@st.composite
def steps(draw):
    """Draw V and some steps: a seed for the batch's ids, its shape, the share of the rows that are known, and that which is kept afterwards."""
    rows = draw(st.sampled_from([1, 2, 17, 1000, 10**6, MOST_ROWS]))
    shape = st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 5, 63, 64, 65, 300]))
    share = st.floats(0, 1)
    return rows, draw(st.lists(st.tuples(st.integers(0, 2**32 - 1), shape, share, share | st.none()), max_size=8))


@given(steps())
def test_places_are_those_of_a_dictionary(drawn):
    rows, each = drawn
    places, slow = PlaceMap(rows), SlowMap()
    for seed, shape, known, kept in each:
        random = np.random.default_rng(seed)
        ids = random.integers(-1, rows, shape, np.int32)
        ids = np.where(random.random(shape) < 0.1, random.choice([-1, 0, rows - 1], shape), ids).astype(np.int32)
        known, scratch = int(known * (len(places) + 2)), int(random.integers(0, 2**30))
        out, absent = found(places, ids, known, scratch)
        expected, others = slow.find(ids, known, scratch)
        np.testing.assert_array_equal(out, expected)
        assert absent == others
        check(places, slow)
        np.testing.assert_array_equal(planned(places, ids), slow.plan(ids))
        check(places, slow)
        if kept is not None:
            count = int(kept * (len(places) + 1))
            places.truncate(count)
            slow.truncate(count)
            check(places, slow)


def test_millions_of_ids_keep_their_places_while_the_map_grows():
    rows, random = 200_000_000, np.random.default_rng(0)
    places, seen = PlaceMap(rows), np.empty(0, np.int32)
    for batch in range(12):
        ids = (rows * random.random((2, 150_000)) ** 3).astype(np.int32)
        out = planned(places, ids)
        new, first = np.unique(ids.ravel(), return_index=True)
        fresh = ~np.isin(new, seen)
        seen = np.concatenate([seen, new[fresh][np.argsort(first[fresh])]])
        np.testing.assert_array_equal(places.ids(), seen)
        np.testing.assert_array_equal(seen[out], ids)
        if batch == 6:
            places.truncate(len(seen) // 3)
            seen = seen[: len(seen) // 3]
    assert len(places) > 1_000_000
    again = PlaceMap(rows, seen)
    ids = (rows * random.random((1, 150_000))).astype(np.int32)
    for one, other in zip(found(places, ids, 10**6, 10**9), found(again, ids, 10**6, 10**9), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("stride", [1, 8, 64, 4096, 2**16, 3 * 2**20])
def test_regular_ids_are_placed(stride):
    """A hash that such ids fell on few slots by would not end within the time limit."""
    ids = np.arange(0, min(MOST_ROWS, 300_000 * stride), stride, dtype=np.int32)
    places = PlaceMap(MOST_ROWS)
    np.testing.assert_array_equal(planned(places, ids[np.newaxis])[0], np.arange(len(ids)))
    np.testing.assert_array_equal(places.ids(), ids)


def test_rows_may_be_a_stride_apart_and_places_take_the_place_of_ids():
    places, slow = PlaceMap(50), SlowMap()
    packed = np.random.default_rng(0).integers(-1, 50, (6, 40), np.int32)
    before, rows = packed.copy(), packed[4::-2, 3:30]
    expected = slow.plan(rows)
    places.plan(rows, rows)
    np.testing.assert_array_equal(rows, expected)
    untouched = np.ones_like(packed, bool)
    untouched[4::-2, 3:30] = False
    np.testing.assert_array_equal(packed[untouched], before[untouched])
    ids = before[1:3, ::1]
    expected, absent = slow.find(ids, 20, 60)
    assert places.find(ids, ids, 20, 60).tolist() == absent
    np.testing.assert_array_equal(ids, expected)


@pytest.mark.parametrize("value", [-2, 12, -(2**31), MOST_ROWS])
def test_a_bad_id_is_named_and_changes_nothing(value):
    places = PlaceMap(10)
    planned(places, np.array([[4, 2]], np.int32))
    ids = np.ones((3, 9), np.int32)
    ids[2, 7:] = value
    for call in (planned, lambda *args: found(*args, 1, 1)):
        with pytest.raises(ValueError) as caught:
            call(places, ids)
        assert str(caught.value) == f"ids[2, 7] = {value} is not in [0, 10)"
    assert places.ids().tolist() == [4, 2]


def test_a_map_begins_with_given_ids():
    ids = np.array([5, 0, MOST_ROWS - 1, 3])
    places = PlaceMap(MOST_ROWS, ids)
    assert places.ids().tolist() == ids.tolist()
    assert planned(places, np.array([[3, 9, 5, MOST_ROWS - 1]], np.int32)).tolist() == [[3, 4, 0, 2]]
    assert len(PlaceMap(1, np.zeros(1, np.int32))) == 1 and len(PlaceMap(1, np.empty(0, np.int32))) == 0


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 1, 2], r"ids\[2\] = 1: expected rows of the table, each once"),
        ([1, -1], r"ids\[1\] = -1: expected rows of the table, each once"),
        ([1, 2**32 + 2], r"ids\[1\] = 4294967298: expected rows"),
        ([10], r"ids\[0, 0\] = 10 is not in \[0, 10\)"),
        ([1.0], r"ids \[1\] float64: expected \[n\] integers"),
        ([[1]], r"ids \[1, 1\] int64: expected \[n\] integers"),
    ],
    ids=str,
)
def test_a_map_refuses_to_begin_with_wrong_ids(ids, message):
    with pytest.raises(ValueError, match=message):
        PlaceMap(10, np.array(ids))


@pytest.mark.parametrize("rows", [-1, 0, 2**31])
def test_tables_of_too_few_or_too_many_rows_are_refused(rows):
    with pytest.raises(ValueError, match=f"a table of {rows} rows: expected 1 to 2147483647"):
        PlaceMap(rows)


def test_wrong_arrays_and_places_are_refused():
    places, ids = PlaceMap(10), np.zeros((2, 6), np.int32)
    read_only = ids.copy()
    read_only.flags.writeable = False
    for bad in (ids[0], ids.astype(np.int64), ids[:, ::2], ids.T):
        with pytest.raises(ValueError, match=r"expected \[k, B\] int32, rows contiguous"):
            places.plan(bad, np.empty(bad.shape, np.int32))
    for bad in (ids[:1], ids[:, :3], read_only):
        with pytest.raises(ValueError, match="expected an out of the same shape that can be written"):
            places.plan(ids, bad)
    for known, scratch in ((-1, 0), (0, -1), (0, MOST_ROWS - 11)):
        with pytest.raises(ValueError, match=f"known {known} and scratch {scratch} for 12 ids: expected places from 0 to 2147483646"):
            places.find(ids, ids.copy(), known, scratch)
    for call in (places.truncate, places.ids):
        with pytest.raises(ValueError, match="expected 0 or more"):
            call(-1)
    assert len(places) == 0


def test_two_threads_plan_and_find_at_once():
    """The places of known rows, and of absent ones, do not depend on what is planned meanwhile."""
    rows, random = 3_000_000, np.random.default_rng(0)
    batches = (rows * random.random((60, 2, 20_000)) ** 4).astype(np.int32)
    alone, places = PlaceMap(rows), PlaceMap(rows)
    for one in (alone, places):
        planned(one, batches[0])
    known = len(places)
    expected = [found(alone, ids, known, 10**7) for ids in batches]
    errors, started = [], threading.Barrier(2)

    def plan():
        started.wait()
        for ids in batches[1:]:
            planned(places, ids)
        places.truncate(known)
        for ids in batches[1:]:
            planned(places, ids)

    def find():
        started.wait()
        for i in list(range(60)) * 2:
            (out, absent), (wanted, others) = found(places, batches[i], known, 10**7), expected[i]
            if not np.array_equal(out, wanted) or absent != others:
                errors.append(f"batch {i}")
            if len(places.ids()) < known:
                errors.append("ids")

    workers = [threading.Thread(target=work) for work in (plan, find)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
    for ids in batches[1:]:
        planned(alone, ids)
    np.testing.assert_array_equal(places.ids(), alone.ids())


OUT_OF_MEMORY = """
import resource
import numpy as np
from model.native_places import PlaceMap

places = PlaceMap(10**8)
ids = np.arange(10**8 - 1, 0, -11, dtype=np.int32).reshape(3, -1)
out = np.empty_like(ids)
places.plan(ids[:, :100_000], out[:, :100_000])
before = places.ids()
limits = resource.getrlimit(resource.RLIMIT_AS)
size = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (size + (20 << 20), limits[1]))
for call in (lambda: places.plan(ids, out), lambda: places.find(ids[:, :100_000], out[:, :100_000], 0, 0), lambda: PlaceMap(10**8, ids[0])):
    try:
        call()
        print("no error")
    except MemoryError as error:
        print(error)
same = np.array_equal(places.ids(), before)
resource.setrlimit(resource.RLIMIT_AS, limits)
places.plan(ids, out)
print(same, len(places) == ids.size, np.array_equal(places.ids()[out], ids))
"""


def test_lack_of_memory_is_an_error_and_changes_nothing():
    result = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "the places of 9,090,909 ids, beside 300,000 rows",
        "the places of 300,000 ids, beside 300,000 rows",
        "the places of 3,030,303 rows",
        "True True True",
    ]


# The library -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def afresh():
    """Clear the cache of the loaded library before and after a test."""
    native_places._loaded.cache_clear()
    yield
    native_places._loaded.cache_clear()


def test_a_library_that_is_switched_off_is_said(monkeypatch):
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    assert not places_available()
    with pytest.raises(UserError, match="switched off: remove DLRM_NATIVE_OPS=0"):
        PlaceMap(10)
    with pytest.raises(UserError, match="switched off: remove DLRM_NATIVE_OPS=0"):
        row_numbers(KEY, 1, np.zeros(1, np.int64))


def test_a_library_that_is_missing_is_said(afresh, monkeypatch, tmp_path):
    monkeypatch.setattr(native_scorer, "scorer_path", lambda: tmp_path / "scorer-0.so")
    assert not places_available()
    with pytest.raises(UserError, match="not built: run ops/build"):
        row_numbers(KEY, 1, np.zeros(1, np.int64))


def test_a_library_without_places_is_an_error(afresh, monkeypatch):
    class Other:
        pass

    monkeypatch.setattr(native_places, "native_scorer_library", Other)
    with pytest.raises(UserError, match=r"scorer-\w+\.so: .*dlrm_places_new.*; remove it and run ops/build, or set DLRM_NATIVE_OPS=0"):
        PlaceMap(10)


def test_no_tensorflow_is_imported():
    code = f"import sys, {native_places.__name__}; print([name for name in sys.modules if name.startswith('tensorflow')])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.stdout == "[]\n", result.stderr


# Numbers of rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", range(1, 18))
def test_numbers_are_those_of_numpys_generator(counts):
    rows = np.array([292_775_613, 0, 1, 5, 2**31 - 1, 2**31, 2**40 + 7, 5, 2**63 - 1])
    for key in (KEY, (0, 0), (2**64 - 1, 1)):
        numbers = row_numbers(key, counts, rows)
        assert numbers.dtype == np.float32 and numbers.shape == (len(rows), 8 * counts)
        for row, some in zip(rows.tolist(), numbers, strict=True):
            philox = np.random.Philox(key=np.array(key, np.uint64))
            philox.advance(row * counts)
            np.testing.assert_array_equal(some, np.random.Generator(philox).random(8 * counts, np.float32))


@pytest.mark.parametrize(("rows", "counts"), [(0, 3), (1, 16), (40_000, 1), (3_000, 16), (3, 5_000)])
def test_numbers_of_many_rows_are_the_slow_ones(rows, counts):
    drawn = np.random.default_rng(0).integers(0, 10**10, rows)
    np.testing.assert_array_equal(row_numbers(KEY, counts, drawn), numbers_of_rows(KEY, counts, drawn))


def test_threads_that_draw_at_once_get_their_rows():
    rows = [np.arange(i, 20_000, 7) for i in range(4)]
    results = [None] * 4

    def draw(i):
        results[i] = row_numbers(KEY, 8, rows[i])

    workers = [threading.Thread(target=draw, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for some, numbers in zip(rows, results, strict=True):
        np.testing.assert_array_equal(numbers, numbers_of_rows(KEY, 8, some))


@pytest.mark.parametrize(("key", "counts", "rows"), [(KEY, 0, [1]), (KEY, 1, [3, -1]), (KEY, 1, [[1]]), ((1,), 1, [1]), ((1, 2, 3), 1, [1])])
def test_wrong_rows_counts_and_keys_are_refused(key, counts, rows):
    with pytest.raises(ValueError, match="expected"):
        row_numbers(key, counts, np.array(rows))
