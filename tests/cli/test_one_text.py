"""Tests of rows whose columns have other types than in the training files: the same values get the same scores, or the column is an error.

Datasets prepared before the kinds of values were recorded keep their older rule.
"""

import numpy as np
import pandas
import polars as pl
import pytest
from runs import SMALL, edit_spec

import dlrm
from dataloading.feature_spec import FeatureSpec
from preproc.table import command as table
from run.command import do
from utils.checkpoint.reading import Checkpoint

ROWS = 500
COLUMNS = ("shop", "member", "rate", "day", "zip")


def rows(seed: int) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    shop = pl.Series(draw.integers(1, 40, ROWS)).set(pl.Series(draw.random(ROWS) < 0.1), None)
    return pl.DataFrame(
        {
            "label": draw.integers(0, 2, ROWS),
            "shop": shop,
            "member": pl.Series(draw.random(ROWS) < 0.5),
            "rate": pl.Series(draw.integers(1, 20, ROWS) * 1e-7),
            "day": pl.Series(draw.integers(19000, 19030, ROWS)).cast(pl.Int32).cast(pl.Date),
            "zip": [f"{value:05}" for value in draw.integers(100, 99999, 30)[draw.integers(0, 30, ROWS)]],
        }
    )


def command(*words) -> None:
    table.main([str(word) for word in words])


def train(data, checkpoint, **flags):
    widths = {name.removeprefix("--"): value for name, value in zip(SMALL[::2], SMALL[1::2], strict=True)}
    fixed = {"cpu": True, "batch_size": 64, "valid_batch_size": 64, "optimizer": "adam", "learning_rate": 0.05, "warmup_steps": 0, "log_path": ""}
    dlrm.train(dataset_path=str(data), save_checkpoint_path=str(checkpoint), max_steps=5, **widths, **fixed, **flags)
    return dlrm.load(checkpoint)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepare a dataset from Parquet and the same one from pandas' CSV, and train a model on the first; return the folder."""
    folder = tmp_path_factory.mktemp("text")
    for split, seed in (("train", 0), ("test", 1)):
        frame = rows(seed)
        frame.write_parquet(folder / f"{split}.parquet")
        of_pandas(frame).to_csv(folder / f"{split}.csv", index=False)
    for form in ("parquet", "csv"):
        flags = ("--train", folder / f"train.{form}", "--test", folder / f"test.{form}", "--label", "label", "--categorical", ",".join(COLUMNS))
        command(*flags, "--dst", folder / form)
    train(folder / "parquet", folder / "c")
    return folder


def of_pandas(frame: pl.DataFrame) -> pandas.DataFrame:
    """Return the table as pandas reads it: integers become floats where one is missing, and days become 64-bit times."""
    types = {"shop": "float64", "day": "datetime64[ns]", "zip": "object"}
    return pandas.DataFrame({name: pandas.Series(frame[name].to_list(), dtype=types.get(name)) for name in frame.columns})


def predicted(folder, data, checkpoint):
    flags = ("--mode", "predict", "--cpu", "--dataset_path", data, "--restore_checkpoint_path", checkpoint, "--log_path", "")
    do([str(flag) for flag in (*flags, "--predictions_path", folder / "p.parquet")], "dlrm.py", "")
    return pl.read_parquet(folder / "p.parquet")["score"].to_numpy()


def test_same_rows_in_any_form_score_the_same(folder):
    model, frame = dlrm.load(folder / "c"), pl.read_parquet(folder / "test.parquet").drop("label")
    assert model.raw_columns == {"shop": "integer", "member": "boolean", "rate": "float", "day": "date", "zip": "text"}
    expected = predicted(folder, folder / "parquet", folder / "c")
    assert len(np.unique(expected)) > 300
    forms = {
        "Polars": frame,
        "pandas": of_pandas(frame),
        "objects": frame.to_dict(as_series=False),
        "nullable": of_pandas(frame).astype({"shop": "Int64", "member": "boolean", "zip": "string"}),
        "texts of Python": {name: ["" if value is None else str(value) for value in frame[name].to_list()] for name in COLUMNS},
        "texts of floats": {name: of_pandas(frame)[name].map(lambda value: "" if value != value else str(value)).tolist() for name in COLUMNS},
    }
    for form, samples in forms.items():
        np.testing.assert_array_equal(model.score_raw(samples), expected, err_msg=form)


def test_csv_and_parquet_give_the_same_vocabularies_and_ids(folder):
    made = [FeatureSpec.from_yaml(folder / form / "feature_spec.yaml") for form in ("parquet", "csv")]
    kinds = [{name: entry["values"] for name, entry in spec.metadata["transforms"].items()} for spec in made]
    assert kinds[0] == kinds[1] | {"shop": "integer"} and kinds[1]["shop"] == "float"  # pandas wrote 33.0 for 33
    assert made[0].metadata["vocabularies"] == made[1].metadata["vocabularies"]
    for split in ("train", "test"):
        for name in COLUMNS:
            assert (folder / "parquet" / split / f"{name}.bin").read_bytes() == (folder / "csv" / split / f"{name}.bin").read_bytes()


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("zip", pl.Series(range(ROWS)), r"feature zip, column zip: sample 0: '0' is from a column of whole numbers, expected texts"),
        ("member", pl.Series([1] * ROWS), r"feature member, column member: sample 0: '1' is from a column of whole numbers, expected booleans"),
        ("rate", pl.Series([0.5, 0.1] * (ROWS // 2), dtype=pl.Float32), r"column rate: sample 1: '0.1' is from a column of floats of 32 bits"),
        ("shop", pl.Series([1.0, 2.0**60] * (ROWS // 2)), r"column shop: sample 1: .* a float cannot tell whole numbers of this size apart"),
    ],
)
def test_ambiguous_value_is_an_error_in_python_and_in_preprocessing(folder, tmp_path, column, values, message):
    frame = pl.read_parquet(folder / "test.parquet").with_columns(values.alias(column))
    with pytest.raises(ValueError, match=message):
        dlrm.load(folder / "c").score_raw(frame.drop("label"))
    frame.write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(Exception, match=rf"rows\.parquet, rows from 1: feature {column}, column {column}: "):
        command("--mode", "encode", "--data", tmp_path / "rows.parquet", "--vocabulary", folder / "parquet", "--dst", tmp_path / "new")
    assert not (tmp_path / "new" / "feature_spec.yaml").exists()


def test_null_column_of_any_type_is_missing(folder):
    frame = pl.read_parquet(folder / "test.parquet").drop("label")
    model = dlrm.load(folder / "c")
    expected = model.score_raw(frame.with_columns(zip=pl.lit(None, pl.String)))
    for kind in (pl.Null, pl.Float64, pl.Int8, pl.Boolean, pl.Date):
        np.testing.assert_array_equal(model.score_raw(frame.with_columns(zip=pl.lit(None, kind))), expected)


def test_training_files_of_mixed_kinds_are_rejected(tmp_path):
    for name, values in (("a", [1, 2]), ("b", ["x", "y"])):
        pl.DataFrame({"k": values, "y": [0, 1]}).write_parquet(tmp_path / f"{name}.parquet")
    words = ("--train", tmp_path / "a.parquet", tmp_path / "b.parquet", "--test", tmp_path / "a.parquet", "--label", "y", "--categorical", "k")
    with pytest.raises(Exception, match=r"feature k: column k holds whole numbers and other texts, which are not of one kind"):
        command(*words, "--dst", tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


# Datasets from before kinds of values were recorded -----------------------------------------------------------------------


def without_kinds(spec) -> None:
    for entry in spec["metadata"]["transforms"].values():
        entry.pop("values", None)
        entry.pop("stripped", None)


def test_dataset_without_kinds_keeps_the_older_rule(folder, tmp_path):
    """Without recorded kinds, whole numbers have no point in any type, texts stay as they are, and floats are written as Polars writes them."""
    frame = pl.DataFrame({"label": [0, 1, 0, 1], "k": ["33", "33.0", "True", "a\r\nb"]})
    frame.write_parquet(tmp_path / "train.parquet")
    command("--train", tmp_path / "train.parquet", "--test", tmp_path / "train.parquet", "--label", "label", "--dst", tmp_path / "old")
    vocabulary = pl.read_parquet(tmp_path / "old" / "vocabulary" / "k.parquet")
    texts = pl.Series("value", ["33", "33.0", "True", "a\r\nb"])
    vocabulary.with_columns(texts).write_parquet(tmp_path / "old" / "vocabulary" / "k.parquet")
    edit_spec(tmp_path / "old", without_kinds)
    for dtype, values, expected in [
        (pl.String, ["33.0", "33", "true", "True", "a\nb", "a\r\nb"], [2, 1, 0, 3, 0, 4]),
        (pl.Float64, [33.0, 33.5], [1, 0]),
        (pl.Int8, [33], [1]),
        (pl.Boolean, [True], [0]),
    ]:
        pl.DataFrame({"k": pl.Series(values, dtype=dtype)}).write_parquet(tmp_path / "rows.parquet")
        words = ("--mode", "encode", "--data", tmp_path / "rows.parquet", "--vocabulary", tmp_path / "old", "--dst", tmp_path / "new", "--overwrite")
        command(*words)
        assert np.fromfile(tmp_path / "new" / "new" / "k.bin", np.int8).tolist() == expected
        spec = FeatureSpec.from_yaml(tmp_path / "new" / "feature_spec.yaml")
        assert spec.metadata["transforms"] == {"k": {"kind": "categorical", "column": "k"}}
    model = train(tmp_path / "old", tmp_path / "c", interaction="cat")
    assert "values" not in Checkpoint(tmp_path / "c").manifest["transforms"]["k"] and model.raw_columns == {"k": "text"}
    scores = [model.score_raw({"k": values})[0] for values in ([33], [33.0], ["33"])]
    assert len(set(scores)) == 1 and model.score_raw({"k": ["33.0"]})[0] != scores[0]
    assert model.score_raw({"k": [True]})[0] == model.score_raw({"k": ["never"]})[0]


def test_datasets_with_and_without_kinds_score_the_same(folder, tmp_path, capsys):
    edited = tmp_path / "old"
    command("--test", folder / "test.parquet", "--vocabulary", folder / "parquet", "--dst", edited)
    edit_spec(edited, without_kinds)
    np.testing.assert_array_equal(predicted(tmp_path, edited, folder / "c"), predicted(tmp_path, folder / "parquet", folder / "c"))
    assert "raw values" not in capsys.readouterr().err


def test_an_extended_vocabulary_keeps_the_kinds(folder, tmp_path):
    frame = pl.read_parquet(folder / "test.parquet")
    later = frame.with_columns(pl.col("shop").cast(pl.String) + pl.lit(".0"), member=pl.lit("unknown"))
    later.write_csv(tmp_path / "later.csv")
    words = ("--train", tmp_path / "later.csv", "--test", folder / "test.parquet", "--vocabulary", folder / "parquet", "--extend_vocabulary")
    command(*words, "--dst", tmp_path / "new")
    before, after = (FeatureSpec.from_yaml(data / "feature_spec.yaml").metadata for data in (folder / "parquet", tmp_path / "new"))
    assert after["transforms"] == before["transforms"]
    assert pl.read_parquet(tmp_path / "new/vocabulary/shop.parquet")["value"].equals(
        pl.read_parquet(folder / "parquet/vocabulary/shop.parquet")["value"]
    )
    assert pl.read_parquet(tmp_path / "new/vocabulary/member.parquet")["value"].to_list()[-1] == "unknown"
