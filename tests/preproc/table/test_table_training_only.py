"""preproc.table --training_only: the raw value that scores take becomes the id or number of the feature's own recipe."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import yaml

from dataloading.features import DatasetError
from preproc.table import command as table
from run.raw_inputs import TableInputs
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml
from tests.helpers.folders import tree, write
from tests.preproc.table.tables import Made, make
from training.features import ModelFeatures
from utils.errors import UserError

TRAIN = "y,position,device,height,day,item,tags\n" + "".join(
    f"{i % 3 % 2},{1 + i % 3 * (i % 2)},{'phone' if i % 5 else 'tv'},{i}.5,2024-01-0{1 + i % 7},i{i % 4},a|b\n" for i in range(40)
)
FLAGS = ("--label", "y", "--categorical", "position,device,item", "--lists", "tags")
ONLY = (*FLAGS, "--training_only", "position=1,device=tv,height=3.5")


def served(made: Made) -> dict[str, int | float]:
    return {one.name: one.serve for one in made.spec.categorical if one.serve is not None} | dict(made.spec.serve)


def inputs_of(made: Made) -> TableInputs:
    """Return the encoder of raw values of a model that was trained on a dataset, as its checkpoint has it."""
    features = made.spec.categorical
    checkpoint = SimpleNamespace(folder=made.folder, manifest={name: made.metadata[name] for name in ("transforms", "vocabularies")})
    rows = {one.name: one.cardinality for one in features}
    particulars = {one.name: {"hotness": one.hotness} for one in features}
    return TableInputs(checkpoint, ModelFeatures(rows, made.spec.numerical, particulars, made.spec.numerical_dtype, served(made)))


def test_a_value_becomes_an_id_or_a_number_by_the_recipe(tmp_path, capsys):
    made = make(tmp_path, TRAIN, TRAIN, *ONLY)
    assert capsys.readouterr().err == ""
    assert made.values("device") == ["phone", "tv"] and made.values("position") == ["1", "2", "3"]
    recipe = made.metadata["transforms"]["height"]
    assert served(made) == {"position": 1, "device": 2, "height": float(np.float32((3.5 - recipe["mean"]) / recipe["std"]))}
    assert recipe["training_only"] == "3.5"
    entries = read_yaml(made.folder / "columns.yaml")["features"]
    assert entries["device"] == {"kind": "categorical", "training_only": "tv"} and "training_only" not in entries["item"]


def test_files_ids_and_vocabularies_are_those_without_the_flag(tmp_path):
    only, plain = (tree(make(tmp_path, TRAIN, TRAIN, *flags, dst=name).folder) for name, flags in (("a", ONLY), ("b", FLAGS)))
    assert {*only} == {*plain}
    assert {name for name in plain if only[name] != plain[name]} == {"feature_spec.yaml", "columns.yaml"}


KINDS = {
    "vocabulary": ({"kind": "categorical", "column": "position"}, 1, 1),
    "one value, one text": ({"kind": "categorical", "column": "position"}, 3.0, 3),
    "text of a number": ({"kind": "categorical", "column": "position"}, "03", 3),
    "hash": ({"kind": "categorical", "column": "device", "hash_buckets": 7}, "never seen", None),
    "buckets": ({"kind": "numerical", "column": "height", "buckets": 4}, 39, 4),
    "log1p": ({"kind": "numerical", "column": "height", "transform": "log1p"}, 1, float(np.float32(np.log(2)))),
    "clipped": ({"kind": "numerical", "column": "height", "transform": "none", "clip": [0, 10]}, 11, 10.0),
    "text for a number": ({"kind": "numerical", "column": "height", "transform": "none"}, " 2.5 ", 2.5),
    "weekday": ({"kind": "time", "column": "day", "part": "weekday"}, "2024-01-09", None),
    "days": ({"kind": "time", "column": "day", "part": "days_since", "since": "2024-01-01", "transform": "none"}, "2024-01-03", 2.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_what_a_row_with_this_value_has(tmp_path, kind):
    """The value that is served is the one that `preproc.table` writes for a row in which the column holds it."""
    entry, value, expected = KINDS[kind]
    config = {"label": "y", "features": {"f": entry | {"training_only": value}, "item": "categorical"}}
    row = (
        TRAIN.splitlines()[0]
        + "\n"
        + ",".join({"y": "1", "item": "i0", entry["column"]: str(value)}.get(name, "") for name in TRAIN.split("\n")[0].split(","))
    )
    made = make(tmp_path, TRAIN, row + "\n", config=config)
    assert served(made) == {"f": made["test"]["f"][0]}
    assert expected is None or served(made) == {"f": expected}
    again = make(tmp_path, TRAIN, row + "\n", "--config", made.folder / "columns.yaml", dst="again")
    assert served(again) == served(made) and type(again.metadata["transforms"]["f"]["training_only"]) is type(value)


FAULTS = {
    "unknown": ({}, "position=9", "feature position: .* is '9', which its vocabulary lacks, .*such as '1', '2', '3'"),
    "a word for a number": ({}, "height=high", "feature height: .* is 'high', expected a finite number"),
    "no number": ({}, "height=NaN", "feature height: .* is 'NaN', which stands for a missing value; expected a finite number"),
    "infinite": ({}, "height=inf", "feature height: .* is 'inf', expected a finite number"),
    "out of range": ({"--numerical_transform": "none"}, "height=1e300", "feature height: .* is '1e300', which is out of range for float32"),
    "no such column": ({}, "place=1", "--training_only place=1: column place: no such column"),
    "the label": ({}, "y=1", "--training_only y=1: y is the label; expected the column of a feature"),
    "the weight": ({"--weight": "height"}, "height=1", "--training_only height=1: height is the weight"),
    "the group": ({"--group": "day"}, "day=1", "--training_only day=1: day is the group"),
    "ignored": ({"--ignore": "day"}, "day=1", "--training_only day=1: day is left out"),
    "a list": ({}, "tags=a", "--training_only tags=a: tags is a list; expected a feature of one value a sample"),
    "of time": ({}, "day=yesterday", "feature day_hour: .* is 'yesterday', expected a time"),
    "an hour that no row has": ({}, "day=2024-01-01 05:00:00", "feature day_hour: .* lacks, .*such as '0'"),
    "rare": ({"--frequency_threshold": "9"}, "device=tv", "feature device: .* is 'tv', which its vocabulary lacks"),
    "no value": ({}, "position=", "expected COLUMN=VALUE, such as position=1"),
    "no column": ({}, "=1", "expected COLUMN=VALUE"),
    "twice": ({}, "position=1,position=2", "expected COLUMN=VALUE"),
    "a comma": ({}, "device=a,b", "a value with a comma, or with blanks at its ends, stands in columns.yaml"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_value_that_cannot_be_is_one_line(tmp_path, fault):
    flags, only, message = FAULTS[fault]
    with pytest.raises(UserError, match=message) as error:
        make(tmp_path, TRAIN, TRAIN, *FLAGS, *(word for pair in flags.items() for word in pair), "--training_only", only)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


ENTRIES = {
    "a list": (
        {"kind": "list", "column": "tags", "training_only": "a"},
        "training_only: expected a feature of one value a sample, this one is a list",
    ),
    "a cross": ({"kind": "cross", "columns": ["device", "day"], "training_only": "a"}, "this one is a cross; remove it"),
    "a mapping": (
        {"kind": "categorical", "column": "device", "training_only": {"serve": 1}},
        "training_only is {'serve': 1}, expected a value as it",
    ),
    "empty": ({"kind": "categorical", "column": "device", "training_only": ""}, "training_only is '', expected a value as it stands in the column"),
    "not finite": ({"kind": "numerical", "column": "height", "training_only": float("inf")}, "training_only is inf, expected a value"),
    "too large": ({"kind": "categorical", "column": "position", "training_only": 2**63}, "training_only is 9223372036854775808, expected"),
    "a number for texts": ({"kind": "categorical", "column": "device", "training_only": 7}, "'7' is from a column of whole numbers, expected texts"),
    "read by a cross": (
        {"kind": "cross", "columns": ["item", "device"]},
        "feature f: reads column device, as feature g does, .*: remove one of them",
    ),
    "read twice": ({"kind": "categorical", "column": "device", "hash_buckets": 9}, "feature f: reads column device.*: give both training_only"),
}


@pytest.mark.parametrize("fault", ENTRIES)
def test_an_entry_that_cannot_be_is_one_line(tmp_path, fault):
    entry, message = ENTRIES[fault]
    others = {"g": {"kind": "categorical", "column": "device", "training_only": "tv"}} if fault.startswith("read") else {}
    with pytest.raises(DatasetError, match=message):
        make(tmp_path, TRAIN, TRAIN, config={"label": "y", "features": {"f": entry, "item": "categorical"} | others})


def test_the_config_states_values_and_the_flag_is_refused_beside_it(tmp_path):
    config = {"label": "y", "features": {"position": {"kind": "categorical", "training_only": 1}}}
    assert served(make(tmp_path, TRAIN, TRAIN, config=config)) == {"position": 1}
    with pytest.raises(UserError, match="--training_only and --config: --config already sets the use of each column"):
        make(tmp_path, TRAIN, TRAIN, "--training_only", "position=1", config=config, dst="other")


# Later rows --------------------------------------------------------------------------------------------------------------


def later(folder, old: Made, *flags, dst="later") -> Made:
    """Make a dataset by the vocabularies and transforms of an older one."""
    assert do(table, "--vocabulary", old.folder, "--dst", folder / dst, *flags) == 0
    return Made(folder / dst)


def test_a_later_dataset_keeps_the_values(tmp_path, capsys):
    old, more = make(tmp_path, TRAIN, TRAIN, *ONLY), write(tmp_path / "more.csv", TRAIN.replace("tv", "watch").replace("i0", "i9"))
    extended = later(tmp_path, old, "--train", more, "--test", more, "--extend_vocabulary", dst="extended")
    assert served(extended) == served(old) and extended.values("device") == ["phone", "tv", "watch"]
    again = later(tmp_path, extended, "--test", more, dst="again")
    assert served(again) == served(old)
    assert again.metadata["transforms"] == extended.metadata["transforms"]
    assert "scores take" not in capsys.readouterr().err


def test_the_specification_counts_where_a_user_has_edited_it(tmp_path, capsys):
    old = make(tmp_path, TRAIN, TRAIN, *ONLY)
    path = old.folder / "feature_spec.yaml"
    spec = read_yaml(path)
    spec["feature_spec"]["device"]["training_only"]["serve"] = 1
    spec["feature_spec"]["item"]["training_only"] = {"serve": 3}
    del spec["feature_spec"]["position"]["training_only"]
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    made = later(tmp_path, old, "--test", tmp_path / "out-test.csv")
    assert served(made) == {"device": 1, "item": 3, "height": old.spec.serve["height"]}
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "feature device: scores take 1, as" in said and "not 2, which 'tv' in its metadata would give" in said
    assert "training_only" not in made.metadata["transforms"]["position"]


FORMS = {
    "csv": lambda rows, path: rows.write_csv(path),
    "parquet": lambda rows, path: rows.write_parquet(path),
    "arrow": lambda rows, path: rows.write_ipc(path),
    "json": lambda rows, path: path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_dicts())),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_to_predict_may_lack_the_column(tmp_path, form):
    old = make(tmp_path, TRAIN, TRAIN, *ONLY)
    rows = pl.read_csv(tmp_path / "out-test.csv").drop("y")
    FORMS[form](rows.drop("position", "height"), tmp_path / "some")
    FORMS[form](rows, tmp_path / "all")
    found = later(tmp_path, old, "--mode", "encode", "--data", tmp_path / "some", tmp_path / "all")
    assert served(found) == served(old)
    new, labelled = found["new"], old["test"]
    for name in ("position", "device", "height", "item", "day_hour"):
        assert new[name][40:] == labelled[name]
    assert new["position"][:40] == [0] * 40 and new["height"][:40] == [0.0] * 40 and new["device"][:40] == labelled["device"]
    FORMS[form](rows.drop("item"), tmp_path / "less")
    with pytest.raises(DatasetError, match="less: has no column item"):
        later(tmp_path, old, "--mode", "encode", "--data", tmp_path / "less", dst="less-out")
    FORMS[form](rows.drop("position"), tmp_path / "kept")
    with pytest.raises(DatasetError, match="kept: has no column position"):
        later(tmp_path, old, "--mode", "encode", "--data", tmp_path / "kept", "--keep", "position", dst="kept-out")


def test_rows_to_predict_may_lack_a_column_of_a_side_table(tmp_path):
    shelves = write(tmp_path / "shelves.csv", "item,shelf\n" + "".join(f"i{i},{i % 3}\n" for i in range(4)))
    flags = ("--label", "y", "--categorical", "item,shelf", "--ignore", "day,tags,height,position,device", "--join", f"{shelves}:item")
    old = make(tmp_path, TRAIN, TRAIN, *flags, "--training_only", "shelf=2")
    rows = write(tmp_path / "rows.csv", "item\ni1\ni2\n")
    found = later(tmp_path, old, "--mode", "encode", "--data", rows)
    assert served(found) == served(old) and found["new"]["shelf"] == [0, 0]
    with pytest.raises(DatasetError, match=r"was made with --join .*, which added column shelf; give the same flag here"):
        later(tmp_path, old, "--test", tmp_path / "out-test.csv", dst="labelled")


def test_rows_with_a_label_need_the_column(tmp_path):
    old = make(tmp_path, TRAIN, TRAIN, *ONLY)
    pl.read_csv(tmp_path / "out-test.csv").drop("position").write_csv(tmp_path / "less.csv")
    with pytest.raises(DatasetError, match=r"less\.csv: has no column position"):
        later(tmp_path, old, "--test", tmp_path / "less.csv")


# Raw values in memory -----------------------------------------------------------------------------------------------------


def test_raw_values_give_what_is_served_with_and_without_the_columns(tmp_path):
    made = make(tmp_path, TRAIN, TRAIN, *ONLY)
    inputs, rows = inputs_of(made), pl.read_csv(tmp_path / "out-test.csv").drop("y")
    assert inputs.optional == {"position", "device", "height"} and inputs.columns == ("day", "item", "tags")
    assert set(inputs.kinds) == set(inputs.columns) and set(inputs.vocabularies) == {"day_hour", "day_weekday", "item", "tags"}
    numbers, ids = inputs.encoded(rows.drop(inputs.optional).to_dict(as_series=False))
    test, names = made["test"], [one.name for one in made.spec.categorical]
    for name, found in zip(names, ids, strict=True):
        assert found.tolist() == ([served(made)[name]] * 40 if name in served(made) else test[name]) and found.dtype == np.int32
    assert numbers.tolist() == [[served(made)["height"]]] * 40 and numbers.dtype == np.float32
    odd = {"position": [object()] * 40, "device": [None, 3] * 20, "height": ["high"] * 40}
    for more in (rows.select(inputs.optional).to_dict(as_series=False), odd):
        numbers_too, ids_too = inputs.encoded(rows.drop(inputs.optional).to_dict(as_series=False) | more)
        assert np.array_equal(numbers, numbers_too) and all(map(np.array_equal, ids, ids_too))
    assert set(inputs.unknown.taken()) == {"day_hour", "day_weekday", "item", "tags"}


def test_the_number_of_samples_must_be_one(tmp_path):
    made = make(tmp_path, TRAIN, TRAIN, *ONLY)
    inputs, rows = inputs_of(made), {name: [""] for name in ("day", "item", "tags")}
    with pytest.raises(ValueError, match=r"column height: has shape \[2\], expected \[1\] as day has"):
        inputs.encoded(rows | {"height": [1, 2]})
    with pytest.raises(ValueError, match=r"column height: has shape \[\], expected \[1\] as day has"):
        inputs.encoded(rows | {"height": 3})
    assert inputs.encoded({name: [] for name in rows})[0].shape == (0, 1)


def test_a_model_whose_features_are_all_for_training_only(tmp_path):
    config = {"label": "y", "features": {"position": {"kind": "categorical", "training_only": 3}}}
    inputs = inputs_of(make(tmp_path, TRAIN, TRAIN, config=config))
    assert inputs.columns == () and [found.tolist() for found in inputs.encoded({"position": ["?", "?"]})[1]] == [[3, 3]]
    with pytest.raises(ValueError, match="no column is given; expected at least one"):
        inputs.encoded({})
