"""Columns beyond one id per sample and one table per feature: lists of ids, pooling, shared tables, widths, a group, dtypes of numericals."""

import copy
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dataloading import transcribe
from dataloading.contract import bytes_per_sample, spec_faults
from dataloading.feature_spec import Categorical, FeatureSpec, FeatureSpecError, generator_spec
from dataloading.fingerprint import digest
from tests.helpers.commands import do
from tests.helpers.errors import refused
from utils.errors import UserError

BASE = generator_spec([10, 10, 200], 2, 1.1).as_tf_raw(("train", "test"), metadata={}).to_dict()


def spec_of(group=None, numerical=None, **features) -> FeatureSpec:
    """Return the base specification with keys added to some features, by name."""
    content = copy.deepcopy(BASE)
    for name, keys in features.items():
        content["feature_spec"][name] |= keys
    if group is not None:
        content["feature_spec"]["g"], content["channel_spec"]["group"] = {"dtype": group}, ["g"]
    if numerical is not None:
        content["feature_spec"] |= {name: {"dtype": numerical} for name in ("num_0", "num_1")}
    return FeatureSpec.from_dict(content)


def test_hotness_pooling_tables_and_group_are_parsed():
    shared, own, lists = spec_of(
        cat_0={"table": "both", "embedding_dim": 8}, cat_1={"table": "both"}, cat_2={"hotness": 3, "pooling": "mean"}
    ).categorical
    assert (shared.table_name, own.table_name, lists.table_name) == ("both", "both", "cat_2")
    assert (shared.embedding_dim, own.embedding_dim, lists.embedding_dim) == (8, None, None)
    assert [(one.hotness, one.pooling) for one in (shared, own, lists)] == [(1, "sum"), (1, "sum"), (3, "mean")]
    spec = spec_of(cat_0={"table": "both"}, cat_1={"table": "both", "embedding_dim": 8}, cat_2={"hotness": 3})
    assert spec.embedding_dims == {"both": 8, "cat_2": None} and spec.hotness == (1, 1, 3)
    assert spec_of(cat_1={"table": "cat_0"}).categorical[1].table_name == "cat_0"
    assert spec_of(group="int64").group == "g" and spec_of().group is None


@given(
    st.lists(st.integers(1, 100), min_size=3, max_size=3),
    st.sampled_from([None, "cat_0", "t"]),
    st.none() | st.integers(1, 500),
    st.sampled_from([None, "int32", "int64"]),
    st.sampled_from(["float16", "float32"]),
    st.booleans(),
)
def test_yaml_and_tf_raw_keep_every_field(hotness, table, dim, group, numerical, mean):
    features = {f"cat_{i}": {"hotness": h} | ({"pooling": "mean"} if mean and h > 1 else {}) for i, h in enumerate(hotness)}
    features["cat_1"] |= {"table": table, "embedding_dim": dim}
    spec = spec_of(group, numerical, **features)
    assert FeatureSpec.from_dict(yaml.safe_load(spec.to_yaml())) == spec
    stored = spec.as_tf_raw(("train", "test"))
    assert stored.categorical == spec.categorical and stored.group == spec.group and stored.numerical_dtype == numerical
    assert not spec_faults(stored)
    assert bytes_per_sample(stored) == {"num_0": 2 * (2 if numerical == "float16" else 4), "label": 1} | {
        f"cat_{i}": h * (2 if i == 2 else 1) for i, h in enumerate(hotness)
    } | ({} if group is None else {"g": 4 if group == "int32" else 8})
    assert (stored.sources["train"][-1].files == ("train/group.bin",)) == (group is not None)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"cat_0": {"hotness": 65_537}}, "feature_spec.cat_0: hotness: expected a number from 1 to 65536, found int '65537'"),
        ({"cat_0": {"hotness": 2.0}}, "feature_spec.cat_0: hotness: expected"),
        ({"cat_0": {"pooling": "mean"}}, "feature_spec.cat_0: pooling: mean has no effect with one id per sample; remove it, or set hotness"),
        ({"cat_0": {"hotness": 2, "pooling": "max"}}, "feature_spec.cat_0: pooling: expected sum or mean, found str 'max'"),
        ({"cat_0": {"hotness": 2, "pooling": ["sum"]}}, "feature_spec.cat_0: pooling: expected sum or mean"),
        ({"cat_0": {"embedding_dim": 0}}, "feature_spec.cat_0: embedding_dim: expected a number of at least 1, found int '0'"),
        ({"cat_0": {"table": 3}}, "feature_spec.cat_0: table: expected a name of one line, found int '3'"),
        ({"cat_0": {"table": ""}}, "feature_spec.cat_0: table: expected a name"),
        ({"cat_2": {"table": "cat_0"}}, "feature cat_2: cardinality 200, and feature cat_0 of the same table cat_0 has 10"),
        (
            {"cat_0": {"table": "t", "embedding_dim": 4}, "cat_1": {"table": "t", "embedding_dim": 8}},
            "feature cat_1: embedding_dim 8, and feature cat_0",
        ),
        ({"cat_0": {"table": "t"}, "cat_1": {"table": "cat_0"}}, "feature cat_1: table cat_0 has the name of a feature whose table is t"),
        ({"num_0": {"hotness": 3}}, "feature_spec.num_0: key 'hotness' is not known"),
    ],
)
def test_invalid_feature_entry_is_one_line_error(features, message):
    with refused(message, FeatureSpecError):
        spec_of(**features)


def test_second_group_and_group_in_two_channels_are_rejected():
    content = spec_of(group="int64").to_dict()
    content["channel_spec"]["group"] = ["g", "h"]
    content["feature_spec"]["h"] = {"dtype": "int64"}
    with pytest.raises(FeatureSpecError, match=r"channel_spec\.group lists 2 features, expected at most one"):
        FeatureSpec.from_dict(content)
    content = copy.deepcopy(BASE)
    content["channel_spec"]["group"] = ["cat_0"]
    with pytest.raises(FeatureSpecError, match="lists feature cat_0 more than once"):
        FeatureSpec.from_dict(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"group": "int16"}, "feature g: dtype is int16, the group must be int32 or int64"),
        ({"numerical": "float64"}, "feature num_0: dtype is float64, numerical features must be all float16 or all float32"),
        ({"num_1": {"dtype": "float32"}}, "feature num_1: dtype is float32, numerical features must be all"),
    ],
)
def test_unsupported_dtype_is_a_fault_and_is_not_written(content, message):
    spec = spec_of(**content)
    assert any(fault.startswith(message) for fault in spec_faults(spec))
    with pytest.raises(FeatureSpecError, match=message):
        spec.as_tf_raw(("train",))


def test_group_needs_a_chunk_in_every_split_and_an_unused_file_name():
    stored = spec_of(group="int32").as_tf_raw(("train", "test"))
    sources = dict(stored.sources)
    sources["test"] = sources["test"][:-1]
    assert spec_faults(replace(stored, sources=sources)) == ["source_spec.test: feature g is in 0 chunks, expected exactly one"]
    taken = replace(stored, categorical=(*stored.categorical, Categorical("group", 3, "int8")))
    with pytest.raises(FeatureSpecError, match=r"feature group would be written to group\.bin, which another feature needs"):
        taken.as_tf_raw(("train",))
    assert replace(taken, group=None).as_tf_raw(("train",))


def test_fingerprint_covers_newer_keys_and_is_unchanged_without_them():
    assert digest(generator_spec([10, 200], 2, 1.1), ("train", 5)) == "a725c9468f66672300e807f69f00bb1d"  # computed before these keys existed
    others = [{}, {"group": "int32"}, {"group": "int64"}, {"numerical": "float32"}]
    others += [{"cat_0": keys} for keys in ({"hotness": 3}, {"hotness": 3, "pooling": "mean"}, {"table": "cat_1"}, {"embedding_dim": 8})]
    assert len({digest(spec_of(**other), ("train", 5)) for other in others}) == len(others)


def test_hotness_above_cardinality_is_rejected_for_synthetic_data(tmp_path):
    with pytest.raises(FeatureSpecError, match="feature cat_1: hotness 4 is above its cardinality 3"):
        generator_spec([10, 3], 1, 1.1, hotness=(2, 4))
    with pytest.raises(FeatureSpecError, match="3 hotnesses for 2 features; expected one number for all, or one for each"):
        generator_spec([10, 3], 1, 1.1, hotness=(1, 1, 1))
    content = generator_spec([10, 3], 1, 1.1).to_dict()
    content["feature_spec"]["cat_1"]["hotness"] = 4
    (tmp_path / "feature_spec.yaml").write_text(yaml.safe_dump(content))
    flags = ["--src_dataset_type", "synthetic", "--src_dataset_path", str(tmp_path), "--dst_dataset_path", str(tmp_path / "d")]
    with pytest.raises(UserError, match="hotness 4 is above its cardinality 3"):
        do(transcribe, *flags, "--max_batches_train", "1", "--train_only")
    assert not (tmp_path / "d").exists()
    stored = FeatureSpec.from_dict(
        content | {"source_spec": {}}
    )  # lists of a stored dataset may hold an id twice, so hotness may exceed the cardinality
    assert not [fault for fault in spec_faults(stored, ()) if "cat_1" in fault and "hotness" in fault]
