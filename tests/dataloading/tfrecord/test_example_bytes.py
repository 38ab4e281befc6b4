"""protobuf reads the Examples that are written from arrays; Examples written by protobuf are parsed correctly."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from dataloading.tfrecord.example_bytes import count_values, encode_example, features_of, varints
from tests.dataloading.tfrecord.example_records import example

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300) | st.sampled_from([2**k - 1 for k in range(1, 64)] + [2**k for k in range(63)])


def slow_varint(value):
    value, out = value % 2**64, bytearray()
    while value > 127:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def found_in(record):
    def read(start, stop):
        return record[start:stop]

    return {feature.name: (feature.kind, count_values(read, feature) if feature.kind else 0) for feature in features_of(read, len(record))}


@given(st.lists(NUMBERS, max_size=30))
def test_varints_equal_those_of_a_slow_loop(values):
    assert varints(np.array(values, np.int64)) == b"".join(map(slow_varint, values))


@given(st.lists(NUMBERS, max_size=200), st.lists(st.floats(width=32, allow_nan=False), max_size=200))
def test_protobuf_reads_encoded_examples(whole, floats):
    columns = {
        "ids": np.array(whole, np.int64),
        "é": np.array(floats, np.float32),
        "flag": np.array([True, False]),
        "narrow": np.array([3, -1], np.int8),
    }
    features = tf.train.Example.FromString(encode_example(columns)).features.feature
    assert sorted(features) == sorted(columns)
    assert list(features["ids"].int64_list.value) == whole
    assert list(features["é"].float_list.value) == floats
    assert list(features["flag"].int64_list.value) == [1, 0] and list(features["narrow"].int64_list.value) == [3, -1]


@given(st.integers(0, 400), st.integers(0, 400))
def test_values_written_by_protobuf_are_counted(whole, floats):
    columns = {"ids": np.arange(whole) * 1000, "price": np.ones(floats, np.float32)}
    assert found_in(example(columns)) == {"ids": ("int64", whole), "price": ("float", floats)}


def test_unpacked_lists_and_unknown_fields_are_read():
    """Older writers put a tag before each value (1, varint: 0x08; 1, fixed32: 0x0d); field 9 is unknown."""
    ids = b"\x08\x05\x08\x80\x01\x08\x07"
    prices = b"\x0d" + np.float32(1).tobytes() + b"\x0d" + np.float32(2).tobytes()
    entries = b""
    for name, number, content in ((b"ids", 3, ids), (b"price", 2, prices), (b"none", 0, b"")):
        value = bytes([number << 3 | 2, len(content)]) + content if number else b""
        entry = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(value)]) + value
        entries += b"\x0a" + bytes([len(entry)]) + entry
    record = b"\x4a\x01x" + b"\x0a" + bytes([len(entries)]) + entries
    assert tf.train.Example.FromString(record).features.feature["ids"].int64_list.value == [5, 128, 7]
    assert found_in(record) == {"ids": ("int64", 3), "price": ("float", 2), "none": ("", 0)}


@pytest.mark.parametrize("record", [b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0f", b"PAR1 not at all"])
def test_malformed_example_is_an_error(record):
    with pytest.raises(ValueError):
        found_in(record)
