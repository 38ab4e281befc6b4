"""preproc.outbrain --format: TFRecords of the same rows as the tf_raw dataset; a failed run leaves no files."""

import numpy as np
import pytest

from dataloading import generate_outbrain
from dataloading.features import DatasetError
from dataloading.tfrecord.spec import OUTBRAIN_TABLES, outbrain_spec, pattern_spec, tfrecord_spec, unread_features
from dataloading.tfrecord.split import TfRecordSplit
from preproc.outbrain import command as outbrain
from preproc.outbrain.features import read_sizes, spec_of
from preproc.outbrain.tfrecords import write_tfrecords
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.preproc.outbrain.outbrain_raw import columns


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outbrain")
    assert do(generate_outbrain, "--displays", "1500", "--dst", folder / "raw") == 0
    assert do(outbrain, "--src", folder / "raw", "--dst", folder / "both", "--format", "both", "--num_files", "2") == 0
    return folder


def records(folder, split):
    found = TfRecordSplit(tfrecord_spec(folder, "feature_spec.yaml"), split)
    n = found.num_samples
    rows = {feature.name: found.read_ids(i, 0, n) for i, feature in enumerate(found.spec.categorical)}
    rows |= dict(zip(found.spec.numerical, found.read_numerical(0, n).T, strict=True))
    return {name: values.tolist() for name, values in (rows | {"label": found.read_labels(0, n), "display_id": found.read_group(0, n)}).items()}


def test_both_formats_hold_the_same_rows(raw):
    spec = spec_in(raw / "both")
    for split in ("train", "test"):
        assert records(raw / "both/tfrecords", split) == columns(spec, split)
    found = tfrecord_spec(raw / "both/tfrecords", "feature_spec.yaml")
    assert found.metadata == spec.metadata and len(found.sources["train"][0].files) == 2
    for path in (raw / "both/vocabulary").iterdir():
        assert (raw / "both/tfrecords/vocabulary" / path.name).read_bytes() == path.read_bytes()


def test_tfrecords_alone_are_the_same_bytes(raw, capsys):
    assert do(outbrain, "--src", raw / "raw", "--dst", raw / "alone", "--format", "tfrecord", "--num_files", "2") == 0
    assert "alone: TFRecords, 2 files of train rows, 1 files of test rows" in capsys.readouterr().out
    names = sorted(str(path.relative_to(raw / "alone")) for path in (raw / "alone").rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(raw / "both/tfrecords")) for path in (raw / "both/tfrecords").rglob("*") if path.is_file())
    for name in names:
        assert (raw / "alone" / name).read_bytes() == (raw / "both/tfrecords" / name).read_bytes(), name


def test_tfrecords_without_a_specification_are_read_as_nvidias(raw):
    """The published names and tables are the ones that preproc.outbrain writes."""
    assert outbrain_spec() == spec_of(read_sizes(OUTBRAIN_TABLES), 2**31)
    spec = pattern_spec({"train": [f"{raw}/both/tfrecords/train/part*"]}, None)
    assert unread_features(spec) == ()
    labels = TfRecordSplit(spec, "train").read_labels(0, 100)
    np.testing.assert_array_equal(labels, columns(spec_in(raw / "both"), "train")["label"][:100])


@pytest.mark.parametrize("form", ["tfrecord", "both"])
def test_existing_files_are_refused_before_any_work(raw, tmp_path, form):
    folder = tmp_path / "out" / ("eval" if form == "tfrecord" else "tfrecords/train")
    folder.mkdir(parents=True)
    (folder / "part-r-00000").write_text("mine")
    with pytest.raises(DatasetError, match=f"{folder} exists and would be replaced"):
        do(outbrain, "--src", raw / "raw", "--dst", tmp_path / "out", "--format", form)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["part-r-00000"]


def test_failed_run_leaves_no_files(raw, tmp_path):
    with pytest.raises(DatasetError, match=r"has no promoted_content\.csv"):
        do(outbrain, "--src", tmp_path, "--dst", tmp_path / "out", "--format", "tfrecord")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatasetError, match="0 files of TFRecords, expected at least 1"):
        write_tfrecords(raw / "both", tmp_path / "out", 0)
    assert list(tmp_path.iterdir()) == []


def test_flag_without_effect_gives_a_warning(raw, tmp_path, capsys):
    do(outbrain, "--src", raw / "raw", "--dst", tmp_path / "raw", "--num_files", "3")
    assert "--num_files has no effect with --format tf_raw" in capsys.readouterr().err
    do(outbrain, "--src", raw / "raw", "--dst", tmp_path / "raw", "--format", "both", "--overwrite")
    assert "TFRecords of the replaced dataset" not in capsys.readouterr().err
    do(outbrain, "--src", raw / "raw", "--dst", tmp_path / "raw", "--overwrite")
    assert "raw/tfrecords: keeps the TFRecords of the replaced dataset; --format" in capsys.readouterr().err
