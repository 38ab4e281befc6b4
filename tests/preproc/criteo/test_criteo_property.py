"""The command agrees on random logs with a plain implementation that holds everything in memory."""

import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

numbers = st.one_of(st.just(""), st.integers(-5, 20).map(str), st.integers(-(2**63), 2**63 - 1).map(str), st.just("-0"), st.just("007"))
hashes = st.one_of(
    st.just(""), st.integers(0, 6).map("{:08x}".format), st.integers(0, 2**32 - 1).map("{:x}".format), st.sampled_from(["AB", "ab", "00aB"])
)
# 3 numbers and 4 hashes a line are enough to tell columns apart; test_criteo.py has lines of all 40 fields.
lines = st.tuples(st.sampled_from("01"), st.lists(numbers, min_size=3, max_size=3), st.lists(hashes, min_size=4, max_size=4)).map(
    lambda cells: "\t".join([cells[0], *cells[1], *cells[2]])
)
bad_lines = st.sampled_from(["", "1", "2" + "\t" * 7, "1" + "\t" * 6, "1" + "\t" * 8, "0\t+1" + "\t" * 6, "0" + "\t" * 7 + "x", "é" + "\t" * 7])
logs = st.lists(st.one_of(lines, lines, lines, bad_lines), max_size=12)


def oracle(train: list[str], test: list[str], threshold: int):
    """Work out labels, numerical features and ids of both splits row by row."""

    def good(log):
        rows = [line.split("\t") for line in log]
        return [row for row in rows if len(row) == 8 and row[0] in ("0", "1") and row[1] != "+1" and row[7] != "x"]

    rows = {"train": good(train), "test": good(test)}
    tables = []
    for i in range(4, 8):
        counts = Counter(int(row[i], 16) for row in rows["train"] if row[i])
        kept = sorted((value for value in counts if counts[value] >= threshold), key=lambda value: (-counts[value], value))
        tables.append({value: number for number, value in enumerate(kept, 1)})
    for split in rows:
        labels = [int(row[0]) for row in rows[split]]
        logarithms = [[math.log(float(text) + 3) if text and int(text) >= -2 else 0.0 for text in row[1:4]] for row in rows[split]]
        ids = [[tables[i].get(int(row[4 + i], 16), 0) if row[4 + i] else 0 for row in rows[split]] for i in range(4)]
        yield labels, np.array(logarithms).astype(np.float16), ids


@settings(max_examples=30, deadline=None)
@given(train=logs, test=logs, good=st.tuples(lines, lines), threshold=st.integers(0, 4), block_bytes=st.sampled_from([1, 150, 700, 1 << 25]))
def test_equals_the_obvious_implementation(preprocess, train, test, good, threshold, block_bytes):
    train, test = [*train, good[0]], [*test, good[1]]  # the command requires a row in each split
    with tempfile.TemporaryDirectory() as folder:
        form = ("--num_numerical", "3", "--num_categorical", "4", "--block_bytes", str(block_bytes))
        data = preprocess(Path(folder), train, test, "--bad_lines", "skip", *form, threshold=threshold)
        for split, (labels, logarithms, ids) in zip(("train", "test"), oracle(train, test, threshold), strict=True):
            found = data.columns(split)
            assert found[0].tolist() == labels
            np.testing.assert_array_equal(found[1], logarithms)
            assert found[2].tolist() == ids
