"""Reading, transforming and numbering by NumPy agree value by value with Polars' slower operations."""

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from preproc.criteo import clicklog
from preproc.criteo.clicklog import LogForm
from preproc.criteo.id_table import IdTable, write_table_ids
from preproc.criteo.log_lines import parse_block
from preproc.criteo.rows import log_plus_3
from utils.encoding import numerical
from utils.encoding.vocabulary import build_vocabulary, write_ids

FORM = LogForm(3, 4)
integers = st.one_of(
    st.just(""),
    st.integers(-5, 20).map(str),
    st.integers(-(10**18), 10**18).map(str),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.sampled_from(["-0", "007", "0" * 30 + "7", "99999999", "-99999999", "-1234567", "12345678", "123456789", "9" * 17, "-"]),
)
hashes = st.one_of(
    st.just(""), st.integers(0, 2**32 - 1).map("{:x}".format), st.sampled_from(["AB", "00aB", "ffffffff", "FFFFFFFF", "0", "00000000"])
)
odd = st.sampled_from(["+1", " 1", "1.5", "x", "-1", "123456789", "1-", "a", "é", "2", "\r"])


@st.composite
def lines(draw):
    """Draw a line, valid most of the time."""
    fields = [draw(st.sampled_from("01")), *(draw(integers) for _ in range(3)), *(draw(hashes) for _ in range(4))]
    if draw(st.integers(0, 15)) == 0:
        fields[draw(st.integers(0, 7))] = draw(odd)
    if draw(st.integers(0, 20)) == 0:
        fields.append("")
    return "\t".join(fields)


@settings(max_examples=200, deadline=None)
@given(st.lists(lines(), min_size=1, max_size=12), st.sampled_from([1, 40, 1 << 18]), st.booleans())
@example(["0" + "\t" * 7], 1, True)
@example(["1\t-" + "\t" * 6], 1, True)
@example(["1\t1-" + "\t" * 6], 1, True)
@example(["0" + "\t" * 8, "0" + "\t" * 6], 1 << 18, True)
@example(["\t".join(["0", "-7", "1234567890", *[""] * 5])], 1, False)
def test_numpy_and_polars_parse_blocks_alike(texts, step_bytes, labelled):
    form = LogForm(3, 4, labelled)
    texts = texts if labelled else [line.split("\t", 1)[1] for line in texts]
    text = "".join(f"{line}\n" for line in texts).encode()
    columns = parse_block(text, len(texts), 3, 4, labelled, step_bytes)
    expected = clicklog.parsed_by_polars(text, len(texts), form)
    if columns is None:  # an invalid line, or integers that only Polars reads
        assert expected is None or any(len(field) > 18 for line in texts for field in line.split("\t")[labelled : labelled + 3])
    else:
        found = clicklog.frame_of(columns, form)
        assert found.schema == form.typed and found.equals(expected)


def test_blocks_of_many_long_integers_are_left_to_polars():
    text = b"".join(b"1\t%d\t\t\t\t\t\t\n" % (10**9 + i) for i in range(300))
    assert parse_block(text, 300, 3, 4) is None
    assert clicklog.parsed(text, 300, FORM)["num_0"].to_list() == [10**9 + i for i in range(300)]


@given(st.lists(st.one_of(st.none(), st.integers(-10, 70_000), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=30))
def test_table_of_logarithms_gives_the_same_bits(values):
    frame = pl.DataFrame({"a": pl.Series(values, dtype=pl.Int64), "b": pl.Series(values[::-1], dtype=pl.Int64)})
    found, expected = log_plus_3(frame), numerical.log_plus_3(frame)
    assert found.dtype == expected.dtype and found.flags.c_contiguous and found.tobytes() == expected.tobytes()


def test_every_logarithm_of_the_table():
    frame = pl.DataFrame({"a": np.arange(-5, (1 << 16) + 5)})
    assert log_plus_3(frame).tobytes() == numerical.log_plus_3(frame).tobytes()


values = st.one_of(st.none(), st.integers(0, 8), st.integers(0, 2**32 - 1))


@settings(deadline=None)
@given(st.lists(st.lists(values, max_size=40), min_size=1, max_size=3), st.lists(values, min_size=1, max_size=60), st.sampled_from([1, 7, 1 << 15]))
def test_hash_table_gives_the_ids_of_a_join(tmp_path_factory, blocks, seen, block):
    folder = tmp_path_factory.mktemp("ids")
    vocabulary = build_vocabulary(pl.LazyFrame({"c": pl.Series(seen, dtype=pl.UInt32)}), 0)
    columns = [pl.Series("c", one, pl.UInt32) for one in [*blocks, seen]]
    write_table_ids(columns, vocabulary, "int16", folder / "table", block)
    write_ids(pl.concat(columns).to_frame().lazy(), vocabulary, "int16", folder / "join")
    assert (folder / "table").read_bytes() == (folder / "join").read_bytes()


@pytest.mark.parametrize(("sparse", "inserted"), [(0, 1 << 18), (1 << 20, 1 << 18), (0, 7)])
def test_ids_of_values_with_the_same_slots(sparse, inserted):
    """The values' products with the hash's factor are small or near 2^32, so that all begin at few slots: probing goes far, and around the end."""
    inverse = pow(2654435769, -1, 2**32)
    products = np.concatenate([np.arange(500), 2**32 - 1 - np.arange(500)])
    known = np.array([int(product) * inverse % 2**32 for product in products], np.uint32)
    vocabulary = pl.DataFrame({"value": known, "id": np.arange(1, 1001, dtype=np.int32)})
    others = np.array([int(product) * inverse % 2**32 for product in range(500, 1500)], np.uint32)
    table = IdTable(vocabulary, "int32", sparse, inserted)
    assert table.ids(known).tolist() == list(range(1, 1001)) and not table.ids(others).any()
