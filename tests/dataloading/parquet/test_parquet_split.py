"""--dataset_type parquet: files of NVIDIA's Wide & Deep are read by rows, and batches are those of tf_raw; errors name file, feature and row."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from numpy.testing import assert_array_equal

from dataloading.features import DatasetError
from dataloading.parquet import split as split_module
from dataloading.parquet.notes import notes
from dataloading.parquet.spec import parquet_spec
from dataloading.parquet.split import ParquetSplit
from dataloading.tf_raw import TfRawSplit
from dataloading.tfrecord.spec import pattern_spec
from tests.dataloading.parquet.outbrain_files import FILES, MAP, MULTI_HOT, NUMERICAL, ONE_HOT, nvidia_spec, padded, write_files, write_raw
from tests.dataloading.readers import batch_reader

NAMES = [*ONE_HOT, *MULTI_HOT]
SHUFFLED = {"shuffle_seed": 3, "window": 2, "window_seed": 5}
FIRST = {split: sorted(names)[0] for split, names in FILES.items()}


def opened(folder, split="train"):
    return ParquetSplit(parquet_spec(folder, "feature_spec.yaml"), split)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Write a dataset, and the same rows as tf_raw; return the folder of the first, its rows, and the specification of the second."""
    folder = tmp_path_factory.mktemp("outbrain")
    rows = write_files(folder / "parquet")
    return folder / "parquet", rows, write_raw(folder / "raw", rows)


@pytest.fixture(params=[(1 << 20, 1 << 16), (50, 20)], ids=["blocks of a file", "small blocks"])
def blocks(request, monkeypatch):
    """Read in blocks of whole files, and in blocks smaller than a row group, of which few are kept."""
    monkeypatch.setattr(split_module, "_MOST_ROWS", request.param[0])
    monkeypatch.setattr(split_module, "_FEWEST_ROWS", request.param[1])
    if request.param[0] == 50:
        monkeypatch.setattr(split_module, "_HELD_BYTES", 2000)


def assert_rows(split, frame, start, stop):
    frame = frame[start:stop]
    for place, name in enumerate(NAMES):
        expected = padded(frame[name]) if name in MULTI_HOT else frame[name].to_numpy()
        assert_array_equal(split.read_ids(place, start, stop), expected)
    assert_array_equal(split.read_numerical(start, stop), np.stack([frame[name].to_numpy().astype(np.float32) for name in NUMERICAL], 1))
    assert_array_equal(split.read_labels(start, stop), frame["clicked"].to_numpy())
    assert_array_equal(split.read_group(start, stop), frame[MAP].to_numpy())


@pytest.mark.parametrize("name", ["train", "test"])
@pytest.mark.usefixtures("blocks")
def test_any_range_of_rows_is_read(source, name):
    folder, rows, _ = source
    found, count = opened(folder, name), len(rows[name])
    assert found.num_samples == count and found.labelled and found.grouped
    assert_rows(found, rows[name], 0, count)
    draw = np.random.default_rng(0)
    for _ in range(10):
        start, stop = sorted(draw.choice(count + 1, 2, replace=False).tolist())
        assert_rows(found, rows[name], start, stop)
    types = [found.read_ids(place, 0, 3).dtype for place in (0, 2, 13)]
    assert types == [np.int16, np.int8, np.int8] and found.read_numerical(0, 3).dtype == np.float32
    found.close()


@pytest.mark.parametrize(("workers", "order"), [(1, {}), (2, SHUFFLED), (3, {}), (3, SHUFFLED)])
@pytest.mark.usefixtures("blocks")
def test_every_worker_count_reads_the_batches_of_tf_raw(source, workers, order):
    """There are three files, so with any number of workers, and with shuffled windows and a padded last batch."""
    folder, _, raw = source
    for rank in range(workers):
        mine = {"features": range(rank, 16, workers), "local_features": (0, 13), "rank": rank, "num_workers": workers, **order}
        reader, other = batch_reader(opened(folder), 96, **mine), batch_reader(TfRawSplit(raw, "train"), 96, **mine)
        batches = list(reader.epoch(1))
        assert len(batches) == 11
        for one, two in zip(batches, other.epoch(1), strict=True):
            for a, b in zip(one, two, strict=True):
                assert_array_equal(a, b)
                assert np.asarray(a).dtype == np.asarray(b).dtype
        for one, two in zip(batch_reader(opened(folder), 96, **mine).epoch(1, first=7), batches[7:], strict=True):
            assert_array_equal(one.ids, two.ids)


def test_more_workers_than_files_read_every_row_once(source):
    folder, rows, _ = source
    seen = [
        batch.numerical[batch.weights > 0]
        for rank in range(8)
        for batch in batch_reader(opened(folder, "test"), 96, features=(), rank=rank, num_workers=8).epoch()
    ]
    found, expected = np.concatenate(seen), np.stack([rows["test"][name].to_numpy().astype(np.float32) for name in NUMERICAL], 1)
    assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


def test_files_are_read_in_the_order_of_their_names_as_text(tmp_path):
    frame = write_files(tmp_path)["train"]
    (tmp_path / "train/part_1.parquet").rename(tmp_path / "train/part_2.parquet")
    spec = nvidia_spec()
    spec["source_spec"]["train"][0]["files"] = [f"train/part_{number}.parquet" for number in (0, 2, 10)]
    (tmp_path / "feature_spec.yaml").write_text(yaml.safe_dump(spec))
    assert_array_equal(opened(tmp_path).read_ids(0, 0, 1000), np.concatenate([frame["ad_id"][:333], frame["ad_id"][666:], frame["ad_id"][333:666]]))


def test_specification_in_a_subfolder_names_files_of_the_dataset_folder(tmp_path):
    frame = write_files(tmp_path)["train"]
    (tmp_path / "specs").mkdir()
    (tmp_path / "feature_spec.yaml").rename(tmp_path / "specs/wide.yaml")
    found = ParquetSplit(parquet_spec(tmp_path, "specs/wide.yaml"), "train")
    assert_array_equal(found.read_labels(0, 1000), frame["clicked"])


def test_fingerprint_differs_for_other_rows(source, tmp_path):
    before = opened(source[0]).fingerprint()
    assert opened(source[0]).fingerprint() == before
    write_files(tmp_path, {"train": 1001, "test": 330})
    assert opened(tmp_path).fingerprint() != before


def test_unusual_types_that_hold_the_same_numbers_are_read(tmp_path):
    """NVIDIA's transcode.py writes lists of float64; a label may be a float or a bool, ids unsigned, lists of a fixed length, numericals integers."""
    lists = pl.Series([[1, 2, 3]] * 1000, dtype=pl.List(pl.Int64))

    def change(frame):
        frame = frame.with_columns(category_id_list=lists[: frame.height])
        return frame.with_columns(
            pl.col("ad_id").cast(pl.UInt64),
            pl.col("platform").cast(pl.UInt8),
            pl.col("topic_id_list").cast(pl.List(pl.Float64)),
            pl.col("category_id_list").cast(pl.Array(pl.Int32, 3)),
            pl.col("clicked").cast(pl.Float32),
            pl.col("ad_id_count").round().cast(pl.Int64),
            pl.col(MAP).cast(pl.Int32),
        )

    frame = write_files(tmp_path, change=change)["train"]
    expected = frame.with_columns(pl.col("topic_id_list").cast(pl.List(pl.Int64)), pl.col("category_id_list").cast(pl.List(pl.Int64)))
    assert_rows(opened(tmp_path), expected, 0, 1000)
    write_files(tmp_path, change=lambda frame: frame.with_columns(pl.col("clicked").cast(pl.Boolean)))
    assert_array_equal(opened(tmp_path).read_labels(0, 1000), frame["clicked"])


def test_file_that_pyarrow_wrote_is_read(tmp_path):
    """pyarrow.parquet (PyArrow 26): 20 rows in groups of 7, ad_id i * 7 % 10, platform i % 4, a list of the first i % 4 numbers, ad_id_ctr i / 8."""
    names = ["ad_id", "platform", "topic_id_list", "ad_id_ctr", "clicked"]
    features = {"ad_id": {"cardinality": 10}, "platform": {"cardinality": 4}, "topic_id_list": {"cardinality": 3, "max_hotness": 3}}
    channels = {"onehot_categorical": names[:2], "multihot_categorical": names[2:3], "numerical": names[3:4], "label": names[4:], "map": [MAP]}
    chunk = {"type": "parquet", "features": [*names, MAP], "files": ["pyarrow.parquet"]}
    spec = {"feature_spec": features | {name: {} for name in (*names[3:], MAP)}, "channel_spec": channels, "source_spec": {"test": [chunk]}}
    (tmp_path / "feature_spec.yaml").write_text(yaml.safe_dump(spec))
    shutil.copy(Path(__file__).with_name("pyarrow.parquet"), tmp_path)
    found, rows = opened(tmp_path, "test"), np.arange(20)
    assert found.files[0].groups == [7, 7, 6]
    for start, stop in ((0, 20), (5, 11), (13, 14)):
        some = rows[start:stop]
        assert found.read_ids(0, start, stop).tolist() == (some * 7 % 10).tolist() and found.read_ids(1, start, stop).tolist() == (some % 4).tolist()
        assert found.read_ids(2, start, stop).tolist() == [[*range(row % 4), -1, -1, -1][:3] for row in some]
        assert found.read_numerical(start, stop)[:, 0].tolist() == (some / 8).tolist()
        assert found.read_labels(start, stop).tolist() == (some % 2).tolist() and found.read_group(start, stop).tolist() == (100 + some // 4).tolist()


def test_lists_of_max_hotness_1_are_single_ids(tmp_path):
    spec = nvidia_spec()
    spec["feature_spec"]["topic_id_list"]["max_hotness"] = 1
    for values in ([[4]] * 1000, [4] * 1000):
        write_files(tmp_path, spec=spec, change=lambda frame, values=values: frame.with_columns(topic_id_list=pl.Series(values[: frame.height])))
        assert opened(tmp_path).read_ids(13, 0, 1000).tolist() == [4] * 1000
    write_files(tmp_path, spec=spec)
    with pytest.raises(DatasetError, match=r"a list of [023] ids, expected exactly 1, its max_hotness"):
        opened(tmp_path).read_ids(13, 0, 1000)


def test_longer_lists_are_cut_and_counted(tmp_path):
    lists = pl.Series([[1, 2, 3, 4], [], [5], [6, 7, 8, 9, 10]] * 250)
    write_files(tmp_path, change=lambda frame: frame.with_columns(topic_id_list=lists[: frame.height], extra=pl.lit(1)))
    split = opened(tmp_path)
    assert split.read_ids(13, 0, 4).tolist() == [[1, 2, 3], [-1, -1, -1], [5, -1, -1], [6, 7, 8]]
    assert notes(split.spec, [split]) == [
        "unused columns of the Parquet files: extra",
        f"train: 500 of 1,000 rows have more than 3 ids in topic_id_list, its max_hotness in {tmp_path}/feature_spec.yaml; only the first 3 of a "
        "list are read",
    ]


def test_training_files_without_the_group_are_read(tmp_path):
    write_files(tmp_path)
    for name in FILES["train"]:
        pl.read_parquet(tmp_path / name).drop(MAP).write_parquet(tmp_path / name)
    split = opened(tmp_path)
    assert not split.grouped and split.read_group(0, 5).tolist() == [0] * 5
    assert notes(split.spec, [split]) == [
        f"{tmp_path}/feature_spec.yaml: the files of train lack the column display_id, and 0 stands for it; no evaluation reads it"
    ]
    with pytest.raises(DatasetError, match=r"--valid_fraction 0.1 needs the groups of the held out rows: .*part_0.parquet has no column display_id"):
        split.check_grouped("--valid_fraction 0.1")
    (path := tmp_path / FIRST["test"]).write_bytes((tmp_path / FIRST["train"]).read_bytes())
    with pytest.raises(DatasetError, match=f"{path}: no column display_id, a feature of .*; expected integers"):
        opened(tmp_path, "test")


# Bad input ----------------------------------------------------------------------------------------------------------------


def set_row(name, row, value):
    """Return a change that sets a row of a column."""

    def change(frame):
        values = frame[name].to_list()
        values[row] = value
        dtype = pl.Float64 if isinstance(value, float) else pl.Int64 if isinstance(value, int) else frame[name].dtype
        return frame.with_columns(pl.Series(name, values, dtype=dtype))

    return change


ROW = 700  # row 34 of the third of three files with 333, 333 and 334 rows
VALUES = {
    "null id": (set_row("platform", ROW, None), "feature platform, row 700: is null; expected a value"),
    "null number": (set_row("ad_id_count", ROW, None), "feature ad_id_count, row 700: is null; expected a value"),
    "null label": (set_row("clicked", ROW, None), "feature clicked, row 700: is null; expected a value"),
    "null list": (set_row("topic_id_list", ROW, None), "feature topic_id_list, row 700: is null; expected a value"),
    "null in a list": (set_row("topic_id_list", ROW, [1, None]), "feature topic_id_list, row 700: a list holds null; expected ids"),
    "id too large": (set_row("platform", ROW, 4), "feature platform, row 700: id 4 is not in [0, 4); correct the dataset, or map such ids"),
    "id below 0": (set_row("platform", ROW, -1), "feature platform, row 700: id -1 is not in [0, 4)"),
    "huge id": (set_row("document_id", ROW, 2**40), "feature document_id, row 700: id 1099511627776 is not in [0, 200)"),
    "id of a list": (set_row("topic_id_list", ROW, [0, 35]), "feature topic_id_list, row 700, place 1 of its list: id 35 is not in [0, 35)"),
    "label": (set_row("clicked", ROW, 2), "feature clicked, row 700: label 2 is not 0 or 1"),
    "fraction as a label": (set_row("clicked", ROW, 0.5), "feature clicked, row 700: label 0.5 is not 0 or 1"),
    "NaN as a label": (set_row("clicked", ROW, float("nan")), "feature clicked, row 700: label nan is not 0 or 1"),
    "NaN": (set_row("ad_id_ctr", ROW, float("nan")), "feature ad_id_ctr, row 700: value nan is not finite"),
    "infinite": (set_row("ad_id_ctr", ROW, 1e300), "feature ad_id_ctr, row 700: value inf is not finite"),
}


@pytest.mark.parametrize("case", VALUES)
def test_bad_value_is_one_line_error(tmp_path, case):
    change, message = VALUES[case]
    write_files(tmp_path, change=lambda frame: change(frame) if frame.height == 1000 else frame)
    with pytest.raises(DatasetError) as caught:
        list(batch_reader(opened(tmp_path), 100).epoch())
    assert str(caught.value).startswith(f"{tmp_path}/train/part_10.parquet, row 34 of the file: {message}"), caught.value
    assert "\n" not in str(caught.value)


def test_ids_out_of_range_follow_the_policy(tmp_path):
    write_files(tmp_path, change=lambda frame: set_row("platform", 3, 2**40 + 5)(set_row("topic_id_list", 4, [36, -2])(frame)))
    found = {}
    for policy in ("clip", "hash"):
        batch = next(batch_reader(opened(tmp_path), 10, out_of_range=policy).epoch())
        found[policy] = batch.out_of_range, batch.ids[2, 3], batch.ids[13:16, 4].tolist()
    assert found == {"clip": (3, 3, [34, 0, -1]), "hash": (3, (2**40 + 5) % 4, [1, 33, -1])}


def test_list_of_fractions_is_an_error(tmp_path):
    write_files(tmp_path, change=lambda frame: frame.with_columns(topic_id_list=pl.Series([[1.0], [2.0, 2.5]] * 500)[: frame.height]))
    with pytest.raises(DatasetError, match=r"part_0.parquet, row 1 of the file: feature topic_id_list, row 1: id 2.5 is not a whole number"):
        opened(tmp_path).read_ids(13, 0, 10)


FILE_FAULTS = {
    "missing": (lambda path: path.unlink(), "no such file; "),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "not a regular file; "),
    "other format": (lambda path: path.write_bytes(b"a,b\n1,2\n" * 100), "is not Parquet; "),
    "empty": (lambda path: path.write_bytes(b""), "is not Parquet; "),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read as Parquet: "),
    "half": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "cannot be read as Parquet: "),
    "no column": (lambda path: pl.read_parquet(path).drop("platform").write_parquet(path), "no column platform, a feature of "),
    "text": (
        lambda path: pl.read_parquet(path).cast({"platform": pl.String}).write_parquet(path),
        "feature platform: the column's type is String, expected integers",
    ),
    "fractions": (
        lambda path: pl.read_parquet(path).cast({"platform": pl.Float64}).write_parquet(path),
        "feature platform: the column's type is Float64, expected integers",
    ),
    "single ids": (
        lambda path: pl.read_parquet(path).with_columns(topic_id_list=1).write_parquet(path),
        "feature topic_id_list: the column's type is Int32, expected lists of integers (max_hotness 3)",
    ),
    "number as text": (
        lambda path: pl.read_parquet(path).cast({"ad_id_ctr": pl.String}).write_parquet(path),
        "feature ad_id_ctr: the column's type is String, expected floating-point numbers",
    ),
    "label as text": (
        lambda path: pl.read_parquet(path).cast({"clicked": pl.String}).write_parquet(path),
        "feature clicked: the column's type is String, expected numbers 0 and 1",
    ),
    "group as text": (
        lambda path: pl.read_parquet(path).cast({MAP: pl.String}).write_parquet(path),
        "feature display_id: the column's type is String, expected integers",
    ),
}


@pytest.mark.parametrize("case", FILE_FAULTS)
def test_bad_file_is_one_line_error(tmp_path, case):
    """One of three files differs from the others."""
    damage, message = FILE_FAULTS[case]
    write_files(tmp_path)
    damage(path := tmp_path / "train/part_1.parquet")
    with pytest.raises(DatasetError) as caught:
        opened(tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}") and "\n" not in str(caught.value), caught.value


def test_damage_within_a_file_is_one_line_error_when_it_is_read(tmp_path):
    write_files(tmp_path)
    content = bytearray((path := tmp_path / "train/part_1.parquet").read_bytes())
    content[4:8000] = bytes(len(content[4:8000]))
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=f"{path}: ") as caught:
        list(batch_reader(opened(tmp_path), 100).epoch())
    assert "\n" not in str(caught.value)


def test_patterns_of_parquet_files_are_an_error(tmp_path):
    """NVIDIA's releases between the first and the current one named Parquet files by --train_data_pattern."""
    write_files(tmp_path)
    with pytest.raises(DatasetError, match=r"part_0.parquet: is Parquet, expected TFRecords; describe such files in a feature_spec.yaml"):
        pattern_spec({"train": [f"{tmp_path}/train/*.parquet"]})


def test_split_without_rows_is_an_error(tmp_path):
    write_files(tmp_path, {"train": 0, "test": 10})
    with pytest.raises(DatasetError, match=r"feature_spec.yaml: split train is empty: its files have no rows"):
        opened(tmp_path)
    write_files(tmp_path, {"train": 1, "test": 10})  # two of the files have no rows
    assert opened(tmp_path).read_ids(0, 0, 1).shape == (1,)
