"""Range checks against the obvious comparison."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dataloading.contract import DatasetError
from dataloading.ranges import check_ids, check_labels, check_numerical


@given(st.sampled_from(["int8", "int16", "int32", "int64", "uint8"]).flatmap(lambda t: hnp.arrays(t, st.integers(0, 30))), st.integers(1, 300))
def test_ids_agree_with_the_slow_check(ids, cardinality):
    bad = [row for row, value in enumerate(ids.tolist()) if not 0 <= value < cardinality]
    if not bad:
        check_ids(ids, cardinality, "user", 100)
        return
    with pytest.raises(DatasetError) as error:
        check_ids(ids, cardinality, "user", 100, "train/user.bin")
    assert str(error.value) == f"train/user.bin: feature user, row {100 + bad[0]}: id {ids[bad[0]]} is not in [0, {cardinality})"


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
