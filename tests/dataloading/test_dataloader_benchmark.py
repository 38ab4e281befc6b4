"""dataloader_benchmark: NVIDIA's lines for both types of datasets, several epochs, and the refused inputs."""

import re

import pytest

from dataloading import dataloader_benchmark, transcribe
from dataloading.batches import BatchReader
from dataloading.synthetic.dataset import SyntheticDataset, write_dataset
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.make_data import small_spec
from tests.helpers.commands import do
from utils.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a dataset of 250 rows as tf_raw and, in batches of 50, as split_tfrecords."""
    folder = tmp_path_factory.mktemp("benchmark")
    write_dataset(folder / "tf_raw", SyntheticDataset(small_spec(), {"train": 250, "test": 50}, 1))
    flags = ("--dst_dataset_type", "split_tfrecords", "--src_batch_size", "50", "--train_only")
    do(transcribe, "--src_dataset_path", folder / "tf_raw", "--dst_dataset_path", folder / "split_tfrecords", *flags)
    return folder


def benchmark(folder, kind, *flags):
    return do(dataloader_benchmark, "--dataset_path", folder / kind, "--dataset_type", kind, *flags)


@pytest.mark.parametrize("kind", ["tf_raw", "split_tfrecords"])
def test_lines_are_nvidias_and_reading_goes_on_after_an_epoch(folder, kind, capsys):
    assert benchmark(folder, kind, "--batch_size", 100, "--max_batches", 7, "--warmup_steps", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["Creating the pipelines", "Benchmarking...", "warmup step: 0", "warmup step: 1"]
    for i, line in enumerate(lines[4:11]):
        assert re.fullmatch(rf"batch: {i}, step time: \d+\.\d{{3}}", line)
    assert lines[11] == "Benchmark done" and len(lines) == 14
    batches, samples = (float(re.fullmatch(r"(?:Batches|Samples) per second: (\d\.\d\de[+-]\d\d)", line)[1]) for line in lines[12:])
    assert samples / batches == pytest.approx(550 / 7, rel=0.02)  # batches 2 to 8 of epochs of 100, 100 and 50 samples


def test_workers_read_their_parts(folder, capsys, monkeypatch):
    """Worker 1 of 2 reads features 1 and 3 of the five for the whole batch, half of the other columns, and prints nothing."""
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setenv("HOROVOD_RANK", "1")
    batches = []
    read = BatchReader.read
    monkeypatch.setattr(BatchReader, "read", lambda self, *where: batches.append(read(self, *where)) or batches[-1])
    benchmark(folder, "tf_raw", "--batch_size", 100, "--max_batches", 1, "--warmup_steps", 0)
    assert capsys.readouterr().out == "" and batches[0].numerical.shape == (50, 3)
    split = TfRawSplit(dataloader_benchmark.open_split(folder / "tf_raw", "feature_spec.yaml", "tf_raw").spec, "train")
    assert len(batches[0].ids) == sum(split.spec.categorical[i].hotness for i in (1, 3))
    with pytest.raises(UserError, match="--batch_size 99: expected a multiple of the 2 workers"):
        benchmark(folder, "tf_raw", "--batch_size", 99)


def test_flags_without_effect_are_named(folder, capsys):
    benchmark(folder, "tf_raw", "--batch_size", 50, "--max_batches", 1, "--warmup_steps", 0, "--xla", "--amp", "--run_eagerly", "--tfdata_debug")
    assert re.findall(r"warning: --(\w+) has no effect: ", capsys.readouterr().err) == ["xla", "amp", "run_eagerly", "tfdata_debug"]


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("nothing", (), r"nothing/feature_spec\.yaml: no such file"),
        ("tf_raw", ("--feature_spec", "x.yaml"), r"x\.yaml: no such file"),
        ("tf_raw", ("--batch_size", 0), "--batch_size 0: expected at least 1"),
        ("tf_raw", ("--max_batches", 0), "--max_batches 0: expected at least 1"),
        ("tf_raw", ("--warmup_steps", -1), "--warmup_steps -1: expected at least 0"),
        ("tf_raw", ("--sleep", -1), "--sleep -1: expected at least 0"),
        ("tf_raw", ("--dataset_type", "split_tfrecords"), r"train/numerical/format\.json: .*expected NVIDIA's pre-batched TFRecords"),
        ("split_tfrecords", ("--dataset_type", "tf_raw"), "these are pre-batched TFRecords; read them with --dataset_type split_tfrecords"),
        ("tf_raw", ("--dataset_type", "nvt"), "invalid choice: 'nvt'"),
    ],
)
def test_invalid_input_is_one_line(folder, kind, flags, message):
    with pytest.raises(UserError, match=message) as caught:
        do(dataloader_benchmark, "--dataset_path", folder / kind, *flags)
    assert "\n" not in str(caught.value)


def test_truncated_file_is_an_error(tmp_path):
    write_dataset(tmp_path / "tf_raw", SyntheticDataset(small_spec(), {"train": 250, "test": 50}, 1))
    ids = next((tmp_path / "tf_raw/train").glob("cat_*.bin"))
    ids.write_bytes(ids.read_bytes()[:-1])
    with pytest.raises(UserError, match=ids.name):
        benchmark(tmp_path, "tf_raw")
