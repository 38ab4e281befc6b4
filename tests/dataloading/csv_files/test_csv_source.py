"""CSV files as a source: equal to what was written, however they are split over files and chunks; errors name the line."""

import os

import numpy as np
import polars as pl
import pytest

from dataloading import transcribe
from dataloading.csv_files import source as csv_source
from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.make_data import named_spec, random_rows
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from utils.errors import UserError

SPEC = named_spec({"user": 5, "item": 40_000}, ("price", "age"), "clicked")
NAMES = ("user", "item", "price", "age", "clicked")
HEADER = ",".join(NAMES)


def table(count, seed=0) -> pl.DataFrame:
    numerical, ids, labels = random_rows(SPEC, count, seed)
    columns = {"user": ids[0], "item": ids[1], "price": numerical[:, 0], "age": numerical[:, 1], "clicked": labels}
    return pl.DataFrame({name: column.astype(np.float64) if column.dtype == np.float16 else column for name, column in columns.items()})


def write_spec(folder, sources=None):
    content = SPEC.to_dict() | {"source_spec": sources}
    FeatureSpec.from_dict(content)
    (folder / "feature_spec.yaml").write_text(FeatureSpec.from_dict(content).to_yaml())


def run(source, destination, *flags):
    words = ["--src_dataset_type", "csv", "--src_dataset_path", str(source), "--dst_dataset_path", str(destination)]
    return do(transcribe, *words, *flags)


def chunk(features, *files):
    return {"type": "csv", "features": list(features), "files": list(files)}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "csv"
    folder.mkdir()
    write_spec(folder)
    table(100, 0).write_csv(folder / "train.csv")
    table(30, 1).write_csv(folder / "test.csv")
    return folder


@pytest.fixture
def expected(source, tmp_path):
    run(source, tmp_path / "expected")
    return {name: content for name, content in tree(tmp_path / "expected").items() if name.endswith(".bin")}


def written(folder):
    return {name: content for name, content in tree(folder).items() if name.endswith(".bin")}


def test_rows_are_those_of_the_files(expected):
    numerical, ids, labels = random_rows(SPEC, 100, 0)
    assert expected["train/numerical.bin"] == numerical.tobytes()
    assert expected["train/user.bin"] == ids[0].astype(np.int8).tobytes()
    assert expected["train/item.bin"] == ids[1].tobytes()
    assert expected["train/label.bin"] == labels.tobytes()


@pytest.mark.parametrize("block", [1, 40, 300, 1 << 20])
@pytest.mark.parametrize("batch", [7, 100, 1000])
def test_block_and_batch_sizes_change_nothing(source, expected, tmp_path, monkeypatch, block, batch):
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", max(block, 40))
    assert run(source, tmp_path / "d", "--src_batch_size", str(batch)) == 0
    assert written(tmp_path / "d") == expected


def test_max_batches_limits_the_rows(source, tmp_path):
    run(source, tmp_path / "d", "--src_batch_size", "7", "--max_batches_train", "3", "--max_batches_test", "100")
    assert len(written(tmp_path / "d")["train/label.bin"]) == 21
    assert len(written(tmp_path / "d")["test/label.bin"]) == 30


def test_files_are_concatenated_and_chunks_joined(source, expected, tmp_path, capsys):
    whole = table(100, 0)
    whole[:33].select("item", "clicked").write_csv(source / "a1.csv")
    whole[33:].select("clicked", "item").write_csv(source / "a2.csv")
    whole[:80].select("age", "price", "user").with_columns(extra=pl.lit("x,é")).write_csv(source / "b1.csv")
    whole[80:].select("user", "age", "price").write_csv(source / "b2.csv")
    train = [chunk(["item", "clicked"], "a1.csv", "a2.csv"), chunk(["user", "price", "age"], "b1.csv", "b2.csv")]
    write_spec(source, {"train": train, "test": [chunk(NAMES, "test.csv")]})
    assert run(source, tmp_path / "d", "--src_batch_size", "9") == 0
    assert written(tmp_path / "d") == expected
    assert "b1.csv: 1 columns are not in the feature specification and are ignored: extra" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text.rstrip(b"\n"),
        lambda text: text + b"\n\n",
        lambda text: text.replace(b",", b", "),
        lambda text: b'"user" , item' + text[len(b"user,item") :],
    ],
)
def test_variants_of_csv_are_read(source, expected, tmp_path, change):
    path = source / "train.csv"
    path.write_bytes(change(path.read_bytes()))
    assert run(source, tmp_path / "d") == 0
    assert written(tmp_path / "d") == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("5,1,0.5,0.5,1", r"train\.csv, line 102, feature user: expected a whole number in \[0, 5\), found '5'"),
        ("-1,1,0.5,0.5,1", r"feature user: .* found '-1'"),
        ("1.0,1,0.5,0.5,1", r"feature user: .* found '1.0'"),
        ("1,99999999999999999999,0.5,0.5,1", r"feature item: .* found '99999999999999999999'"),
        (",1,0.5,0.5,1", "feature user: .* found nothing"),
        ("1,1,,0.5,1", "feature price: expected a finite number .* found nothing"),
        ("1,1,nan,0.5,1", "feature price: .* found 'nan'"),
        ("1,1,0.5,1e9,1", "feature age: .* found '1e9'"),
        ("1,1,0.5,cheap,1", "feature age: .* found 'cheap'"),
        ("1,1,0.5,0.5,2", "feature clicked: expected 0 or 1, found '2'"),
        ("1,1,0.5,0.5", "line 102, feature clicked: .* found nothing|line 102: 4 values, expected 5 columns"),
        ("1,1,0.5,0.5,1,7", "line 102: 6 values, expected 5 columns"),
        ('1,1,0.5,0.5,"1', "line 102: a quote is opened and not closed"),
        ('1,1,"0.5\n1,1",0.5,1', "line 102: a quote is opened and not closed"),
        ('1,1,"0"5,0.5,1', "line 102: a quote inside a value that begins with one"),
        ('1,1,"0,5",0.5,"1"', "line 102, feature price: .* found '0,5'"),
        ("\n1,1,0.5,0.5,1", "line 102, feature user: .* found nothing"),
        ("1,\xff,0.5,0.5,1", "line 102, feature item"),
    ],
)
def test_bad_rows_are_named_by_line_feature_and_value(source, tmp_path, monkeypatch, row, message):
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 700)
    path = source / "train.csv"
    path.write_bytes(path.read_bytes() + row.encode("latin-1") + b"\n")
    with pytest.raises(DatasetError, match=message):
        run(source, tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("line", [1, 2, 52, 101])
def test_a_byte_that_is_not_utf8_is_named_by_file_and_line(source, tmp_path, monkeypatch, line):
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", 700)
    lines = (source / "train.csv").read_bytes().splitlines()  # the bad byte is in a column that nothing else reads
    lines = [text + (b",caf\xe9" if number == line else b",note") for number, text in enumerate(lines, 1)]
    (source / "a.csv").write_bytes(b"\n".join([lines[0].replace(b"caf\xe9", b"note"), *lines[1:30]]) + b"\n")
    (source / "b.csv").write_bytes(b"\n".join([lines[0], *lines[30:]]) + b"\n")
    write_spec(source, {"train": [chunk(NAMES, "a.csv", "b.csv")]})
    where = r"a\.csv, line 2" if line == 2 else rf"b\.csv, line {max(line - 29, 1)}"
    with pytest.raises(DatasetError, match=where + r", byte \d+: 0xe9 is not UTF-8, expected text in UTF-8"):
        run(source, tmp_path / "d", "--train_only")


def test_block_that_begins_like_a_compressed_file_is_text(source, expected, tmp_path):
    for split in ("train", "test"):
        path = source / f"{split}.csv"
        header, *rows = path.read_text().splitlines()
        path.write_text("\n".join([f"note,{header}", *(f"x^{i},{row}" for i, row in enumerate(rows))]) + "\n")
    run(source, tmp_path / "out")
    assert written(tmp_path / "out") == expected


def test_opening_csv_files_as_tf_raw_names_the_transcribe_command(source, tmp_path):
    for sources in (None, {"train": [chunk(NAMES, "train.csv")]}):
        write_spec(source, sources)
        for command in (
            lambda: TfRawSplit(spec_in(source), "train"),  # the way dlrm.py reads a dataset, in every mode
            lambda: do(transcribe, "--src_dataset_path", source, "--dst_dataset_path", tmp_path / "d"),
        ):
            with pytest.raises(DatasetError, match=f"first: python -m dataloading.transcribe --src_dataset_type csv --src_dataset_path {source}"):
                command()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header"),
        ("user,item,price,clicked\n1,1,1,1\n", r"names feature age 0 times, expected once; found 4 columns: user, item"),
        (f"{HEADER},age\n", "feature age 2 times"),
        (f"{HEADER}\n", "split train is empty"),
        (f"{HEADER}\n".replace(",", "\t"), "the header's names are separated by tabs, expected commas"),
        (f"{HEADER}\n".replace(",", ";"), "separated by semicolons, expected commas"),
    ],
)
def test_bad_headers_and_empty_files_are_errors(source, tmp_path, text, message):
    (source / "train.csv").write_text(text)
    with pytest.raises(DatasetError, match=message):
        run(source, tmp_path / "d")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([{"type": "split_binary", "features": ["user"], "files": ["a"]}], "type is split_binary, expected csv"),
        ([chunk(NAMES)], "at least one feature and one file"),
        ([chunk(NAMES[1:], "train.csv")], "feature user is in 0 chunks"),
        ([chunk([*NAMES, "user"], "train.csv")], "feature user is in 2 chunks"),
        ([chunk([*NAMES, "other"], "train.csv")], "feature other is in no channel"),
        ([chunk(NAMES[:2], "train.csv"), chunk(NAMES[2:], "test.csv")], r"test\.csv: the chunk of feature price ends after 30 rows"),
    ],
)
def test_invalid_chunks_are_rejected(source, tmp_path, train, message):
    write_spec(source, {"train": train, "test": [chunk(NAMES, "test.csv")]})
    with pytest.raises(DatasetError, match=message):
        run(source, tmp_path / "d")


def test_missing_split_and_missing_file_are_errors(source, tmp_path):
    write_spec(source, {"train": [chunk(NAMES, "train.csv")]})
    with pytest.raises(UserError, match="--splits train,test: expected names of train, each once and separated by commas, found 'test'"):
        run(source, tmp_path / "d", "--splits", "train,test")
    assert run(source, tmp_path / "d") == 0
    assert list(spec_in(tmp_path / "d").sources) == ["train"]
    (source / "train.csv").unlink()
    with pytest.raises(DatasetError, match=r"train\.csv: No such file or directory; expected a CSV file"):
        run(source, tmp_path / "e", "--train_only")
    os.mkfifo(source / "train.csv")  # without a writer: opening it to read would wait forever
    with pytest.raises(DatasetError, match=r"train\.csv: not a regular file"):
        run(source, tmp_path / "e", "--train_only")
    assert not (tmp_path / "e").exists()


def test_source_files_are_not_replaced(source, tmp_path):
    (source / "train").mkdir()
    (source / "train.csv").rename(source / "train" / "part.csv")
    write_spec(source, {"train": [chunk(NAMES, "train/part.csv")]})
    with pytest.raises(DatasetError, match="would be replaced"):
        run(source, source, "--train_only", "--overwrite")
    assert (source / "train" / "part.csv").exists()
