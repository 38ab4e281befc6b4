"""Range checks agree with a plain comparison."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataloading.features import DatasetError
from dataloading.ranges import check_ids, check_labels, check_numerical, into_range


@given(st.sampled_from(["int8", "int16", "int32", "int64", "uint8"]).flatmap(lambda t: hnp.arrays(t, st.integers(0, 30))), st.integers(1, 300))
def test_ids_agree_with_the_slow_check(ids, cardinality):
    bad = [row for row, value in enumerate(ids.tolist()) if not 0 <= value < cardinality]
    if not bad:
        check_ids(ids, cardinality, "user", 100)
        return
    with pytest.raises(DatasetError) as error:
        check_ids(ids, cardinality, "user", 100, "train/user.bin")
    assert str(error.value) == f"train/user.bin: feature user, row {100 + bad[0]}: id {ids[bad[0]]} is not in [0, {cardinality})"


LISTS = st.sampled_from(["int8", "int16", "int32", "int64"]).flatmap(
    lambda dtype: hnp.arrays(dtype, st.tuples(st.integers(0, 12), st.integers(2, 5)), elements=st.integers(-3, 9) | st.integers(-128, 127))
)


@given(LISTS, st.integers(1, 300))
def test_lists_agree_with_the_slow_check(ids, cardinality):
    bad = [(row, place) for row, values in enumerate(ids.tolist()) for place, value in enumerate(values) if not -1 <= value < cardinality]
    if not bad:
        check_ids(ids, cardinality, "user", 100)
        return
    row, place = bad[0]
    with pytest.raises(DatasetError) as error:
        check_ids(ids, cardinality, "user", 100, "u.bin")
    assert str(error.value) == (f"u.bin: feature user, row {100 + row}, place {place} of its list: id {ids[row, place]} is not in [0, {cardinality})")


@given(LISTS, st.integers(1, 300), st.sampled_from(["clip", "hash"]))
def test_lists_mapped_into_range_agree_with_a_slow_loop(ids, rows, how):
    fit = (lambda value: min(max(value, 0), rows - 1)) if how == "clip" else (lambda value: value % rows)
    before = ids.copy()
    found, count = into_range(ids, rows, how)
    assert found.tolist() == [[value if value == -1 else fit(value) for value in values] for values in ids.tolist()]
    assert count == sum(not -1 <= value < rows for value in ids.reshape(-1).tolist())
    np.testing.assert_array_equal(ids, before)


def test_strided_ids_are_checked_too():
    ids = np.array([0, 9, 1, 9, 2, 9], np.int16)
    check_ids(ids[::2], 3, "f", 0)
    with pytest.raises(DatasetError, match="row 0: id 9"):
        check_ids(ids[1::2], 3, "f", 0)


def test_labels_and_numericals():
    check_labels(np.array([0, 1, 1], np.uint8), "label", 0)
    check_labels(np.empty(0, np.uint8), "label", 0)
    with pytest.raises(DatasetError, match="feature label, row 12: label 7 is not 0 or 1"):
        check_labels(np.array([0, 1, 7], np.uint8), "label", 10)
    check_numerical(np.zeros((2, 2), np.float16), ("a", "b"), 0)
    with pytest.raises(DatasetError, match=r"x\.bin: feature b, row 6: value inf is not finite"):
        check_numerical(np.array([[0, 0], [0, np.inf]], np.float16), ("a", "b"), 5, "x.bin")
