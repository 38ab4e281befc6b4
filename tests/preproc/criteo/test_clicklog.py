"""Reading of raw lines: malformed lines are found, and the check of a block agrees with the check of each line."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataloading.features import DatasetError
from preproc.criteo import clicklog
from preproc.criteo.clicklog import FIELDS, line_fault, read_rows

EMPTY = "0" + "\t" * 39


def with_field(position: int, value: str) -> str:
    fields = EMPTY.split("\t")
    fields[position - 1] = value
    return "\t".join(fields)


HEX = "expected up to 8 hexadecimal digits, or nothing"
INT = "expected an integer of 64 bits, or nothing"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (with_field(1, ""), "field 1 (label) is '', expected 0 or 1"),
        (with_field(1, "2"), "field 1 (label) is '2', expected 0 or 1"),
        (with_field(1, "01"), "field 1 (label) is '01', expected 0 or 1"),
        (with_field(2, "1.5"), f"field 2 (num_0) is '1.5', {INT}"),
        (with_field(3, "-"), f"field 3 (num_1) is '-', {INT}"),
        (with_field(4, "+1"), f"field 4 (num_2) is '+1', {INT}"),
        (with_field(5, " 1"), f"field 5 (num_3) is ' 1', {INT}"),
        (with_field(14, "9223372036854775808"), f"field 14 (num_12) is '9223372036854775808', {INT}"),
        (with_field(14, "-9223372036854775809"), f"field 14 (num_12) is '-9223372036854775809', {INT}"),
        (with_field(2, "9" * 5000), f"field 2 (num_0) is '{'9' * 40}…', {INT}"),
        (with_field(15, "68fd1e64a"), f"field 15 (cat_0) is '68fd1e64a', {HEX}"),
        (with_field(16, "000000001"), f"field 16 (cat_1) is '000000001', {HEX}"),
        (with_field(40, "xyz"), f"field 40 (cat_25) is 'xyz', {HEX}"),
        (with_field(40, "-1"), f"field 40 (cat_25) is '-1', {HEX}"),
        (with_field(40, "é"), f"field 40 (cat_25) is '\\\\xc3\\\\xa9', {HEX}"),
        (with_field(40, '"a"'), f"field 40 (cat_25) is '\"a\"', {HEX}"),
        (EMPTY[:-1], "39 fields, expected 40 separated by tabs"),
        (EMPTY + "\t", "41 fields, expected 40 separated by tabs"),
        (EMPTY.replace("\t", ","), "1 fields, expected 40 separated by tabs"),
        ("", "1 fields, expected 40 separated by tabs"),
    ],
)
def test_malformed_lines(tmp_path, line, fault):
    assert line_fault(line.encode()) == fault
    (tmp_path / "day").write_text(f"{EMPTY}\n{line}\n{EMPTY}\n", encoding="utf-8")
    for block_bytes in (1, 100, 1 << 20):  # line numbers must count across blocks
        with pytest.raises(DatasetError) as error:
            list(read_rows(tmp_path / "day", block_bytes))
        assert str(error.value) == f"{tmp_path / 'day'}: line 2: {fault}; --bad_lines skip leaves such lines out"
        blocks = list(read_rows(tmp_path / "day", block_bytes, skip_bad_lines=True))
        assert [number for rows in blocks for number in rows.lines] == [1, 3]
        assert [fault for rows in blocks for fault in rows.faults] == [f"line 2: {fault}"]


@pytest.mark.parametrize("value", ["0", "-0", "-1", "007", "0" * 30 + "7", str(2**63 - 1), str(-(2**63)), "0" * 5000])
def test_valid_integers(tmp_path, value):
    (tmp_path / "day").write_text(with_field(2, value) + "\n")
    (rows,) = read_rows(tmp_path / "day", 1 << 20)
    assert rows.frame["num_0"].to_list() == [int(value[-20:])]


def test_non_text_byte_is_an_error(tmp_path):
    (tmp_path / "day").write_bytes(b"0\t\xff" + b"\t" * 38 + b"\n")
    with pytest.raises(DatasetError, match=r"line 1: field 2 \(num_0\) is '\\\\xff', expected an integer"):
        list(read_rows(tmp_path / "day", 1 << 20))


def test_a_binary_file_is_not_read_whole(tmp_path):
    (tmp_path / "day").write_bytes(bytes(3 << 20))
    with pytest.raises(DatasetError, match="line 1: longer than 1 MiB; expected a click log in text form"):
        list(read_rows(tmp_path / "day", 1 << 20))


def test_field_counts_that_cancel_out_are_errors(tmp_path):
    """One line has a field too many and the next one too few, so that the block's number of tabs is right."""
    (tmp_path / "day").write_text(f"{EMPTY}\n{EMPTY}\t\n{EMPTY[:-1]}\n")
    (rows,) = read_rows(tmp_path / "day", 1 << 20, skip_bad_lines=True)
    assert list(rows.lines) == [1] and len(rows.faults) == 2


cells = st.one_of(
    st.just(""), st.text('01-+9aF x"\t\r\0.é', max_size=10), st.integers(-(2**64), 2**64).map(str), st.integers(0, 2**36).map("{:x}".format)
)


@given(position=st.integers(1, len(FIELDS)), value=cells, other=cells)
@example(position=2, value="-0", other="0")
@example(position=20, value="-0", other="0")
def test_block_and_line_checks_agree(position, value, other):
    text = [with_field(position, value).encode(), with_field(1, other).encode(), EMPTY.encode()]
    sound = all(line_fault(line) is None for line in text)
    assert (clicklog.parsed(b"\n".join([*text, b""]), len(text)) is not None) == sound
    for line in text:
        assert not clicklog.CRITEO.good_line(line) or line_fault(line) is None
