"""Random tables give the dataset that a plain definition in Python gives."""

import csv
import io
import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.preproc.table.tables import make

CHARACTERS = st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\0")
TEXTS = st.one_of(st.sampled_from(["", "a", "b", "NA", " a", "1", "01", 'q"', "x,y", "ü", "x^2"]), st.text(CHARACTERS, max_size=4))
NUMBERS = st.one_of(
    st.just(""), st.sampled_from(["NA", "nan", " 2 "]), st.integers(-(10**6), 10**6).map(str), st.floats(-1e6, 1e6, width=32).map(repr)
)
WORDS = st.lists(st.sampled_from(["a", "b", "c", "dd", "", "é"]), max_size=4).map("|".join)
ROWS = st.lists(st.tuples(TEXTS, NUMBERS, WORDS, st.sampled_from("01")), min_size=1, max_size=12)
MISSING = ("", "na", "nan")


def text(rows, separator: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("s", "n", "l", "y"), *rows])
    return out.getvalue()


def number(value: str) -> float | None:
    return None if value.strip().lower() in MISSING else float(value)


def dictionary(values, threshold: int, most: int | None) -> dict[str, int]:
    counts = Counter(value for value in values if value)
    kept = sorted((value for value in counts if counts[value] >= threshold), key=lambda value: (-counts[value], value.encode()))
    return {value: i for i, value in enumerate(kept[:most], 1)}


def words(value: str) -> list[str]:
    return [word for word in value.split("|") if word]


@settings(max_examples=60)
@given(ROWS, ROWS, st.integers(0, 3), st.one_of(st.none(), st.integers(1, 4)), st.sampled_from(",\t;|"), st.integers(1, 200))
def test_tables(train, test, threshold, most, separator, block_bytes):
    ids = {"frequency_threshold": threshold} | ({} if most is None else {"max_ids": most})
    features = {"s": {"kind": "categorical", **ids}, "l": {"kind": "list", **ids}, "n": {"kind": "numerical", "transform": "standardise"}}
    features["b"] = {"kind": "numerical", "column": "n", "buckets": 3}
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--separator", separator, "--block_bytes", block_bytes)
        made = make(Path(folder), text(train, separator), text(test, separator), *flags, config={"label": "y", "features": features})
        found = {"train": made["train"], "test": made["test"]}
        hotness = {feature.name: feature.hotness for feature in made.spec.categorical}
    train, test = ([(row[0].strip(" \t\n\r\v\f"), *row[1:]) for row in rows] for rows in (train, test))
    strings = dictionary([row[0] for row in train], threshold, most)
    tags = dictionary([word for row in train for word in words(row[2])], threshold, most)
    numbers = [value for row in train if (value := number(row[1])) is not None]
    mean, std = (math.fsum(numbers) / len(numbers), float(np.std(numbers))) if numbers else (0.0, 1.0)
    std = std if len({*numbers}) > 1 else 1.0
    bounds = sorted({sorted(numbers)[i * len(numbers) // 3] for i in (1, 2)} - {min(numbers)}) if numbers else []
    longest = max(1, *(len(words(row[2])) for row in train))
    assert hotness["l"] == longest
    for split, rows in (("train", train), ("test", test)):
        assert found[split]["label"] == [int(row[3]) for row in rows]
        assert found[split]["s"] == [strings.get(row[0], 0) for row in rows]
        lists = [[tags.get(word, 0) for word in words(row[2])][:longest] for row in rows]
        if longest > 1:
            assert found[split]["l"] == [ids + [-1] * (longest - len(ids)) for ids in lists]
        else:
            assert found[split]["l"] == [ids[0] if ids else 0 for ids in lists]
        values = [number(row[1]) for row in rows]
        expected = [0.0 if value is None else (value - mean) / std for value in values]
        np.testing.assert_allclose(found[split]["n"], expected, rtol=1e-5, atol=1e-5 * max(1.0, abs(mean) / std * 1e-3))
        assert found[split]["b"] == [0 if value is None else 1 + sum(value >= bound for bound in bounds) for value in values]
