"""Figures of a dataset's rows, and drift between splits, against plain counts on tiny datasets."""

import numpy as np
import pytest
import yaml
from drawn_rows import respecified, write_dataset, write_vocabulary

from report.rows import dataset as rows_dataset
from report.rows import describe as rows_describe
from report.rows.describe import SplitFigures, describe
from report.rows.drift import CategoryBins, NumberBins, edges_of, stability_index
from tests.helpers.commands import run
from tests.helpers.datasets import read_yaml
from utils.errors import UserError


def greatest_distance(first, second):
    """Return the greatest distance between two empirical distribution functions, by their definition."""
    return max(abs(np.mean(first <= value) - np.mean(second <= value)) for value in np.concatenate([first, second]))


def figures(found, feature, split="train"):
    return next(one for one in found.features if (one.feature, one.split) == (feature, split))


def one_column(folder, values, other=(0,), **about):
    """Describe a dataset whose feature `a` has these values in `train` and others in `test`."""
    numbers = about.get("numerical") or {}
    train, test = ({"a": column, "label": np.arange(len(column)) % 2} for column in (values, other))
    return describe(write_dataset(folder / "d", {"train": train, "test": test}, **({"cardinalities": {}} if numbers else {}), **about))


def test_splits(tmp_path):
    splits = {
        "train": {"a": [0, 1, 2, 3], "label": [1, 0, 0, 0]},
        "valid": {"a": [1, 1], "label": [1, 1]},
        "test": {"a": [1, 2, 3], "label": [0, 0, 0]},
        "today": {"a": [3]},
    }
    found = describe(write_dataset(tmp_path / "d", splits, cardinalities={"a": 4}))
    assert found.splits == (
        SplitFigures("train", 4, 4, 0.25),
        SplitFigures("valid", 2, 2, 1.0),
        SplitFigures("test", 3, 3, 0.0),
        SplitFigures("today", 1, 1, None),
    )
    assert {(one.reference, one.split) for one in found.drift} == {("train", "valid"), ("train", "test"), ("train", "today")}
    assert found.notes == ()


def test_dataset_without_training_rows(tmp_path):
    found = describe(write_dataset(tmp_path / "d", {"today": {"a": [0, 1]}}, cardinalities={"a": 2}))
    assert found.splits == (SplitFigures("today", 2, 2, None),) and found.drift == () and figures(found, "a", "today").distinct == 2


def test_split_without_rows(tmp_path):
    folder = write_dataset(tmp_path / "d", {name: {"a": [0, 1], "label": [0, 1]} for name in ("train", "test")}, cardinalities={"a": 2})
    for path in (folder / "test").iterdir():
        path.write_bytes(b"")
    found = describe(folder)
    assert found.splits == (SplitFigures("train", 2, 2, 0.5), SplitFigures("test", 0, 0, None))
    assert [one.split for one in found.features] == ["train"] and found.drift == ()


@pytest.mark.parametrize("cardinality", [5, 300, 40_000])
def test_ids(tmp_path, cardinality):
    found = figures(one_column(tmp_path, [4, 2, 2, 0, 4, 4], cardinalities={"a": cardinality}), "a")
    assert (found.kind, found.distinct, found.cardinality, found.out_of_range) == ("categorical", 3, cardinality, 0)
    assert found.missing is found.unknown is found.length is found.mean is None


def test_unknown_values_have_id_0_where_a_vocabulary_says_so(tmp_path):
    folder = write_dataset(tmp_path / "d", {"train": {"a": [0, 0, 1, 2], "label": [0] * 4}}, cardinalities={"a": 3})
    assert figures(describe(folder), "a").unknown is None
    write_vocabulary(folder, "a", ["x", "y"])
    assert figures(describe(folder), "a").unknown == 0.5
    write_vocabulary(folder, "a", ["x", "y", "z"], first=0)
    assert figures(describe(folder), "a").unknown is None


@pytest.mark.parametrize(
    ("recipe", "missing", "unknown"),
    [
        ({"kind": "categorical", "column": "a"}, None, 0.5),
        ({"kind": "categorical", "column": "a", "hash_buckets": 2}, 0.5, None),
        ({"kind": "numerical", "column": "a", "buckets": 2, "boundaries": [1.0]}, 0.5, None),
        ("hexadecimal", None, 0.5),
        ("other", None, None),
        (["?"], None, None),
    ],
)
def test_id_0_means_as_the_transform_says(tmp_path, recipe, missing, unknown):
    found = figures(one_column(tmp_path, [0, 1, 2, 0], cardinalities={"a": 3}, metadata={"transforms": {"a": recipe}}), "a")
    assert (found.missing, found.unknown) == (missing, unknown)


def test_lists(tmp_path):
    lists = [[1, 1, -1], [-1, -1, -1], [0, 2, 3], [-1, -1, 2]]
    found = figures(one_column(tmp_path, lists, [[0, 0, 0]], cardinalities={"a": 5}, hotness={"a": 3}), "a")
    assert (found.missing, found.length, found.distinct, found.out_of_range) == (0.25, 1.5, 4, 0)


def test_ids_out_of_range(tmp_path):
    about = {"cardinalities": {"a": 100, "b": 100}, "hotness": {"b": 2}}
    columns = {"a": np.zeros(4, int), "b": np.zeros((4, 2), int), "label": [0, 1, 0, 1]}
    folder = write_dataset(tmp_path / "d", {"train": columns, "test": columns}, **about)
    (folder / "train/a.bin").write_bytes(np.array([0, 100, -1, 99], np.int8).tobytes())
    (folder / "train/b.bin").write_bytes(np.array([0, 100, -1, -1, -2, 7, 5, -1], np.int8).tobytes())
    found = describe(folder)
    assert (figures(found, "a").out_of_range, figures(found, "a").distinct) == (0.5, 2)
    assert (figures(found, "b").out_of_range, figures(found, "b").missing, figures(found, "b").length) == (2 / 5, 0.25, 5 / 4)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers(tmp_path, dtype):
    values = np.random.default_rng(1).permutation([*range(90), *[0] * 10]).astype(dtype)
    found = figures(one_column(tmp_path, values, numerical=["a"], numerical_dtype=dtype), "a")
    assert (found.low, found.high, found.zeros, found.distinct) == (0, 89, 0.11, 90)
    assert found.mean == pytest.approx(values.mean(dtype=np.float64)) and found.deviation == pytest.approx(values.astype(np.float64).std())
    assert dict(found.quantiles) == {q: float(np.quantile(values.astype(np.float64), q, method="inverted_cdf")) for q, _ in found.quantiles}
    assert found.missing == found.out_of_range == 0 and found.unknown is None


def test_numbers_that_are_not_finite(tmp_path):
    found = one_column(tmp_path, [np.nan, np.inf, -np.inf, 3], [np.nan] * 3, numerical=["a"], numerical_dtype="float16")
    train, test = figures(found, "a"), figures(found, "a", "test")
    assert (train.missing, train.out_of_range, train.mean, train.distinct) == (0.25, 0.5, 3, 1)
    assert (test.missing, test.mean, test.low, test.quantiles) == (1, None, None, ())
    assert next(one for one in found.drift if one.feature == "a").distance is None


def test_moments_of_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_dataset, "BLOCK_BYTES", 64)
    draw = np.random.default_rng(2)
    values, ids = (1000 + draw.normal(size=3000)).astype(np.float32), draw.integers(0, 40, 3000)
    columns = {"a": values, "b": ids, "label": ids % 2}
    splits = {"train": columns, "test": {name: column[:700] for name, column in columns.items()}}
    found = describe(write_dataset(tmp_path / "d", splits, cardinalities={"b": 50}, numerical=["a"]))
    a, b = figures(found, "a"), figures(found, "b")
    assert a.mean == pytest.approx(values.mean(dtype=np.float64), rel=1e-9) and a.deviation == pytest.approx(values.std(dtype=np.float64), rel=1e-6)
    assert (a.distinct, b.distinct) == (len(np.unique(values)), 40)
    for share, value in a.quantiles:
        assert np.mean(values <= value) == pytest.approx(share, abs=2e-3)


def test_large_split_is_sampled_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_describe, "_SAMPLED", 100)
    values = np.repeat(np.arange(50), 100)  # a block has a single value
    splits = {"train": {"a": values, "label": values % 2}, "test": {"a": [0], "label": [1]}}
    folder = write_dataset(tmp_path / "d", splits, cardinalities={"a": 50})
    found = describe(folder, max_rows=1000)
    assert found.splits[0].rows == 5000 and found.splits[0].read == 1000 and figures(found, "a").distinct == 10
    assert found.notes == ("train: 1,000 of 5,000 rows, in 10 blocks drawn with a fixed seed",)
    assert describe(folder, max_rows=1000) == found


def test_table_beyond_the_memory_is_folded(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_describe, "MAX_COUNTED", 8)
    found = one_column(tmp_path, np.arange(40), np.arange(40), cardinalities={"a": 40})
    assert figures(found, "a").distinct is None and found.drift[0].stability_index < 1


def drawn_drift(folder, of_train, of_test, **about):
    return one_column(folder, of_train, of_test, **about).drift[0]


def test_samples_of_one_distribution_drift_by_chance_only(tmp_path):
    # Many rare ids, most of which are in one of the splits only: an index of plain counts would be far above 1.
    draw = np.random.default_rng(3)
    train, test = (np.minimum(draw.zipf(1.2, count), 30_000) for count in (20_000, 5_000))
    found = drawn_drift(tmp_path, train, test, cardinalities={"a": 30_001})
    assert 0 < found.stability_index < 3 * found.index_by_chance < 0.05


def test_drift_of_ids_is_ranked(tmp_path):
    draw = np.random.default_rng(4)
    same, moved = draw.integers(0, 5, (2, 4000)), (draw.integers(0, 5, 4000), np.minimum(draw.integers(0, 9, 4000), 4))
    new = (draw.integers(0, 5, 4000), draw.integers(5, 10, 4000))
    columns = ({"same": same[k], "moved": moved[k], "new": new[k], "label": same[k] % 2} for k in range(2))
    folder = write_dataset(
        tmp_path / "d", dict(zip(("train", "test"), columns, strict=True)), cardinalities=dict.fromkeys(("same", "moved", "new"), 10)
    )
    found = describe(folder).drift
    assert [one.feature for one in found] == ["new", "moved", "same"]
    p, q = np.full(5, 1 / 5), np.array([1, 1, 1, 1, 5]) / 9
    assert found[1].stability_index == pytest.approx(((p - q) * np.log(p / q)).sum(), rel=0.1)
    assert found[0].stability_index > 5 > 0.25 > found[1].index_by_chance


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_distance_of_numbers_is_kolmogorovs_and_smirnovs(tmp_path, dtype):
    draw = np.random.default_rng(5)
    one, other = draw.normal(size=900).astype(dtype), draw.normal(0.3, 1.2, size=500).astype(dtype)
    found = drawn_drift(tmp_path, one, other, numerical=["a"], numerical_dtype=dtype)
    assert found.distance == pytest.approx(greatest_distance(one, other), abs=1e-12)
    assert found.distance_by_chance == pytest.approx(1.36 * (1 / 900 + 1 / 500) ** 0.5) and found.distance > found.distance_by_chance


def test_numbers_that_do_not_overlap_are_as_far_as_can_be(tmp_path):
    found = drawn_drift(tmp_path, np.full(50, 1.7e9), np.full(70, 1.7e9 + 1000), numerical=["a"])
    assert found.distance == 1 and found.stability_index > 5


def test_stability_index_of_numbers_is_over_the_references_deciles():
    edges = np.arange(100)
    counts = [np.bincount(np.searchsorted(edges, values), minlength=101) for values in (np.arange(100), np.repeat(np.arange(50), 2))]
    found = NumberBins(counts[0], 0).stability_index(NumberBins(counts[1], 0))
    p, q = ((np.array(some) + 0.5) / 105 for some in ([10] * 10, [20] * 5 + [0] * 5))
    assert found.value == pytest.approx(((p - q) * np.log(p / q)).sum())
    assert found.by_chance == pytest.approx(9 * (1 / 100 + 1 / 100))


def test_rows_that_name_nothing_are_a_group():
    half = np.array([50, 50])
    bins = CategoryBins(half, half, nothing=0)
    assert bins.stability_index(np.array([100, 100]), 0).value == 0
    assert bins.stability_index(np.array([100, 100]), 200).value > 0.5


def test_index_by_hand():
    found = stability_index(np.array([9.5, 29.5]), np.array([19.5, 19.5]))  # shares 1/4 and 3/4, and twice 1/2
    assert found.value == pytest.approx(0.25 * np.log(2) + 0.25 * np.log(1.5))
    assert stability_index(np.array([0.0, 4]), np.array([0.0, 7])) == (0, 0)


def test_edges_are_values_of_every_split():
    values = [np.arange(10, dtype=np.float16)[:, None], np.full((5, 1), 100, np.float16)]
    found = edges_of([(lambda start, stop, k=k: values[k][start:stop], [(0, len(values[k]))]) for k in range(2)], 1)
    assert found[0].tolist() == [*range(10), 100]


@pytest.mark.parametrize("ranges", [[(0, 100_000)], [(k, k + 700) for k in range(0, 100_000, 1000)]])
def test_edges_of_many_rows_come_from_all_over(ranges):
    read = []

    def rows(start, stop):
        read.append((start, stop))
        return np.arange(start, stop, dtype=np.float32)[:, None]

    (edges,) = edges_of([(rows, ranges)], 1)
    assert edges[0] < 3000 and edges[-1] > 97_000 and all(np.abs(np.diff(edges)) < 4000)
    assert all(any(first <= start and stop <= last for first, last in ranges) for start, stop in read)
    assert sum(stop - start for start, stop in read) <= 70_000


def test_names_are_kept_as_they_are(tmp_path):
    name = "<script>alert(1)"
    found = describe(write_dataset(tmp_path / "d", {"train": {name: [0], "label": [1]}}, cardinalities={name: 1}))
    assert found.features[0].feature == name


def test_labels_that_are_not_0_or_1_are_one_line(tmp_path):
    folder = write_dataset(tmp_path / "d", {"train": {"a": [0, 0], "label": [1, 0]}}, cardinalities={"a": 1})
    (folder / "train/label.bin").write_bytes(b"\0\2")
    with pytest.raises(UserError, match="row 1: label 2 is not 0 or 1"):
        describe(folder)


def generator(folder):
    respecified(folder, sources=None)


def records(folder):
    content = read_yaml(folder / "feature_spec.yaml")
    for chunk in content["source_spec"]["train"]:
        chunk["type"] = "parquet"
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda folder: (folder / "feature_spec.yaml").unlink(), r"feature_spec\.yaml: no such file"),
        (lambda folder: (folder / "train/a.bin").unlink(), r"a\.bin: No such file"),
        (lambda folder: (folder / "train/a.bin").write_bytes(b"\0"), "holds? 2"),
        (generator, "describes synthetic data"),
        (records, "type is parquet, expected split_binary"),
    ],
)
def test_folder_that_holds_no_sound_dataset_is_one_line(tmp_path, damage, line):
    folder = write_dataset(tmp_path / "d", {"train": {"a": [0, 0], "label": [1, 0]}}, cardinalities={"a": 1})
    damage(folder)
    with pytest.raises(UserError, match=line) as found:
        describe(folder)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("name", "line"), [("nothing", "no such folder"), ("file", "is not a folder")])
def test_path_that_is_no_folder_is_one_line(tmp_path, name, line):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"--dataset_path .*{line}"):
        describe(tmp_path / name)


def test_nothing_imports_tensorflow():
    code = "import sys, report.rows, report.rows.describe; sys.exit('tensorflow' in sys.modules)"
    assert run("-c", code).returncode == 0
