"""prepare_synthetic_dataset: NVIDIA's three forms of the command, the rows, and the refused inputs."""

import signal
import sys

import pytest
from numpy.testing import assert_array_equal

from dataloading import prepare_synthetic_dataset, validate
from dataloading.feature_spec import generator_spec
from dataloading.generate_feature_spec import write_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from tests.children import child, found, wait_for
from tests.dataloading.make_data import small_spec
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from utils.errors import UserError

SIZES = ("--synthetic_dataset_table_sizes", "10,200,3000")


def prepared(folder, *flags, **options):
    assert prepare_synthetic_dataset.main(["--synthetic_dataset_dir", str(folder), *map(str, flags)], **options) == 0
    return spec_in(folder)


def rows_of(spec):
    return {split: TfRawSplit(spec, split).num_samples for split in ("train", "test")}


def test_tensorflow_form_writes_whole_batches_of_both_splits(tmp_path, capsys):
    flags = ("--synthetic_dataset_num_entries", 1050, "--synthetic_dataset_batch_size", 100, "--num_numerical_features", 4, "--seed", 7)
    spec = prepared(tmp_path / "d", *flags, *SIZES)
    assert rows_of(spec) == {"train": 1000, "test": 1000}
    assert spec.cardinalities == (10, 200, 3000) and len(spec.numerical) == 4
    assert "train 1,000 rows, test 1,000 rows, 3 tables" in capsys.readouterr().out
    assert do(validate, "--dataset_path", tmp_path / "d") == 0
    source = generator_spec((10, 200, 3000), 4, 0.0)
    for name in ("train", "test"):
        split, drawn = TfRawSplit(spec, name), SyntheticSplit(source, name, 1000, 7)
        assert_array_equal(split.read_labels(0, 1000), drawn.read_labels(0, 1000))
        assert_array_equal(split.read_ids(2, 0, 1000), drawn.read_ids(2, 0, 1000))
        split.close()


def test_defaults_are_nvidias():
    args = prepare_synthetic_dataset.parse_arguments([])
    assert str(args.synthetic_dataset_dir) == "/tmp/dlrm_synthetic_data" and args.seed == 12345
    assert prepare_synthetic_dataset._rows(args, False) == {"train": 33554432, "test": 33554432}
    spec = prepare_synthetic_dataset._spec(args)
    assert spec.cardinalities == (100_000,) * 26 and len(spec.numerical) == 13


def test_pytorch_form_of_2020_takes_all_flags_of_training_and_fills_batches_up(tmp_path, capsys):
    """absl's forms: --flag=value, -flag value, --noflag; the flags of training are named in one warning."""
    flags = (
        "--synthetic_dataset_num_entries=1050",
        "-batch_size",
        100,
        "--test_batch_size=400",
        "--mode",
        "train",
        "--noamp",
        "--shuffle",
        "--lr=24",
    )
    spec = prepared(tmp_path / "d", *flags, "--dataset_type", "synthetic_disk", "-num_numerical_features", 2, *SIZES)
    assert rows_of(spec) == {"train": 1100, "test": 1200}
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "warning: --mode, --lr, --dataset_type, --shuffle, --amp: no effect on the data" in error


def test_pytorch_form_without_a_batch_size_fills_up_where_the_caller_says_so(tmp_path):
    spec = prepared(tmp_path / "d", "--synthetic_dataset_num_entries", 40_000, *SIZES, fill_up=True)
    assert rows_of(spec) == {"train": 65536, "test": 65536}


def test_specification_overrides_the_flags_of_the_features(tmp_path, capsys):
    write_spec(small_spec(), tmp_path / "spec.yaml")
    flags = ("--feature_spec", tmp_path / "spec.yaml", "--num_numerical_features", 1, "--synthetic_dataset_num_entries", 64)
    spec = prepared(tmp_path / "d", *flags, "--synthetic_dataset_batch_size", 32)
    assert spec.cardinalities == small_spec().cardinalities and spec.numerical == small_spec().numerical
    assert "--num_numerical_features has no effect with --feature_spec" in capsys.readouterr().err


def test_specification_of_a_stored_dataset_describes_another_one(tmp_path):
    """Only its sections feature_spec and channel_spec count."""
    first = ("--synthetic_dataset_num_entries", 64, "--synthetic_dataset_batch_size", 32)
    prepared(tmp_path / "a", *first, *SIZES)
    spec = prepared(tmp_path / "b", *first, "--feature_spec", tmp_path / "a/feature_spec.yaml")
    assert tree(tmp_path / "a") == tree(tmp_path / "b") and spec.cardinalities == (10, 200, 3000)


def test_used_folder_is_refused_unless_overwrite(tmp_path):
    flags = ("--synthetic_dataset_num_entries", 64, "--synthetic_dataset_batch_size", 32, *SIZES)
    prepared(tmp_path / "d", *flags)
    before = tree(tmp_path / "d")
    with pytest.raises(UserError, match=r"holds a dataset already \(feature_spec.yaml\); choose another folder or pass --overwrite"):
        prepared(tmp_path / "d", *flags, "--seed", 1)
    assert tree(tmp_path / "d") == before
    prepared(tmp_path / "d", *flags, "--seed", 1, "--overwrite")
    assert tree(tmp_path / "d") != before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--synthetic_dataset_num_entries", 99, "--synthetic_dataset_batch_size", 100),
            "99: expected at least one batch",
        ),
        (("--synthetic_dataset_num_entries", 0), "--synthetic_dataset_num_entries 0: expected 1 to"),
        (("--synthetic_dataset_batch_size", -1), "--synthetic_dataset_batch_size -1: expected 1 to"),
        (("--test_batch_size", 0), "--test_batch_size 0: expected 1 to"),
        (("--batch_size", 5, "--synthetic_dataset_batch_size", 5), "--batch_size and --synthetic_dataset_batch_size both set"),
        (("--synthetic_dataset_table_sizes", "10,,3"), "--synthetic_dataset_table_sizes 10,,3: expected numbers from 1"),
        (("--synthetic_dataset_table_sizes", "2147483647"), "expected numbers from 1 to 2147483646"),
        (("--num_numerical_features", -1), "--num_numerical_features -1: expected 0 to"),
        (("--seed", -1), "--seed -1: expected 0 or more"),
        (("--feature_spec", "no.yaml"), r"no\.yaml: no such file; expected a feature specification \(path from --feature_spec\)"),
        (("--synthetic_dataset_num_entries", 10**12), "are needed on its disk"),
        (("--entries", 3), "unknown flag --entries"),
    ],
)
def test_invalid_flags_are_one_line_and_nothing_is_written(tmp_path, flags, message):
    with pytest.raises(UserError, match=message) as caught:
        prepared(tmp_path / "d", *flags)
    assert "\n" not in str(caught.value) and not (tmp_path / "d").exists()


def test_killed_half_way_leaves_no_dataset_and_the_next_run_succeeds(tmp_path):
    words = [sys.executable, "-m", "dataloading.prepare_synthetic_dataset", "--synthetic_dataset_dir", tmp_path / "d", *SIZES]
    with child(words) as process:
        wait_for(lambda: any(path.stat().st_size for path in found(tmp_path, "d/.writing-*/*/*.bin")), process)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert not [path for path in (tmp_path / "d").iterdir() if not path.name.startswith(".writing-")]
    prepared(tmp_path / "d", "--synthetic_dataset_num_entries", 64, "--synthetic_dataset_batch_size", 32, *SIZES)
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["feature_spec.yaml", "test", "train"]
