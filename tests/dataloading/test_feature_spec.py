"""The feature specification: valid ones are unchanged by a round trip, all others raise FeatureSpecError."""

import copy

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dataloading import transcribe
from dataloading.feature_spec import CATEGORICAL_DTYPES, FeatureSpec, FeatureSpecError, file_name, generator_spec, smallest_dtype
from dataloading.generate_feature_spec import VARIANTS, variant_spec
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.errors import refused

BASE = generator_spec([10, 200], 2, 1.1).as_tf_raw(("train", "test"), metadata={"a": 1}).to_dict()


@pytest.mark.parametrize(
    ("cardinality", "dtype"),
    [(1, "int8"), (126, "int8"), (127, "int16"), (32766, "int16"), (32767, "int32"), (2**31 - 2, "int32")],
)
def test_smallest_dtype_is_the_first_with_cardinality_below_its_maximum(cardinality, dtype):
    assert smallest_dtype(cardinality) == dtype


def test_smallest_dtype_rejects_cardinalities_beyond_32_bits():
    with pytest.raises(FeatureSpecError, match="2147483647"):
        smallest_dtype(2**31 - 1)


@given(st.integers(1, 2**31 - 2))
def test_smallest_dtype_is_minimal(cardinality):
    dtype = smallest_dtype(cardinality)
    assert cardinality < np.iinfo(dtype).max
    assert all(cardinality >= np.iinfo(narrower).max for narrower in CATEGORICAL_DTYPES[: CATEGORICAL_DTYPES.index(dtype)])


@given(
    st.lists(st.integers(1, 2**31 - 2), min_size=1, max_size=8),
    st.integers(1, 5),
    st.floats(0, 50),
    st.booleans(),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3),
)
def test_yaml_round_trip(cardinalities, num_numerical, alpha, stored, metadata):
    spec = generator_spec(cardinalities, num_numerical, alpha, metadata)
    if stored:
        spec = spec.as_tf_raw(("train", "test"))
    assert FeatureSpec.from_dict(yaml.safe_load(spec.to_yaml())) == spec


def _without(*path):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


def _with(value, *path):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("feature_spec"), "section feature_spec is missing"),
        (_without("channel_spec"), "section channel_spec is missing"),
        (_with([], "feature_spec"), "feature_spec: expected a mapping"),
        (_without("channel_spec", "label"), "lacks the channel label"),
        (_with("cat_0", "channel_spec", "categorical"), "categorical: expected a list of names"),
        (_with([1], "channel_spec", "categorical"), "categorical: expected a list of names"),
        (_with([], "channel_spec", "categorical"), "categorical is empty"),
        (_with("num_0", "channel_spec", "numerical"), "numerical: expected a list of names"),
        (_with([], "channel_spec", "label"), "lists 0 features"),
        (_with(["label", "num_0"], "channel_spec", "label"), "lists 2 features"),
        (_with(["cat_0", "cat_0"], "channel_spec", "categorical"), "cat_0 more than once"),
        (_with(["nobody"], "channel_spec", "categorical"), "nobody is in channel_spec but not in feature_spec"),
        (_with(None, "feature_spec", "cat_0"), "cat_0: expected a mapping"),
        (_without("feature_spec", "num_0", "dtype"), "num_0: dtype: expected the name of a NumPy type, found nothing"),
        (_with("int33", "feature_spec", "cat_0", "dtype"), "found str 'int33'"),
        (_with("", "feature_spec", "cat_0", "dtype"), "dtype: expected"),
        (_without("feature_spec", "cat_0", "cardinality"), "cardinality: expected a number of at least 1, found nothing"),
        (_with(0, "feature_spec", "cat_0", "cardinality"), "cardinality: expected"),
        (_with(1.5, "feature_spec", "cat_0", "cardinality"), "cardinality: expected"),
        (_with(True, "feature_spec", "cat_0", "cardinality"), "cardinality: expected"),
        (_with(0, "feature_spec", "cat_0", "hotness"), "hotness: expected"),
        (_with(-1, "feature_spec", "cat_0", "alpha"), "alpha: expected"),
        (_with(float("nan"), "feature_spec", "cat_0", "alpha"), "alpha: expected"),
        (_with(10**400, "feature_spec", "cat_0", "alpha"), "alpha: expected"),
        (_with([], "source_spec"), "source_spec: expected a mapping"),
        (_with({}, "source_spec", "train"), "source_spec.train: expected a list of chunks"),
        (_with([1], "source_spec", "train"), r"source_spec.train\[0\]: expected a mapping"),
        (_with(None, "source_spec", "train", 0, "type"), r"source_spec.train\[0\]: type"),
        (_with("x", "source_spec", "train", 0, "features"), r"source_spec.train\[0\].features: expected a list"),
        (_with(None, "source_spec", "train", 0, "files"), r"source_spec.train\[0\].files: expected a list"),
        (_with([1], "metadata"), "metadata: expected a mapping"),
        # unknown keys would otherwise be ignored silently
        (_with("mean", "feature_spec", "cat_0", "combiner"), "feature_spec.cat_0: key 'combiner' is not known, expected one of cardinality, hotness"),
        (_with(3, "feature_spec", "num_0", "hotness"), "feature_spec.num_0: key 'hotness' is not known, expected one of dtype"),
        (_with(["cat_0"], "channel_spec", "heft"), "channel 'heft' is not known, expected one of categorical, numerical, label, group, weight"),
        (_with({"dtype": "int8"}, "feature_spec", "weight"), "feature 'weight' is in feature_spec but in no channel"),
        (_with([], "source_spec", "validation"), "source_spec: split 'validation' is not known, expected one of train, valid, test"),
        (_with("zip", "source_spec", "train", 0, "compression"), r"source_spec.train\[0\]: key 'compression' is not known"),
        (_with({}, "transforms"), "section 'transforms' is not known"),
        (_with(["cat\n0"], "channel_spec", "categorical"), r"categorical: 'cat\\n0' contains a line break"),
        (_with({}, 1), "section '1' is not known"),
        (_with("a\0b", "source_spec", "train", 0, "files", 0), r"source_spec.train\[0\].files: 'a\\x00b' is not a file name"),
        (_with("\ud800", "source_spec", "train", 0, "files", 0), "is not a file name"),
        (_with("", "source_spec", "train", 0, "files", 0), "'' is not a file name"),
    ],
)
def test_parse_error_names_the_place(change, message):
    content = copy.deepcopy(BASE)
    change(content)
    with pytest.raises(FeatureSpecError, match=message):
        FeatureSpec.from_dict(content)


def test_missing_file_and_bad_yaml_are_one_line_errors(tmp_path):
    with pytest.raises(FeatureSpecError, match="no such file"):
        spec_in(tmp_path)
    for text in (
        "a: [",
        "\x00",
        "? {a: 1}\n: 2",
        "[" * 5000,
        "!!timestamp x",
        "!!int ''",
        "!!float ''",
        "!!bool maybe",
        "!!python/object:os.system x",
    ):
        path = tmp_path / "bad.yaml"
        path.write_text(text)
        with refused(str(path), FeatureSpecError):
            FeatureSpec.from_yaml(path)


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["cat_0", "label", "num_0", "int8", "int32", "a", "O", "V", "i4,i4", "float16"])
)
_NAMES = "cat_0 dtype cardinality hotness pooling table embedding_dim alpha train features files type group".split()
_KEYS = st.text(max_size=3) | st.integers(0, 3) | st.sampled_from(_NAMES)
_ANYTHING = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=12)
_PATHS = st.sampled_from(
    [
        ("feature_spec",),
        ("channel_spec",),
        ("source_spec",),
        ("metadata",),
        ("feature_spec", "cat_0"),
        ("feature_spec", "cat_0", "cardinality"),
        ("feature_spec", "cat_0", "alpha"),
        ("feature_spec", "cat_0", "hotness"),
        ("feature_spec", "cat_0", "pooling"),
        ("feature_spec", "cat_0", "table"),
        ("feature_spec", "cat_0", "embedding_dim"),
        ("channel_spec", "group"),
        ("feature_spec", "num_0", "dtype"),
        ("channel_spec", "categorical"),
        ("channel_spec", "label"),
        ("source_spec", "train"),
        ("source_spec", "train", 0),
        ("source_spec", "test", 1, "files"),
    ]
)


@settings(max_examples=300)
@given(_ANYTHING, st.none() | _PATHS)
def test_any_content_parses_or_is_a_feature_spec_error(value, path):
    content = copy.deepcopy(BASE)
    if path is None:
        content = value
    else:
        _with(value, *path)(content)
    try:
        spec = FeatureSpec.from_dict(content)
    except FeatureSpecError:
        return
    spec.to_yaml()


@settings(max_examples=100)
@given(st.binary(max_size=40) | st.text("!?:[]{}&*-|>'\"% \nint<=a0", max_size=20).map(str.encode))
def test_any_bytes_parse_or_are_a_feature_spec_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with pytest.raises(FeatureSpecError):
        FeatureSpec.from_yaml(path)


@pytest.mark.parametrize(("feature", "file"), [("cat_0", "cat_0.bin"), ("cat_0.bin", "cat_0.bin"), ("user", "user.bin")])
def test_file_names(feature, file):
    assert file_name(feature) == file


@pytest.mark.parametrize("feature", ["", "a/b", "../x", ".hidden", "a\0b"])
def test_invalid_file_names_are_rejected(feature):
    with pytest.raises(FeatureSpecError, match="cannot be a file name"):
        file_name(feature)


def test_two_features_may_not_share_a_file():
    content = copy.deepcopy(BASE)
    for name in ("numerical", "label.bin"):
        content["feature_spec"][name] = {"cardinality": 3, "dtype": "int8"}
        content["channel_spec"]["categorical"] = ["cat_0", "cat_1", name]
        with pytest.raises(FeatureSpecError, match="rename it"):
            FeatureSpec.from_dict(content).as_tf_raw(("train",))
        del content["feature_spec"][name]


@pytest.mark.parametrize(
    ("variant", "rows"),
    [("criteo_t15_synthetic", 32_709_138), ("criteo_t3_synthetic", 177_944_291), ("criteo_t0_synthetic", 882_774_575)],
)
def test_variants_hold_the_published_number_of_rows(variant, rows):
    spec = variant_spec(variant)
    assert sum(spec.cardinalities) == rows
    assert len(spec.categorical) == 26 and len(spec.numerical) == 13
    assert {feature.alpha for feature in spec.categorical} == {1.45}
    assert spec.sources is None and spec.dtypes["label"] == "int8"


def test_the_small_variant_is_small():
    assert max(VARIANTS["small_synthetic"]) == 10_000 and len(VARIANTS["small_synthetic"]) == 26


def test_specifications_of_nvidias_tools_load():
    content = copy.deepcopy(BASE)
    for name in ("cat_0", "cat_1"):  # their generator's parameters, which a stored dataset may keep
        content["feature_spec"][name] |= {"hotness": 1, "alpha": 1.45}
    del content["metadata"]
    assert [feature.alpha for feature in FeatureSpec.from_dict(content).categorical] == [1.45, 1.45]


def test_alias_bomb_and_duplicate_key_are_rejected(tmp_path):
    path = tmp_path / "feature_spec.yaml"
    bomb = ["a0: &a0 [x, x]"] + [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9)]
    path.write_text("\n".join([*bomb, "feature_spec: *a9", "channel_spec: *a9"]))
    with pytest.raises(FeatureSpecError, match=f"{path}, line .*more than 1,000,000 values"):
        FeatureSpec.from_yaml(path)
    path.write_text(yaml.safe_dump(BASE) + "metadata: {}\n")
    with pytest.raises(FeatureSpecError, match="'metadata' is given twice"):
        FeatureSpec.from_yaml(path)


def test_a_missing_specification_names_the_flags_of_its_command(tmp_path):
    (tmp_path / "logs.csv").write_text("a,b\n")
    with pytest.raises(FeatureSpecError, match=r"\(path from --dataset_path and --feature_spec\); logs.csv in that folder needs one"):
        spec_in(tmp_path)
    with pytest.raises(FeatureSpecError, match=r"\(path from --src_dataset_path and --src_feature_spec\)"):
        do(transcribe, "--src_dataset_path", tmp_path, "--dst_dataset_path", tmp_path / "d")
