"""Mistakes in a user's files and flags are an error of one line and leave no files; bad lines are skipped on request."""

import json
import re
import signal
import sys
from pathlib import Path

import polars as pl
import pytest

from preproc.outbrain import command as outbrain
from tests.children import child, found, wait_for
from tests.helpers.commands import ROOT, do, help_of, run_limited
from tests.preproc.outbrain.outbrain_raw import columns, preprocessed, write_raw
from utils.errors import UserError

LAST_DAY = 12 * 86_400_000
TABLES = {
    "events": f"display_id document_id timestamp platform geo_location\n1 5 10 1 US\n2 5 20 2 US\n3 6 {LAST_DAY} 1 GB",
    "promoted_content": "ad_id document_id campaign_id advertiser_id\n7 8 1 1\n9 8 1 1",
    "documents_meta": "document_id source_id publisher_id publish_time\n5 1 1 2016-06-01^00:00:00.0\n8 2 2 _",
    "documents_categories": "document_id category_id confidence_level\n5 1 0.5",
    "documents_topics": "document_id topic_id confidence_level\n5 1 0.5",
    "documents_entities": "document_id entity_id confidence_level\n5 ab 0.5",
    "clicks_train": "display_id ad_id clicked\n1 7 1\n1 9 0\n2 7 0\n2 9 1\n3 7 1\n3 9 0",
}


def raw(folder, **changes):
    return write_raw(folder / "raw", TABLES | {table: TABLES[table].replace(*change) for table, change in changes.items()})


def fails(folder, *flags):
    """Check that a run fails in one line and leaves no files; return the line."""
    with pytest.raises(UserError) as found:
        do(outbrain, "--src", folder / "raw", "--dst", folder / "out", *flags)
    assert not (folder / "out").exists() and "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("clicks_train", ("2 7 0", "2 7 2"), "clicks_train.csv, line 4, column clicked: '2', expected 0 or 1"),
        ("clicks_train", ("2 7 0", "2 _ 0"), "line 4, column ad_id: nothing, expected a whole number of 0 or more"),
        ("clicks_train", ("2 7 0", "x 7 0"), "line 4, column display_id: 'x', expected a whole number of 0 or more"),
        ("clicks_train", ("2 7 0", "2 7"), "line 4: 2 values, expected 3"),
        ("events", ("20 2 US", "20 4 US"), "events.csv, line 3, column platform: '4', expected a whole number from 1 to 3, or nothing"),
        (
            "events",
            ("\n2 5 20", "\n2 5 200000000000000"),
            "line 3, column timestamp: '200000000000000', expected a whole number from 0 to 100000000000000",
        ),
        ("promoted_content", ("9 8", "9999999999999999999 8"), "line 3, column ad_id: '9999999999999999999', expected a whole number of 0 or more"),
        ("events", ("20 2 US", "-1 2 US"), "line 3, column timestamp: '-1', expected a whole number from 0 to 1"),
        ("events", ("2 5 20", "1 5 20"), "events.csv: column display_id: 1 is in several rows, expected one row for each value"),
        ("promoted_content", ("9 8 1 1", "9 8 1.5 1"), "column campaign_id: '1.5', expected a whole number of 0 or more, or nothing"),
        ("promoted_content", ("9 8", "7 8"), "promoted_content.csv: column ad_id: 7 is in several rows"),
        ("documents_meta", ("2016-06-01", "June"), "line 2, column publish_time: 'June 00:00:00.0', expected a time"),
        ("documents_meta", ("\n8 2", "\n5 2"), "documents_meta.csv: column document_id: 5 is in several rows"),
        ("documents_topics", ("0.5", "inf"), "documents_topics.csv, line 2, column confidence_level: 'inf', expected a finite number"),
        ("documents_entities", ("ab", "_"), "documents_entities.csv, line 2, column entity_id: nothing, expected a text"),
        ("documents_categories", ("category_id", "category"), "documents_categories.csv: has no column category_id; it has document_id, category"),
        ("events", (f"3 6 {LAST_DAY}", "3 6 5"), "the test split holds no rows: 6 clicks were read, 0 of them of displays that events.csv lacks"),
        ("clicks_train", ("\n1 7 1\n1 9 0\n2 7 0\n2 9 1", ""), "the train split holds no rows: 2 clicks were read"),
    ],
)
def test_bad_value_error_names_file_line_column_and_value(tmp_path, table, change, said):
    raw(tmp_path, **{table: change})
    assert said in fails(tmp_path, "--eval_fraction", 0)


def test_missing_files_are_errors(tmp_path):
    assert "no such folder; expected the folder of the raw files (--src)" in fails(tmp_path)
    raw(tmp_path)
    (tmp_path / "raw/documents_topics.csv").unlink()
    assert "raw: has no documents_topics.csv (nor documents_topics.csv.gz)" in fails(tmp_path)
    (tmp_path / "raw/documents_topics.csv").write_text("")
    assert "documents_topics.csv: holds no lines" in fails(tmp_path)
    (tmp_path / "raw/documents_topics.csv").write_text("document_id,topic_id,confidence_level\n")
    assert "documents_topics.csv: holds no rows; expected document_id, topic_id, confidence_level" in fails(tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--eval_fraction", 1), "expected a share of at least 0 and below 1, found '1'"),
        (("--seed", -1), "expected a whole number of at least 0, found '-1'"),
        (("--dest", "x"), "unknown flag --dest; did you mean --dst?"),
        (("--table_sizes", "nowhere.json"), "--table_sizes nowhere.json: cannot be read as JSON"),
    ],
)
def test_invalid_flags_are_rejected(tmp_path, flags, said):
    raw(tmp_path)
    assert said in fails(tmp_path, *flags)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda sizes: sizes.pop("ad_id"), "expected the 13 categorical features, as in"),
        (lambda sizes: sizes.update(more={}), "differs in more"),
        (lambda sizes: sizes["ad_id"].pop("rows"), "ad_id: expected rows and embedding_dim"),
        (lambda sizes: sizes["ad_id"].update(rows=1), "ad_id: rows: 1, expected a whole number from 2 to 2147483647"),
        (lambda sizes: sizes["event_platform"].update(rows=3), "event_platform: rows: 3, expected a whole number from 4 to"),
        (lambda sizes: sizes["doc_id"].update(embedding_dim=True), "doc_id: embedding_dim: True, expected"),
    ],
)
def test_invalid_table_sizes_are_rejected(tmp_path, change, said):
    raw(tmp_path)
    sizes = json.loads((ROOT / "dataloading/tfrecord/outbrain_tables.json").read_text())
    change(sizes)
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    assert said in fails(tmp_path, "--table_sizes", tmp_path / "sizes.json")


def test_table_sizes_set_the_cardinalities(tmp_path):
    sizes = json.loads((ROOT / "dataloading/tfrecord/outbrain_tables.json").read_text())
    sizes["ad_id"], sizes["event_country"] = {"rows": 5, "embedding_dim": 8}, {"rows": 2, "embedding_dim": 4}
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    spec = preprocessed(raw(tmp_path, events=("2 5 20 2 US", "2 5 20 2 FR")), "--table_sizes", tmp_path / "sizes.json", "--min_events", 1)
    assert [(f.cardinality, f.embedding_dim, f.dtype) for f in spec.categorical if f.name in ("ad_id", "event_country")] == [
        (5, 8, "int8"),
        (2, 4, "int8"),
    ]
    found = columns(spec, "train")
    assert found["ad_id"] == [2, 4, 2, 4] and found["event_country"] == [0, 0, 1, 1]  # there is room for one country only, and FR comes before US


def test_bad_lines_are_skipped_and_counted(tmp_path, capsys):
    folder = raw(
        tmp_path,
        clicks_train=("2 7 0", "2 7 0\n2 11 2\n2 x 1\n2"),
        events=("\n2 5", "\n1 6 30 3 FR\n2 5"),
        promoted_content=("9 8 1 1", "9 8 1 1\n9 8 2 2"),
    )
    spec = preprocessed(folder, "--bad_lines", "skip", "--eval_fraction", 0)
    said = capsys.readouterr().err
    assert "clicks_train.csv: bad lines skipped: 3, the first: line 5, column clicked: '2', expected 0 or 1" in said
    assert "events.csv: column display_id: 1 is in several rows; the first is kept; rows left out: 1" in said
    assert spec.metadata["bad_lines_skipped"] == 5 and spec.metadata["train"]["rows"] == 4
    assert columns(spec, "train") == columns(preprocessed(raw(tmp_path), "--eval_fraction", 0), "train")


def test_displays_without_a_click_and_tables_that_lack_rows_give_warnings(tmp_path, capsys):
    preprocessed(raw(tmp_path, clicks_train=("2 9 1", "4 9 0\n4 11 1")), "--eval_fraction", 0)
    said = capsys.readouterr().err
    assert "the train split: 2 clicks in 3 displays; expected one in each" in said
    assert "2 rows of displays that events.csv lacks and 1 rows of ads that promoted_content.csv lacks are kept" in said


def test_existing_datasets_and_raw_files_are_not_replaced(tmp_path):
    folder = raw(tmp_path)
    flags = [*map(str, ("--src", folder, "--dst", tmp_path / "out"))]
    assert do(outbrain, *flags) == 0
    with pytest.raises(UserError, match="holds a dataset already"):
        do(outbrain, *flags)
    assert do(outbrain, *flags, "--overwrite") == 0
    with pytest.raises(UserError, match="is the folder of the raw files; choose another one"):
        do(outbrain, "--src", folder, "--dst", folder)
    (tmp_path / "out2").mkdir()
    folder.rename(tmp_path / "out2/train")
    with pytest.raises(UserError, match=r"lies in .*train, which the dataset will replace"):
        do(outbrain, "--src", tmp_path / "out2/train", "--dst", tmp_path / "out2")
    assert (tmp_path / "out2/train/events.csv").exists()


def test_planted_signal_that_is_damaged_or_of_other_files(tmp_path, capsys):
    folder = raw(tmp_path)
    (folder / "planted_signal.json").write_text("{}")
    (folder / "planted_signal.parquet").write_text("nothing")
    assert "planted_signal.parquet: not a file of dataloading.generate_outbrain" in fails(tmp_path)
    (folder / "planted_signal.json").write_text('{"displays": 9, "rows": 9, "seed": 0, "signal": 1.0}')
    pl.DataFrame({"display_id": [99], "expected_ap": [0.5], "reached_ap": [0.5]}).write_parquet(folder / "planted_signal.parquet")
    assert "bayes_map_at_12" not in preprocessed(folder).metadata
    assert "planted_signal.parquet: has 0 of the " in capsys.readouterr().err


# Runs that are ended ---------------------------------------------------------------------------------------------------


def long_raw(folder: Path, clicks: int) -> Path:
    found = raw(folder)
    lines = "".join(f"{1 + i % 3},{7 + 2 * (i % 2)},{i % 2}\n" for i in range(clicks))
    (found / "clicks_train.csv").write_text(f"display_id,ad_id,clicked\n{lines}")
    return found


def test_stopped_run_leaves_no_files_and_those_of_a_killed_run_are_removed(tmp_path, capsys):
    flags = [*map(str, ("--src", long_raw(tmp_path, 240_000), "--dst", tmp_path / "out", "--block_bytes", 200))]
    staged = lambda: found(tmp_path, "out/.staging-*/*.arrow")  # noqa: E731
    with child([sys.executable, "-m", "preproc.outbrain", *flags]) as process:
        wait_for(staged, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (143, "preproc.outbrain: stopped by SIGTERM")
    assert "Traceback" not in err and not (tmp_path / "out").exists()
    with child([sys.executable, "-m", "preproc.outbrain", *flags]) as process:
        wait_for(staged, process)
        process.kill()
        process.wait()
    (left,) = (tmp_path / "out").iterdir()
    preprocessed(raw(tmp_path / "other"))
    do(outbrain, "--src", tmp_path / "other/raw", "--dst", tmp_path / "out")
    assert f"{left}: left by a run that was killed; removed\n" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["feature_spec.yaml", "test", "train", "vocabulary"]


@pytest.mark.parametrize("blocks", [2, 60])
def test_file_size_limit_is_a_one_line_error_with_the_path(tmp_path, blocks):
    flags = ("--src", long_raw(tmp_path, 8000), "--dst", tmp_path / "out")
    result = run_limited(f"ulimit -f {blocks}", "-m", "preproc.outbrain", *flags)
    assert result.returncode == 1
    assert re.fullmatch(rf"preproc.outbrain: error: {tmp_path}/out/\.\S+: File too large", result.stderr.splitlines()[-1])
    assert not (tmp_path / "out").exists()


def test_help_loads_no_tensorflow():
    assert "--table_sizes" in help_of("preproc.outbrain")
