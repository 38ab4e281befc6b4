"""Splits, thresholds by field, orderings, other numbers of fields, and the ids of another dataset."""

import re

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dataloading import validate
from dataloading.features import DatasetError
from preproc.criteo import command as criteo
from preproc.criteo import row_order
from preproc.criteo.clicklog import LogForm
from preproc.criteo.row_order import shuffle_file, shuffled_parts
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in
from tests.preproc.conftest import Dataset, make_line
from utils.errors import UserError


def days(folder, *logs):
    """Write a file for each day's lines; return the paths."""
    paths = []
    for lines in logs:
        paths.append(folder / f"day_{len(list(folder.glob('day_*')))}")
        paths[-1].write_text("".join(f"{line}\n" for line in lines))
    return paths


def run(folder, *flags):
    assert do(criteo, *flags, "--dst", folder) == 0
    spec = spec_in(folder)
    assert do(validate, "--dataset_path", folder) == 0
    return Dataset(folder, spec)


def values(*texts):
    """Return lines whose cat_0 has the given values and whose num_0 numbers the lines."""
    return [make_line(label=str(row % 2), num={0: row}, cat={0: text}) for row, text in enumerate(texts)]


def ids(data, split):
    return data.columns(split)[2][0].tolist()


def test_a_valid_split(tmp_path):
    first, second, third = days(tmp_path, values("a", "b", "b"), values("b", "c"), values("a", "c", "c"))
    data = run(tmp_path / "d", "--train", first, "--valid", second, "--test", third, "--frequency_threshold", 0)
    assert (ids(data, "train"), ids(data, "valid"), ids(data, "test")) == ([2, 1, 1], [1, 0], [2, 0, 0])  # ids are fitted on training rows only
    assert list(data.spec.sources) == ["train", "valid", "test"]
    assert data.spec.metadata["valid"] == {"files": ["day_1"], "rows": 2, "click_rate": 0.5, "bad_lines_skipped": 0}


@pytest.mark.parametrize(("rows", "test_rows"), [(2, 1), (5, 3), (6, 3)])
@pytest.mark.parametrize("block_bytes", [1, 150, 1 << 20])
def test_the_last_day_is_halved_as_nvidia_does(tmp_path, rows, test_rows, block_bytes):
    train, before, last = days(tmp_path, values("a"), values("a", "b", "a"), values(*"abcdef"[:rows]))
    logs = ("--train", train, "--test", before, last, "--frequency_threshold", 0, "--block_bytes", block_bytes)
    whole = run(tmp_path / "whole", *logs).columns("test")
    halved = run(tmp_path / "halved", *logs, "--halve_test")
    for part in (0, 1, 2):
        test, valid = (np.moveaxis(halved.columns(split)[part], -1, 0) if part == 2 else halved.columns(split)[part] for split in ("test", "valid"))
        assert len(test) == 3 + test_rows
        assert_array_equal(np.concatenate([test, valid]), whole[part].T if part == 2 else whole[part])
    figures = halved.spec.metadata
    assert (figures["test"]["rows"], figures["valid"]["rows"]) == (3 + test_rows, rows - test_rows)
    for split in ("test", "valid"):
        assert figures[split]["click_rate"] == pytest.approx(halved.columns(split)[0].mean(), abs=1e-6)
    assert figures["valid"]["files"] == ["day_2"]


def test_halving_a_day_of_one_row_is_an_error(tmp_path):
    train, test = days(tmp_path, values("a"), values("a"))
    with pytest.raises(DatasetError, match="--halve_test: day_1 holds 1 rows; expected at least 2"):
        run(tmp_path / "d", "--train", train, "--test", test, "--frequency_threshold", 0, "--halve_test")
    assert not (tmp_path / "d").exists()


def test_thresholds_by_field_count_from_0_as_nvidia_does(tmp_path):
    lines = [make_line(cat={0: "a", 6: "b", 7: "c"})] * 3 + [make_line(cat={0: "d", 6: "e", 7: "f"})]
    train, test = days(tmp_path, lines, lines)
    data = run(tmp_path / "d", "--train", train, "--test", test, "--frequency_threshold", "20:4,21:1,2")
    assert [data.spec.categorical[i].cardinality - 1 for i in (0, 6, 7)] == [1, 0, 2]  # at least 2, 4 and 1 times
    assert data.spec.metadata["frequency_threshold"] == {"default": 2, "cat_6": 4, "cat_7": 1}
    assert data.columns("train")[2][7].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("13:7", r"expected a categorical field, 14 to 39 counted from 0, before the colon of '13:7'"),
        ("40:7,3", r"expected a categorical field, 14 to 39"),
        ("20:x", r"expected a whole number of at least 0, found 'x'"),
        ("20:1,20:2", r"field 20 \(cat_6\) is given twice"),
        ("3,4", r"3,4: expected one number without a field, for all others"),
    ],
)
def test_invalid_thresholds_are_rejected(tmp_path, text, message):
    train, test = days(tmp_path, values("a"), values("a"))
    with pytest.raises(UserError, match=message):
        do(criteo, "--train", train, "--test", test, "--dst", tmp_path / "d", "--frequency_threshold", text)


@pytest.mark.parametrize(("integers", "hashes"), [(0, 1), (2, 30), (20, 3)])
def test_other_numbers_of_fields(tmp_path, integers, hashes):
    lines = ["\t".join(["1", *(["7"] * integers), *(["ab"] * hashes)])] * 3
    train, test = days(tmp_path, lines, [*lines, "\t".join(["0"] * 40)])
    counts = ("--num_numerical", integers, "--num_categorical", hashes)
    logs = ("--train", train, "--test", test, "--frequency_threshold", 0, *counts)
    data = run(tmp_path / "d", *logs, "--bad_lines", "skip")
    assert (len(data.spec.numerical), len(data.spec.categorical)) == (integers, hashes)
    assert data.spec.metadata["test"]["bad_lines_skipped"] == 1
    frame = pl.read_parquet(data.folder / "vocabulary" / f"cat_{hashes - 1}.parquet")
    assert frame.rows() == [(0xAB, 1, 3)]
    with pytest.raises(DatasetError, match=f"line 4: 40 fields, expected {1 + integers + hashes} separated by tabs"):
        run(tmp_path / "e", *logs)
    assert LogForm(integers, hashes).good_line(lines[0].encode()) and not LogForm(integers, hashes + 1).good_line(lines[0].encode())


# Orderings ---------------------------------------------------------------------------------------------------------------


def test_training_rows_in_random_order(tmp_path):
    logs = [[make_line(str(row % 2), {0: day * 100 + row}, {1: f"{day * 100 + row:x}"}) for row in range(100)] for day in range(3)]
    first, second, test = days(tmp_path, *logs)
    flags = ("--train", first, second, "--test", test, "--frequency_threshold", 0)
    names = {value: number for value, number, _ in run(tmp_path / "input", *flags).vocabulary("cat_1")}
    number_of = {number: value for value, number in names.items()}

    def rows(ordering, seed=0):
        data = run(tmp_path / f"{ordering} {seed}", *flags, "--output_ordering", ordering, "--seed", seed)
        labels, numbers, columns = data.columns("train")
        values = [number_of[number] for number in columns[1].tolist()]
        assert_array_equal(labels, np.array(values) % 2)  # every column has the same order
        assert_array_equal(numbers[:, 0], np.log(np.array(values) + 3.0).astype(np.float16))
        assert ids(data, "test") == [0] * 100 and data.columns("test")[0].tolist() == [0, 1] * 50
        assert data.spec.metadata["output_ordering"] == {"train": ordering, "seed": seed}
        return values

    by_day, total = rows("day_random"), rows("total_random")
    for part in (by_day[:100], by_day[100:]):
        assert part != sorted(part)
    assert sorted(by_day[:100]) == list(range(100)) and sorted(by_day[100:]) == list(range(100, 200))
    assert sorted(total) == list(range(200)) and set(total[:100]) != set(range(100)) and rows("total_random", 1) != total


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    row_bytes=st.sampled_from([1, 2, 4, 26]),
    seed=st.integers(0, 5),
    bucket_rows=st.sampled_from([1, 7, 1000]),
    block_rows=st.sampled_from([1, 5, 1000]),
)
def test_every_row_stays_in_its_part_and_every_file_gets_the_same_order(tmp_path_factory, parts, row_bytes, seed, bucket_rows, block_rows):
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_order, "BUCKET_ROWS", bucket_rows)
        patch.setattr(row_order, "BLOCK_ROWS", block_rows)
        order = shuffled(folder, np.arange(sum(parts), dtype=np.uint8).reshape(-1, 1), parts, seed)[:, 0]
        wide = np.random.default_rng(seed).integers(0, 256, (sum(parts), row_bytes), np.uint8)
        assert_array_equal(shuffled(folder, wide, parts, seed), wide[order])
    ends = np.cumsum(parts)
    for end, rows in zip(ends, parts, strict=True):
        assert sorted(order[end - rows : end]) == list(range(end - rows, end))
    assert [path.name for path in folder.iterdir()] == ["rows"]


def shuffled(folder, rows, parts, seed):
    rows.tofile(folder / "rows")
    shuffle_file(folder / "rows", rows.shape[1], parts, seed, folder / "scratch")
    return np.fromfile(folder / "rows", np.uint8).reshape(rows.shape)


def test_shuffled_rows_are_uniform_over_positions(tmp_path, monkeypatch):
    """Shuffle 10 rows in buckets of about 3, 600 times: each row is at each place 60 times, within 5 standard deviations."""
    monkeypatch.setattr(row_order, "BUCKET_ROWS", 3)
    counts = np.zeros((10, 10))
    for seed in range(600):
        counts[np.arange(10), shuffled(tmp_path, np.arange(10, dtype=np.uint8).reshape(-1, 1), [10], seed)[:, 0]] += 1
    assert np.abs(counts - 60).max() < 5 * np.sqrt(60 * 0.9)


def test_parts_of_an_ordering():
    assert shuffled_parts("day_random", [3, 4]) == [3, 4] and shuffled_parts("total_random", [3, 4]) == [7]


# The ids of another dataset ------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path):
    """Make a dataset with the ids b 1, a 2, c 3 of cat_0, whose counts are 3, 2, 1."""
    train, test = days(tmp_path, values(*"bbbaac"), values("a"))
    return run(tmp_path / "old", "--train", train, "--test", test, "--frequency_threshold", 0)


def test_later_rows_get_the_ids_of_an_older_dataset(tmp_path, old, capsys):
    (today,) = days(tmp_path, values(*"ddca", ""))
    data = run(tmp_path / "today", "--test", today, "--vocabulary", old.folder)
    assert ids(data, "test") == [0, 0, 3, 2, 0] and list(data.spec.sources) == ["test"]
    assert [one.cardinality for one in data.spec.categorical] == [one.cardinality for one in old.spec.categorical]
    for path in (old.folder / "vocabulary").iterdir():
        assert (data.folder / "vocabulary" / path.name).read_bytes() == path.read_bytes()
    assert data.spec.metadata["vocabulary_use"] == "frozen" and len(data.spec.metadata["vocabulary_digests"]) == 26
    assert capsys.readouterr().err == ""


def test_rows_without_labels(tmp_path, old, capsys):
    (today,) = days(tmp_path, [line.split("\t", 1)[1] for line in values(*"dca", "")])
    data = run(tmp_path / "today", "--unlabelled", today, "--vocabulary", old.folder)
    assert "new 4 rows; 26" in capsys.readouterr().out
    labelled = run(tmp_path / "labelled", "--test", *days(tmp_path, values(*"dca", "")), "--vocabulary", old.folder)
    _, numbers, columns = data.columns("new")
    assert_array_equal(numbers, labelled.columns("test")[1])
    assert_array_equal(columns, labelled.columns("test")[2])
    assert columns[0].tolist() == [0, 3, 2, 0] and not data.spec.labelled("new")
    assert data.spec.metadata["new"] == {"files": [today.name], "rows": 4, "bad_lines_skipped": 0}
    with pytest.raises(DatasetError, match="line 1: 40 fields, expected 39 separated by tabs"):
        run(tmp_path / "e", "--unlabelled", *days(tmp_path, values("a")), "--vocabulary", old.folder)
    (mixed,) = days(tmp_path, ["\t" * 38, "x" + "\t" * 38, "7" + "\t" * 38])
    data = run(tmp_path / "mixed", "--unlabelled", mixed, "--vocabulary", old.folder, "--bad_lines", "skip")
    assert data.columns("new")[1][:, 0].tolist() == [0, float(np.float16(np.log(10)))]
    assert "line 2: field 1 (num_0) is 'x', expected an integer" in capsys.readouterr().err


def test_new_values_get_ids_after_the_old_ones(tmp_path, old):
    train, test = days(tmp_path, values("f", "f", "e", "e", "d", "b", "1", "1", "1"), values("1", "d", "a", "b"))
    data = run(tmp_path / "new", "--train", train, "--test", test, "--vocabulary", old.folder, "--extend_vocabulary", "--frequency_threshold", 2)
    # Old values keep their ids, and b's count grows by 1. New ones follow: 1 (three times), then e and f (twice each) in rising order; d is rare.
    assert data.vocabulary("cat_0") == [(0xB, 1, 4), (0xA, 2, 2), (0xC, 3, 1), (0x1, 4, 3), (0xE, 5, 2), (0xF, 6, 2)]
    assert ids(data, "train") == [6, 6, 5, 5, 0, 1, 4, 4, 4] and ids(data, "test") == [4, 0, 2, 1]
    assert data.spec.categorical[0].cardinality == 7 and data.spec.metadata["vocabulary_use"] == "extended"
    again = run(tmp_path / "again", "--test", test, "--vocabulary", data.folder)  # an extended vocabulary can itself be used
    assert ids(again, "test") == [4, 0, 2, 1]


def test_dictionary_days_all_counts_test_rows_and_warns(tmp_path, capsys):
    train, test = days(tmp_path, values("a", "b"), values("b", "c"))
    flags = ("--train", train, "--test", test, "--frequency_threshold", 0)
    assert ids(run(tmp_path / "train", *flags), "test") == [2, 0]
    assert capsys.readouterr().err == ""
    data = run(tmp_path / "all", *flags, "--dictionary_days", "all")
    assert data.vocabulary("cat_0") == [(0xB, 1, 2), (0xA, 2, 1), (0xC, 3, 1)] and ids(data, "test") == [1, 3]
    assert data.spec.metadata["dictionary_days"] == "all"
    assert capsys.readouterr().err.startswith("preproc.criteo: warning: --dictionary_days all: values of test rows are in the dictionaries")


def test_unsuitable_vocabularies_are_rejected(tmp_path, old):
    (today,) = days(tmp_path, values("a"))

    def refused(message, *flags, kind=UserError):
        with pytest.raises(kind, match=message):
            run(tmp_path / "d", "--test", today, "--vocabulary", old.folder, *flags)
        assert not (tmp_path / "d").exists()

    refused("has 26 categorical features, cat_0 to cat_25; expected the 3 of the logs", "--num_categorical", 3)
    refused("--numerical_transform none: --vocabulary .* was made with log", "--numerical_transform", "none")
    path = old.folder / "vocabulary" / "cat_3.parquet"
    good = path.read_bytes()
    pl.DataFrame({"value": ["a"], "id": [1], "count": [1]}).write_parquet(path)
    refused(r"cat_3\.parquet: id 1 is not in \[0, 1\)|cat_3\.parquet: expected 0 values", kind=DatasetError)
    path.unlink()
    refused(r"cat_3\.parquet: no such file", kind=DatasetError)
    path.write_bytes(good)
    content = read_yaml(old.folder / "feature_spec.yaml")
    content["metadata"] = {}
    (old.folder / "feature_spec.yaml").write_text(yaml.safe_dump(content))
    refused("its metadata do not name preproc.criteo", kind=DatasetError)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--test T --frequency_threshold 3", "--train is missing; give the log files of the training days (only runs with --vocabulary need none)"),
        ("--train T --frequency_threshold 3", "--test is missing"),
        ("--train T --test T", "--frequency_threshold is missing; give the number of occurrences from which a value gets an id"),
        ("--vocabulary V", "--train, --valid, --test and --unlabelled are missing"),
        ("--vocabulary V --extend_vocabulary --test T", "--train is missing; give the log files of the training days (--extend_vocabulary takes"),
        ("--train T --test T --extend_vocabulary --frequency_threshold 3", "--extend_vocabulary needs --vocabulary"),
        ("--train T --valid T --test T --halve_test --frequency_threshold 3", "--halve_test: --valid is given too"),
        ("--train T --vocabulary V --halve_test", "--halve_test: --test is missing"),
        ("--test T --vocabulary V --output_ordering total_random", "--output_ordering total_random: --train is missing"),
        ("--test T --vocabulary V --dictionary_days all", "--dictionary_days all: no dictionary is made with --vocabulary but"),
        ("--train T --test T --frequency_threshold 3 --num_categorical 0", "--num_categorical: expected a whole number of at least 1"),
    ],
)
def test_conflicting_flags_are_rejected(tmp_path, flags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        do(criteo, *flags.split(), "--dst", tmp_path / "d")


def test_flags_without_effect_give_warnings(tmp_path, old, capsys):
    (today,) = days(tmp_path, values("a"))
    run(tmp_path / "d", "--test", today, "--vocabulary", old.folder, "--frequency_threshold", 3, "--seed", 1)
    lines = [line.split(" has no effect ")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["preproc.criteo: warning: --frequency_threshold", "preproc.criteo: warning: --seed"]
