"""The feature specification of NVIDIA's Wide & Deep in its current release: its channels, chunks and widths; errors name the entry."""

import json
import re

import pytest
import yaml

from dataloading import transcribe, validate
from dataloading.features import FeatureSpecError
from dataloading.parquet.spec import parquet_spec, with_usual_widths
from dataloading.sources import read_spec
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.parquet.outbrain_files import MULTI_HOT, NUMERICAL, ONE_HOT, nvidia_spec, write_files, write_raw
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from utils.config.data import DataConfig
from utils.config.per_feature import FeatureConfig


def written(folder, change=lambda spec: None):
    content = nvidia_spec()
    change(content)
    folder.mkdir(exist_ok=True)
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def read(folder, change=lambda spec: None):
    return parquet_spec(written(folder, change), "feature_spec.yaml")


def test_outbrains_29_inputs_have_nvidias_widths(tmp_path):
    """The widths add up to 1,235, as NVIDIA's embedding_sizes.json has them."""
    spec = read(tmp_path)
    assert [one.name for one in spec.categorical] == [*ONE_HOT, *MULTI_HOT] and spec.numerical == NUMERICAL
    assert spec.hotness == (1,) * 13 + (3,) * 3 and spec.cardinalities == (*ONE_HOT.values(), *MULTI_HOT.values())
    assert (spec.label, spec.group, spec.group_dtype, spec.numerical_dtype) == ("clicked", "display_id", "int64", "float32")
    widths = [one.embedding_dim for one in with_usual_widths(spec).categorical]
    assert widths == [128, 128, 19, 128, 128, *[64] * 11] and sum(widths) == 1235
    assert [chunk.files for chunk in spec.sources["train"]] == [tuple(f"{tmp_path}/train/part_{i}.parquet" for i in (0, 1, 10))]
    assert spec.labelled("train") and spec.labelled("test")


def test_dtypes_and_empty_entries_are_read(tmp_path):
    def change(spec):
        entries = spec["feature_spec"]
        entries["ad_id"]["dtype"], entries["topic_id_list"]["dtype"] = "int64", "int32"
        entries["ad_id_ctr"]["dtype"], entries["display_id"] = "float64", {"dtype": "int32"}
        entries["clicked"] = None
        spec["metadata"] = None

    spec = read(tmp_path, change)
    assert (spec.group_dtype, spec.numerical_dtype) == ("int32", "float32")


def test_features_without_a_channel_are_left_out(tmp_path):
    """As when the MAP is disabled, and the map channel is empty."""

    def change(spec):
        spec["channel_spec"]["map"], spec["channel_spec"]["numerical"] = [], []

    spec = read(tmp_path, change)
    assert spec.group is None and spec.numerical == ()


def test_widths_of_other_features_are_not_guessed(tmp_path):
    def change(spec):
        spec["feature_spec"]["other"] = {"cardinality": 5}
        spec["channel_spec"]["onehot_categorical"].append("other")
        for chunks in spec["source_spec"].values():
            chunks[0]["features"].append("other")

    assert {one.embedding_dim for one in with_usual_widths(read(tmp_path, change)).categorical} == {None}
    stated = with_usual_widths(read(tmp_path, lambda spec: spec["feature_spec"]["platform"].update(embedding_dim=7))).embedding_dims
    assert (stated["platform"], stated["ad_id"]) == (7, None)


def edit(path, value):
    """Return a change that sets an entry, or removes it where the value is None."""

    def change(spec):
        *folders, last = path.split("/")
        for name in folders:
            spec = spec[int(name) if name.isdigit() else name]
        if value is None:
            del spec[last]
        else:
            spec[last] = value

    return change


FAULTS = {
    "no channel": (edit("channel_spec/map", None), "channel_spec lacks the channel map"),
    "another channel": (edit("channel_spec/weight", ["a"]), "channel_spec: channel 'weight' is not known, expected one of onehot_categorical"),
    "two labels": (edit("channel_spec/label", ["clicked", "display_id"]), "channel_spec.label lists 2 features, expected exactly one"),
    "no label": (edit("channel_spec/label", []), "channel_spec.label lists 0 features, expected exactly one"),
    "two groups": (edit("channel_spec/map", ["display_id", "clicked"]), "channel_spec.map lists 2 features, expected at most one"),
    "no list of names": (edit("channel_spec/map", "display_id"), "channel_spec.map: expected a list of names, found str 'display_id'"),
    "no entry": (edit("feature_spec/ad_id", None), "feature ad_id is in channel_spec.onehot_categorical but not in feature_spec; add its entry"),
    "no cardinality": (
        edit("feature_spec/ad_id", {}),
        "feature_spec.ad_id: cardinality: expected a whole number from 1 to 2147483648",
    ),
    "text as cardinality": (edit("feature_spec/ad_id", {"cardinality": "5"}), "feature_spec.ad_id: cardinality: expected a whole number"),
    "huge cardinality": (edit("feature_spec/ad_id", {"cardinality": 2**31}), "feature_spec.ad_id: cardinality 2147483648 does not fit int32"),
    "no max_hotness": (
        edit("feature_spec/topic_id_list", {"cardinality": 5}),
        "feature_spec.topic_id_list: max_hotness: expected a whole number",
    ),
    "max_hotness of one id": (edit("feature_spec/ad_id/max_hotness", 3), "feature_spec.ad_id: key 'max_hotness' is not known"),
    "dtype": (
        edit("feature_spec/ad_id/dtype", "float32"),
        "feature_spec.ad_id: dtype: expected int8 or int16 or int32 or int64, found str",
    ),
    "group's dtype": (edit("feature_spec/display_id/dtype", "float32"), "feature_spec.display_id: dtype: expected int32 or int64"),
    "chunk's type": (edit("source_spec/train/0/type", "csv"), "source_spec.train: type is csv, expected parquet"),
    "no files": (edit("source_spec/train/0/files", []), "source_spec.train lists no file"),
    "two chunks": (edit("source_spec/train/1", None), "source_spec.train: 2 chunks, expected one of type parquet with all features"),
    "no sources": (edit("source_spec", {}), "source_spec is empty; expected the mappings train and test"),
    "no source section": (edit("source_spec", None), "section source_spec is missing"),
    "features of a chunk": (
        edit("source_spec/train/0/features", ["clicked"]),
        "source_spec.train: feature ad_id of channel_spec is not in the chunk's",
    ),
    "no group in test": (
        edit("source_spec/test/0/features", [*ONE_HOT, *MULTI_HOT, *NUMERICAL, "clicked"]),
        "source_spec.test: feature display_id of channel_spec is not in the chunk's features; add it",
    ),
    "path outside": (edit("source_spec/train/0/files", ["../a.parquet"]), "'../a.parquet' is outside the dataset"),
    "section": (edit("extra", {}), "section 'extra' is not known"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_bad_specification_is_one_line_error(tmp_path, case):
    change, message = FAULTS[case]

    def with_two_chunks(spec):
        spec["source_spec"]["train"] *= 2

    with pytest.raises(FeatureSpecError) as caught:
        read(tmp_path, with_two_chunks if case == "two chunks" else change)
    assert f"{tmp_path}/feature_spec.yaml: " in str(caught.value) and message in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


def test_missing_specification_and_other_datasets_are_errors(tmp_path):
    with pytest.raises(FeatureSpecError, match="no such file; expected a feature specification"):
        parquet_spec(tmp_path, "feature_spec.yaml")
    write_raw(tmp_path / "raw", write_files(tmp_path / "parquet"))
    with pytest.raises(FeatureSpecError, match="has the channel categorical, so this is no specification of Parquet files; drop --dataset_type"):
        parquet_spec(tmp_path / "raw", "feature_spec.yaml")
    with pytest.raises(FeatureSpecError, match="channels of NVIDIA's Wide & Deep, whose rows are Parquet files; --dataset_type parquet reads"):
        spec_in(tmp_path / "parquet")
    (tmp_path / "feature_spec.yaml").write_text("a: [")
    with pytest.raises(FeatureSpecError, match="not valid YAML"):
        parquet_spec(tmp_path, "feature_spec.yaml")


# --embedding_sizes_file and --combiner ------------------------------------------------------------------------------------


def with_options(folder, **options):
    return read_spec(DataConfig(dataset_path=str(folder), dataset_type="parquet"), FeatureConfig(**options), widths_open=True)


def test_widths_file_and_combiner_overrule_the_specification(tmp_path):
    write_files(tmp_path)
    file = tmp_path / "widths.json"
    file.write_text(json.dumps({name: i + 1 for i, name in enumerate([*ONE_HOT, *MULTI_HOT])} | {"another": 5}))
    spec = with_options(tmp_path, embedding_sizes_file=str(file), combiner="mean")
    assert [one.embedding_dim for one in spec.categorical] == list(range(1, 17))
    assert [one.pooling for one in spec.categorical] == ["sum"] * 13 + ["mean"] * 3
    assert {one.pooling for one in with_options(tmp_path).categorical} == {"sum"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"ad_id": 128}', r"--embedding_sizes_file .*w.json: no width for feature document_id \(and 14 more\) of .*feature_spec.yaml; add it"),
        ('{"ad_id": "128"}', r"--embedding_sizes_file .*w.json: feature ad_id: width '128', expected a whole number of at least 1"),
        ('{"ad_id": 0}', "feature ad_id: width '0', expected a whole number of at least 1"),
        ('{"ad_id": true}', "feature ad_id: width 'True', expected a whole number of at least 1"),
        ("[128]", r"w.json: expected an object of widths by feature"),
        ("{}", r"w.json: expected an object of widths by feature"),
        ("{", r"--embedding_sizes_file .*w.json: .*expected JSON"),
        (None, r"--embedding_sizes_file .*w.json: No such file or directory"),
    ],
)
def test_bad_widths_file_is_one_line_error(tmp_path, content, message):
    written(tmp_path)
    if content is not None:
        (tmp_path / "w.json").write_text(content)
    with pytest.raises(FeatureSpecError, match=message) as caught:
        with_options(tmp_path, embedding_sizes_file=str(tmp_path / "w.json"))
    assert "\n" not in str(caught.value)


# transcribe and validate --------------------------------------------------------------------------------------------------


def transcribed(source, target, *flags):
    return do(transcribe, "--src_dataset_type", "parquet", "--src_dataset_path", source, "--dst_dataset_path", target, *flags)


def test_transcribe_writes_the_same_rows_as_tf_raw(tmp_path, capsys):
    rows = write_files(tmp_path / "parquet")
    raw = write_raw(tmp_path / "raw", rows, {name: 128 for name in ("ad_id", "document_id", "document_id_promo", "campaign_id")})
    assert transcribed(tmp_path / "parquet", tmp_path / "written") == 0
    assert capsys.readouterr().err == ""
    for split in rows:
        assert tree(tmp_path / "written" / split) == tree(tmp_path / "raw" / split)
    found = spec_in(tmp_path / "written")
    assert TfRawSplit(found, "train").num_samples == TfRawSplit(raw, "train").num_samples == 1000
    assert found.embedding_dims["platform"] == 19 and do(validate, "--dataset_path", tmp_path / "written") == 0


def test_transcribe_refuses_its_source_and_leaves_nothing_after_an_error(tmp_path):
    write_files(tmp_path / "parquet", change=lambda frame: frame.with_columns(platform=9))
    before = tree(tmp_path / "parquet")
    with pytest.raises(Exception, match="is source and destination; choose another --dst_dataset_path"):
        transcribed(tmp_path / "parquet", tmp_path / "parquet")
    with pytest.raises(Exception, match=re.escape("part_0.parquet, row 0 of the file: feature platform, row 0: id 9 is not in [0, 4)")):
        transcribed(tmp_path / "parquet", tmp_path / "written")
    assert tree(tmp_path / "parquet") == before and not (tmp_path / "written/feature_spec.yaml").exists()


def test_validate_names_the_commands_for_parquet_files(tmp_path):
    write_files(tmp_path)
    with pytest.raises(FeatureSpecError, match=r"python -m dataloading.transcribe --src_dataset_type parquet turns them into tf_raw"):
        do(validate, "--dataset_path", tmp_path)
