"""The digest of a vocabulary: the same for the same values in the same order, and different for all others."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataloading.features import DatasetError
from dataloading.vocabulary import read_vocabulary

MANY = 10**9


def write(path: Path, values, first_id=1, dtype=None, **options) -> Path:
    frame = pl.DataFrame({"value": pl.Series(values, dtype=dtype)}).with_row_index("id", offset=first_id)
    frame.select("value", pl.col("id").cast(pl.Int32), pl.lit(1, pl.UInt32).alias("count")).write_parquet(path, **options)
    return path


def digest(path: Path, first: int = 0, **options):
    return read_vocabulary(path, first, MANY, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cat_0.parquet"


def test_digest_does_not_depend_on_row_groups_blocks_or_integer_width(path):
    values = np.random.default_rng(0).permutation(5000).astype(np.uint32)
    expected = digest(write(path, values))
    assert expected[0].values == 5000
    for dtype in (pl.UInt32, pl.Int64, pl.UInt64, pl.Int32):
        assert digest(write(path, values, dtype=dtype, row_group_size=700)) == expected
    for block in (1, 7, 4999, 5000):
        assert digest(path, block=block) == expected


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.text(max_size=3), max_size=12) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12), first=st.integers(0, 13))
def test_digest_of_the_first_values_equals_that_of_a_shorter_vocabulary(path, values, first):
    dtype = pl.String if not values or isinstance(values[0], str) else pl.Int64
    whole, beginning = digest(write(path, values, dtype=dtype), first)
    shorter, _ = digest(write(path, values[:first], dtype=dtype))
    assert beginning == shorter and whole.values == len(values)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2, 3], [1, 3, 2]),
        ([1, 2, 3], [1, 2]),
        (["ab", "c"], ["a", "bc"]),
        (["", "a"], ["a", ""]),
        (["1"], [1]),
        ([], [0]),
        (["a\0", "b"], ["a", "\0b"]),
    ],
)
def test_other_values_have_another_digest(path, one, other):
    first, second = (digest(write(path, values, dtype=None if values else pl.Int64))[0] for values in (one, other))
    assert first.digest != second.digest


def test_first_id_changes_the_digest(path):
    assert digest(write(path, [5, 6], first_id=0))[0].digest != digest(write(path, [5, 6], first_id=1))[0].digest


def columns(**values):
    return lambda path: pl.DataFrame(values).write_parquet(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (columns(value=[1, 2, 3], id=[1, 3, 2]), "row 1: id 3; expected ids that rise by 1"),
        (columns(value=[1, 2], id=[-1, 0]), "row 0: id -1; expected ids"),
        (columns(value=[1, None], id=[1, 2]), "a value or an id is missing"),
        (columns(value=[1, 2], id=[1, None]), "a value or an id is missing"),
        (columns(value=[1.5, 2.0], id=[1, 2]), "the values are Float64; expected whole numbers or texts"),
        (columns(value=[1, 2]), "cannot be read as a vocabulary"),
        (columns(value=[1], id=["x"]), "cannot be read as a vocabulary"),
        (columns(value=[1], id=[50]), r"id 50 is not in \[0, 50\), the feature's ids"),
        (lambda path: path.write_bytes(b""), "cannot be read as a vocabulary"),
        (lambda path: path.write_bytes(b"PAR1 nonsense PAR1"), "cannot be read as a vocabulary"),
        (lambda path: path.write_bytes(write(path, range(900)).read_bytes()[:-20]), "cannot be read as a vocabulary"),
        (Path.mkdir, "cannot be read as a vocabulary"),
    ],
)
def test_invalid_vocabulary_is_one_line_error_with_the_file(path, spoil, message):
    spoil(path)
    with pytest.raises(DatasetError, match=message) as raised:
        read_vocabulary(path, 0, 50)
    assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)


def test_damaged_vocabulary_is_one_line_error_or_is_read(path):
    content = write(path, range(2000), row_group_size=500).read_bytes()
    places = np.random.default_rng(0).integers(0, len(content), 60)
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            digest(path)
        except DatasetError as error:
            assert "\n" not in str(error)
