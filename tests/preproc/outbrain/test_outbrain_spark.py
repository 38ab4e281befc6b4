"""preproc.outbrain on Spark gives the same files and the same errors as Polars. See test_spark_cluster for two workers."""

import gzip
import os
import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from dataloading import generate_outbrain
from dataloading.feature_spec import FeatureSpec
from preproc.outbrain import command as outbrain
from preproc.outbrain import on_spark as outbrain_spark
from preproc.spark import shared_objects as spark_shared
from tests.helpers.commands import do
from tests.helpers.folders import tree
from tests.preproc.spark.spark_cluster import LOCAL, needs_spark
from utils.errors import UserError

pytestmark = [needs_spark, pytest.mark.usefixtures("one_spark")]


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """Generate raw files."""
    folder = tmp_path_factory.mktemp("generated with a space") / "raw"
    assert do(generate_outbrain, "--displays", "800", "--dst", folder) == 0
    return folder


@pytest.fixture
def changed(raw, tmp_path) -> Path:
    """Copy the raw files by links, for a test to change."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for path in raw.iterdir():
        os.link(path, folder / path.name)
    return folder


def rewrite(path: Path, change) -> None:
    """Change the lines of a file; other links to it keep the old content."""
    lines = path.read_text().splitlines()
    path.unlink()
    path.write_text("\n".join(change(lines) or lines) + "\n")


def bytes_of_tasks(folder: Path, table: str, parts: int) -> int:
    """Return a --block_bytes for which a table is read in about `parts` parts."""
    return (folder / f"{table}.csv").stat().st_size // (2 * parts)


def same(raw: Path, capsys, *flags: object) -> dict[str, bytes]:
    """Run both engines, check that their files and messages are the same; return the files by their names in the dataset."""
    folder = raw.with_name("datasets")
    words = [*map(str, ("--src", raw, "--overwrite", *flags))]
    capsys.readouterr()
    assert do(outbrain, *words, "--dst", folder / "polars") == 0
    said = capsys.readouterr().err
    assert do(outbrain, *words, "--dst", folder / "spark", *LOCAL) == 0
    assert capsys.readouterr().err == said
    expected = tree(folder / "polars")
    assert len(expected) == 1 + 2 * 16 + 3 and tree(folder / "spark") == expected
    return expected


def test_clicks_out_of_order_and_bad_lines_that_are_skipped(changed, capsys, monkeypatch):
    """Clicks come in no order, so that evaluation rows must be sorted; features come in several pieces; three files have bad lines."""
    monkeypatch.setattr(outbrain_spark, "PIECE_ROWS", 200)

    def clicks(lines: list[str]) -> list[str]:
        header, *rows = lines
        rows = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
        rows[7], rows[9], rows[-5], rows[-1] = "1,2,x", "1,2", rows[-5] + "7", "-1,2,1"
        return [header, *rows]

    def events(lines: list[str]) -> None:
        lines[300], lines[301], lines[-1] = lines[299], lines[301].replace(",", ",no", 3), lines[-1] + ",more"

    rewrite(changed / "clicks_train.csv", clicks)
    rewrite(changed / "events.csv", events)
    (changed / "documents_meta.csv.gz").write_bytes(gzip.compress((changed / "documents_meta.csv").read_bytes(), mtime=0))
    (changed / "documents_meta.csv").unlink()
    flags = ("--bad_lines", "skip", "--block_bytes", bytes_of_tasks(changed, "clicks_train", 6), "--seed", 3, "--min_events", 2)
    same(changed, capsys, *flags, "--staging", changed.with_name("staging"))
    assert not changed.with_name("staging").exists()
    spec = FeatureSpec.from_yaml(changed.with_name("datasets") / "spark" / "feature_spec.yaml")
    assert spec.metadata["bad_lines_skipped"] == 4 + 3


def test_rows_that_span_lines_are_read_by_one_task(changed, capsys):
    def events(lines: list[str]) -> None:
        lines[100:110] = [line.rpartition(",")[0] + ',"US>\nCA>1"' for line in lines[100:110]]

    rewrite(changed / "events.csv", events)
    same(changed, capsys, "--block_bytes", bytes_of_tasks(changed, "events", 8), "--min_events", 1)
    places = pl.read_parquet(changed.with_name("datasets") / "spark" / "vocabulary" / "event_geo_location.parquet")["value"]
    assert "US>\nCA>1" in places


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("clicks_train", {-3: "7,8,2", -2: "7,8"}, "clicks_train.csv, line {-3}, column clicked: '2', expected 0 or 1; --bad_lines skip"),
        ("clicks_train", {-3: "7,8", -2: "7,8,2"}, "clicks_train.csv, line {-3}: 2 values, expected 3 separated by ','; --bad_lines skip"),
        ("events", {40: "9", -9: "x,y,1,2,3,US"}, "events.csv, line {40}: 1 values, expected 6"),
        ("events", {-9: '1,"u,1,2,3,US'}, "events.csv, line {-9}: a quote is opened and not closed"),
        ("documents_topics", {-1: "1,2,inf"}, "documents_topics.csv, line {-1}, column confidence_level: 'inf', expected a finite number"),
        ("documents_entities", {0: "document_id,entity,confidence_level"}, "documents_entities.csv: has no column entity_id; it has document_id,"),
    ],
    ids=["bad value before bad line", "bad line before bad value", "different parts", "open quote", "infinite number", "missing column"],
)
def test_first_error_is_the_same_as_with_polars(changed, table, change, said):
    numbers = {}

    def replace(lines: list[str]) -> None:
        for place, line in change.items():
            lines[place] = line
            numbers[str(place)] = range(1, 1 + len(lines))[place]

    rewrite(changed / f"{table}.csv", replace)
    found, words = [], [*map(str, ("--src", changed, "--dst", changed.with_name("out"), "--block_bytes", 3000))]
    for engine in ((), LOCAL):
        with pytest.raises(UserError) as error:
            do(outbrain, *words, *engine)
        assert not changed.with_name("out").exists()
        found.append(str(error.value))
    for place, number in numbers.items():
        said = said.replace(f"{{{place}}}", str(number))
    assert f"{changed}/{said}" in found[0] and found[0] == found[1] and "\n" not in found[0]


def test_duplicate_key_empty_split_and_interruption_leave_no_files(changed, monkeypatch):
    destination = changed.with_name("out")
    words = [*map(str, ("--src", changed, "--dst", destination, "--block_bytes", 20_000)), *LOCAL]
    with pytest.raises(UserError, match=r"the test split holds no rows: .* clicks were read"):
        do(outbrain, *words, "--eval_fraction", "0", "--eval_from_day", "99")
    assert not destination.exists()

    def interrupted(*args) -> None:
        assert list(destination.glob(".staging-*/spark/work-clicks_train"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(outbrain, "write_features", interrupted)
        with pytest.raises(KeyboardInterrupt):
            do(outbrain, *words)
    assert not destination.exists()
    rewrite(changed / "promoted_content.csv", lambda lines: [*lines, lines[5]])
    with pytest.raises(UserError, match=r"promoted_content.csv: column ad_id: \d+ is in several rows, expected one row for each value"):
        do(outbrain, *words)
    assert not destination.exists()


def test_spark_flags_without_spark_give_warnings(changed, capsys):
    assert do(outbrain, "--src", changed, "--dst", changed.with_name("out"), "--spark_master", "local[2]") == 0
    assert "preproc.outbrain: warning: --spark_master has no effect without --engine spark\n" in capsys.readouterr().err


def test_shared_objects_map_their_arrays(tmp_path):
    values, none = np.arange(100_000).reshape(1000, 100), np.empty(0)
    spark_shared.save_shared((lambda scale: values[3] * scale, [values[::2], none], "text"), tmp_path / "shared")
    assert (
        len((tmp_path / "shared").read_bytes()) < values[::2].nbytes + 10_000
    )  # the view is pickled because it is not contiguous; the array is stored apart
    for _ in range(2):
        times, (every, nothing), text = spark_shared.load_shared(tmp_path / "shared")
        assert_array_equal(times(2), values[3] * 2)
        assert_array_equal(every, values[::2])
        assert nothing.shape == (0,) and text == "text"
    spark_shared.save_shared({"values": values}, tmp_path / "other")
    found = spark_shared.load_shared(tmp_path / "other")["values"]
    assert spark_shared.load_shared(tmp_path / "other")["values"] is found
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    assert len(pickle.dumps(found)) > values.nbytes > 50 * (tmp_path / "other").stat().st_size
