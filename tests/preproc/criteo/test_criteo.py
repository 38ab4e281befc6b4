"""The command on valid logs: values worked out by hand, compression, blocks, metadata, the real sample."""

import gzip
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
import zstandard
from numpy.testing import assert_array_equal

from dataloading.contract import check_quick
from preproc.criteo import command as criteo
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml
from tests.helpers.folders import tree

# cat_0 in training: b 3 times; 0a and c twice; d once; missing once.
TRAIN = ["b", "0a", "c", "b", "", "c", "d", "0a", "b"]


def hashes(make_line, values):
    return [make_line(label="01"[i % 3 == 0], cat={0: value}) for i, value in enumerate(values)]


def test_ids_by_frequency_then_value(make_line, preprocess, tmp_path):
    data = preprocess(tmp_path, hashes(make_line, TRAIN), hashes(make_line, ["d", "e", "", "b"]), threshold=2)
    # d is rare (1 < 2) and e unseen; 0a and c tie, 0x0a < 0x0c
    assert data.vocabulary("cat_0") == [(0x0B, 1, 3), (0x0A, 2, 2), (0x0C, 3, 2)]
    assert data.columns("train")[2][0].tolist() == [1, 2, 3, 1, 0, 3, 0, 2, 1]
    assert data.columns("test")[2][0].tolist() == [0, 0, 0, 1]
    assert data.spec.cardinalities == (4, *[1] * 25)
    assert data.columns("train")[0].tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(("threshold", "kept"), [(0, 4), (1, 4), (2, 3), (3, 1), (4, 0)])
def test_threshold_is_the_least_count_that_is_kept(make_line, preprocess, tmp_path, threshold, kept):
    data = preprocess(tmp_path, hashes(make_line, TRAIN), hashes(make_line, ["b"]), threshold=threshold)
    assert data.spec.cardinalities[0] == kept + 1
    assert len(data.vocabulary("cat_0")) == kept


def test_counts_come_from_training_days_only(make_line, preprocess, tmp_path):
    data = preprocess(tmp_path, hashes(make_line, ["a", "b", "b"]), hashes(make_line, ["a"] * 9), threshold=2)
    assert data.vocabulary("cat_0") == [(0x0B, 1, 2)]


def test_a_zero_hash_is_a_value_and_not_missing(make_line, preprocess, tmp_path):
    data = preprocess(tmp_path, hashes(make_line, ["00000000", "", "ffffffff", "FFFFFFFF"]), hashes(make_line, ["0"]))
    assert data.vocabulary("cat_0") == [(0xFFFFFFFF, 1, 2), (0, 2, 1)]  # digits of either case, with or without leading zeros, are one value
    assert data.columns("train")[2][0].tolist() == [2, 0, 1, 1]
    assert data.columns("test")[2][0].tolist() == [2]


def test_numerical_log(make_line, preprocess, tmp_path):
    lines = [make_line(num={0: value, 12: 5}) for value in ("0", "1", "-1", "-2", "-3", "", "65535", str(2**63 - 1), str(-(2**63)))]
    numbers = preprocess(tmp_path, lines, lines[:1]).columns("train")[1]
    # log 3, log 4, log 2, log 1, then 0 for -3, missing; log 65538 = 11.0904; log(2^63 + 2) = 43.668; 0 for the least integer
    expected = [1.0986, 1.3863, 0.6931, 0, 0, 0, 11.0904, 43.6683, 0]
    np.testing.assert_allclose(numbers[:, 0], expected, rtol=2**-11)
    assert_array_equal(numbers[:, 12], np.float16(2.0794415))  # log 8
    assert_array_equal(numbers[:, 1:12], np.float16(0))


def test_numerical_none(make_line, preprocess, tmp_path):
    lines = [make_line(num={3: value}) for value in ("7", "", "-65504", "65504")]
    numbers = preprocess(tmp_path, lines, lines[:1], "--numerical_transform", "none").columns("train")[1]
    assert numbers[:, 3].tolist() == [7, 0, -65504, 65504]


def test_dtypes_grow_with_the_cardinality(make_line, preprocess, tmp_path):
    lines = [make_line(cat={0: f"{i:x}", 1: f"{i % 126:x}", 2: f"{i % 125:x}"}) for i in range(40_000)]
    data = preprocess(tmp_path, lines, lines[:300])
    assert [(c.cardinality, c.dtype) for c in data.spec.categorical[:3]] == [(40_001, "int32"), (127, "int16"), (126, "int8")]
    assert data.columns("test")[2][0].tolist() == list(range(1, 301))  # equal counts: ordered by value


def random_log(make_line, rows: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    text = []
    for _ in range(rows):
        num = {i: rng.integers(-3, 1000) for i in range(13) if rng.random() < 0.8}
        cat = {i: f"{rng.zipf(1.3) % 5000:08x}" for i in range(26) if rng.random() < 0.9}
        text.append(make_line(str(rng.integers(2)), num, cat))
    return ("\n".join(text) + "\n").encode()


@pytest.fixture(name="plain", scope="module")
def _plain(make_line, preprocess, tmp_path_factory):
    logs = random_log(make_line, 50, 0), random_log(make_line, 15, 1)
    return logs, tree(preprocess(tmp_path_factory.mktemp("plain"), *logs, threshold=2).folder)


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(lambda text: gzip.compress(text[:999]) + gzip.compress(text[999:]) + b"\0" * 99, id="gzip, two members and padding"),
        pytest.param(zstd, id="zstd"),
        pytest.param(lambda text: zstd(text[:999]) + zstd(text[999:]), id="zstd, two frames"),
        pytest.param(lambda text: text.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(lambda text: text + b"\n\n", id="blank lines at the end"),
        pytest.param(lambda text: text.replace(b"\n", b"\r\n") + b"\r\n", id="CRLF blank line at the end"),
        pytest.param(lambda text: text[:-1], id="no newline at the end"),
    ],
)
@pytest.mark.parametrize("block_bytes", [300, 9000, 1 << 25])
def test_file_format_and_block_size_do_not_change_the_dataset(plain, preprocess, tmp_path, pack, block_bytes):
    (train, test), expected = plain
    data = preprocess(tmp_path, pack(train), pack(test), "--block_bytes", str(block_bytes), threshold=2)
    assert tree(data.folder) == expected


def test_several_days_are_read_in_order(plain, tmp_path):
    (train, test), expected = plain
    cut = train.index(b"\n", 5000) + 1
    for name, content in (("a", train[:cut]), ("b", gzip.compress(train[cut:])), ("c", test)):
        (tmp_path / name).write_bytes(content)
    flags = ["--train", tmp_path / "a", tmp_path / "b", "--test", tmp_path / "c", "--dst", tmp_path / "o", "--frequency_threshold", 2]
    do(criteo, *flags)
    found = tree(tmp_path / "o")
    assert yaml.safe_load(found.pop("feature_spec.yaml"))["metadata"]["train"]["files"] == ["a", "b"]
    assert found == {name: content for name, content in expected.items() if name != "feature_spec.yaml"}


def test_metadata_and_folder(make_line, preprocess, tmp_path, capsys):
    lines = [make_line("1"), make_line("0"), "bad", make_line("0"), make_line("0")]
    data = preprocess(tmp_path, lines, [make_line("1")], "--bad_lines", "skip", threshold=7)
    assert read_yaml(data.folder / "feature_spec.yaml")["metadata"] == {
        "source": "criteo",
        "train": {"files": ["day_0"], "rows": 4, "click_rate": 0.25, "bad_lines_skipped": 1},
        "test": {"files": ["day_1"], "rows": 1, "click_rate": 1.0, "bad_lines_skipped": 0},
        "frequency_threshold": 7,
        "numerical_transform": "log",
        "transforms": {f"num_{i}": "log" for i in range(13)} | {f"cat_{i}": "hexadecimal" for i in range(26)},
        "vocabulary": "vocabulary/<feature>.parquet",
    }
    assert check_quick(data.spec, ("train", "test")) == {"train": 4, "test": 1}
    assert sorted(path.name for path in data.folder.iterdir()) == ["feature_spec.yaml", "test", "train", "vocabulary"]
    out, err = capsys.readouterr()
    assert err == f"preproc.criteo: {tmp_path / 'day_0'}: bad lines skipped: 1, the first: line 3: 1 fields, expected 40 separated by tabs\n"
    assert out.count("\n") == 1 and "train 4 rows (click rate 0.2500), test 1 rows (click rate 1.0000)" in out


@pytest.mark.skipif("CRITEO_SAMPLE_DIR" not in os.environ, reason="CRITEO_SAMPLE_DIR names no folder with day_0.tsv and day_1.tsv")
def test_real_sample(preprocess, tmp_path):
    train, test = ((Path(os.environ["CRITEO_SAMPLE_DIR"]) / name).read_bytes() for name in ("day_0.tsv", "day_1.tsv"))
    data = preprocess(tmp_path, train, test, threshold=3)
    rows = [line.split("\t") for line in train.decode().splitlines()]
    labels, numbers, ids = data.columns("train")
    assert labels.tolist() == [int(row[0]) for row in rows]
    assert check_quick(data.spec, ("train", "test"))["test"] == len(test.splitlines())
    expected = [[np.log(float(text) + 3) if text and int(text) >= -2 else 0.0 for text in row[1:14]] for row in rows]
    assert_array_equal(numbers, np.array(expected).astype(np.float16))
    for i in range(26):
        values = {number: f"{value:08x}" for value, number, _ in data.vocabulary(f"cat_{i}")}
        column = [row[14 + i] for row in rows]
        counts = Counter(column)
        for number, text in zip(ids[i].tolist(), column, strict=True):
            assert values[number] == text if number else not text or counts[text] < 3
