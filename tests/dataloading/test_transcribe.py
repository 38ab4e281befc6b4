"""transcribe from synthetic and tf_raw sources: the written data, the refused inputs, and output that is either complete or absent."""

import contextlib
import shutil
import signal
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import roc_auc_score

from dataloading import transcribe, validate
from dataloading.feature_spec import FeatureSpecError
from dataloading.features import DatasetError
from dataloading.generate_feature_spec import write_spec
from dataloading.synthetic.split import DEFAULT_SIGNAL, SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from tests.children import child, found, wait_for
from tests.dataloading.make_data import small_spec, write_dataset
from tests.helpers.commands import ROOT, do, run_here
from tests.helpers.datasets import spec_in
from tests.helpers.folders import tree
from utils.errors import UserError


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    write_spec(small_spec(), folder / "feature_spec.yaml")
    return folder


def synthetic(source, destination, *flags, train=3, test=2, batch=100):
    arguments = ["--src_dataset_type", "synthetic", "--src_dataset_path", str(source), "--dst_dataset_path", str(destination)]
    arguments += ["--max_batches_train", str(train), "--max_batches_test", str(test), "--src_batch_size", str(batch)]
    return do(transcribe, *arguments, *flags)


def stored(source, destination, *flags):
    return do(transcribe, "--src_dataset_path", source, "--dst_dataset_path", destination, *flags)


def test_t15_with_10_and_2_batches_is_2_folders_and_57_files(tmp_path):
    destination = tmp_path / "d"
    assert synthetic(ROOT, destination, train=10, test=2, batch=16) == 0
    assert sum(path.is_dir() for path in destination.rglob("*")) == 2
    assert sum(path.is_file() for path in destination.rglob("*")) == 57
    assert (destination / "train" / "cat_19.bin").stat().st_size == 160 * 4
    assert do(validate, "--dataset_path", destination) == 0


def test_written_rows_equal_the_drawn_rows(source, tmp_path, capsys):
    assert synthetic(source, tmp_path / "d", "--seed", "7", train=5, batch=37) == 0
    assert "train 185 rows, test 74 rows" in capsys.readouterr().out
    spec = spec_in(tmp_path / "d")
    for name, rows in (("train", 185), ("test", 74)):
        drawn, split = SyntheticSplit(small_spec(), name, rows, 7), TfRawSplit(spec, name)
        assert split.num_samples == rows
        assert_array_equal(split.read_labels(0, rows), drawn.read_labels(0, rows))
        assert_array_equal(split.read_numerical(0, rows), drawn.read_numerical(0, rows))
        for i in range(5):
            assert_array_equal(split.read_ids(i, 0, rows), drawn.read_ids(i, 0, rows))
        split.close()


def test_same_command_same_bytes_other_seed_other_bytes(source, tmp_path):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthetic(source, tmp_path / folder, "--seed", str(seed))
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a") != tree(tmp_path / "c")


def test_metadata_has_the_generator_parameters_and_the_best_score(source, tmp_path):
    synthetic(source, tmp_path / "d", "--seed", "3", test=40)
    metadata = spec_in(tmp_path / "d").metadata
    assert metadata["generator"] == {"seed": 3, "signal": DEFAULT_SIGNAL, "alpha": 1.2}
    drawn = SyntheticSplit(small_spec(), "test", 4000, 3)
    labels, probabilities = drawn.read_labels(0, 4000), drawn.probabilities(0, 4000)
    assert metadata["bayes_auc"] == pytest.approx(roc_auc_score(labels, probabilities), abs=2e-6)
    assert 0 < metadata["bayes_log_loss"] < 0.69
    assert metadata["click_rate"]["test"] == pytest.approx(labels.mean(), abs=1e-6)


def test_train_only(source, tmp_path, capsys):
    synthetic(source, tmp_path / "d", "--train_only")
    assert "--max_batches_test has no effect with --train_only" in capsys.readouterr().err
    spec = spec_in(tmp_path / "d")
    assert list(spec.sources) == ["train"] and not (tmp_path / "d" / "test").exists()
    assert "bayes_auc" not in spec.metadata
    assert do(validate, "--dataset_path", tmp_path / "d") == 0
    assert stored(tmp_path / "d", tmp_path / "e", "--train_only") == 0


@pytest.mark.parametrize(("batches", "train", "test"), [(-1, 50, 20), (2, 24, 20), (1, 12, 12), (5, 50, 20)])
def test_a_stored_dataset_is_copied_to_its_last_row(tmp_path, batches, train, test):
    write_dataset(tmp_path / "a", small_spec(), metadata={"from": "here"})
    flags = ["--src_batch_size", "12", "--max_batches_train", str(batches), "--max_batches_test", str(batches)]
    assert stored(tmp_path / "a", tmp_path / "b", *flags) == 0
    old, new = tree(tmp_path / "a"), tree(tmp_path / "b")
    assert old.keys() == new.keys() and old["feature_spec.yaml"] == new["feature_spec.yaml"]
    for name in old:
        if name.endswith("cat_4.bin"):
            assert new[name] == old[name][: 4 * (train if name.startswith("train") else test)]
    if batches == -1:
        assert old == new


def test_vocabularies_are_copied(tmp_path):
    known = write_dataset(tmp_path / "a", small_spec()).categorical[0].name
    (tmp_path / "a" / "vocabulary").mkdir()
    (tmp_path / "a" / "vocabulary" / f"{known}.parquet").write_bytes(b"values")
    stored(tmp_path / "a", tmp_path / "b")
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "b" / "vocabulary").iterdir()] == [(f"{known}.parquet", b"values")]
    shutil.rmtree(tmp_path / "a" / "vocabulary")
    stored(tmp_path / "a", tmp_path / "b", "--overwrite")
    assert not (tmp_path / "b" / "vocabulary").exists()  # it held the values of the dataset that was overwritten


@pytest.mark.parametrize(
    ("file", "dtype", "place", "value", "message"),
    [
        ("train/cat_3.bin", np.int16, 40, 300, r"train/cat_3\.bin: feature cat_3, row 40: id 300 is not in \[0, 300\)"),
        ("test/cat_0.bin", np.int8, 13, -1, r"test/cat_0\.bin: feature cat_0, row 13: id -1"),
        ("train/label.bin", np.uint8, 49, 2, r"row 49: label 2"),
        ("train/numerical.bin", np.float16, 3 * 20 + 2, np.nan, r"feature num_2, row 20: value nan"),
    ],
)
def test_bad_values_of_a_stored_source_are_errors(tmp_path, file, dtype, place, value, message):
    write_dataset(tmp_path / "a", small_spec())
    column = np.fromfile(tmp_path / "a" / file, dtype)
    column[place] = value
    column.tofile(tmp_path / "a" / file)
    with pytest.raises(DatasetError, match=message):
        stored(tmp_path / "a", tmp_path / "b", "--src_batch_size", "7")
    assert not (tmp_path / "b").exists()


def test_source_is_never_replaced(tmp_path):
    write_dataset(tmp_path / "a", small_spec())
    before = tree(tmp_path / "a")
    for same in (tmp_path / "a", tmp_path / "a" / ".." / "a"):
        with pytest.raises(DatasetError, match="source and destination"):
            stored(tmp_path / "a", same, "--overwrite")
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "feature_spec.yaml").write_text((tmp_path / "a" / "feature_spec.yaml").read_text())
    for split in ("train", "test"):
        (tmp_path / "specs" / split).symlink_to(tmp_path / "a" / split)
    with pytest.raises(DatasetError, match="would be replaced"):
        stored(tmp_path / "specs", tmp_path / "a", "--overwrite")
    assert tree(tmp_path / "a") == before


def test_overwriting(source, tmp_path):
    synthetic(source, tmp_path / "d")
    before = tree(tmp_path / "d")
    with pytest.raises(DatasetError, match="pass --overwrite"):
        synthetic(source, tmp_path / "d", "--seed", "2")
    assert tree(tmp_path / "d") == before
    assert synthetic(source, tmp_path / "d", "--seed", "2", "--overwrite", "--train_only") == 0
    assert tree(tmp_path / "d")["train/cat_0.bin"] != before["train/cat_0.bin"]


def test_an_interruption_leaves_no_dataset(source, tmp_path, monkeypatch):
    real, calls = SyntheticSplit.read_rows, []

    def interrupted(self, start, stop):
        calls.append(start)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return real(self, start, stop)

    monkeypatch.setattr(SyntheticSplit, "read_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        synthetic(source, tmp_path / "d")
    assert not (tmp_path / "d").exists()


@contextlib.contextmanager
def writing(source, destination, *flags, ignored=()):
    """Run transcribe in a child process, once it has written something; end the child in any case."""
    words = [sys.executable, "-m", "dataloading.transcribe", "--src_dataset_type", "synthetic", "--src_dataset_path", str(source)]
    words += ["--dst_dataset_path", str(destination), "--max_batches_train", "100000", "--train_only", *flags]
    before = found(destination, ".writing-*/train/*.bin")
    with child(words, ignored) as process:
        wait_for(lambda: found(destination, ".writing-*/train/*.bin") - before, process)
        yield process


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGHUP, 129, "stopped by SIGHUP")],
)
def test_a_stopped_process_leaves_no_dataset(source, tmp_path, number, code, said):
    with writing(source, tmp_path / "a" / "d") as process:
        process.send_signal(number)
        process.send_signal(number)  # an impatient user; the files are still removed
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, f"dataloading.transcribe: {said}\n")
    assert not (tmp_path / "a").exists()


def test_next_run_removes_files_of_a_killed_run_but_not_of_a_running_one(source, tmp_path):
    destination = tmp_path / "d"
    with writing(source, destination) as killed:
        killed.kill()
        killed.wait()
    (left,) = destination.glob(".writing-*")
    (destination / ".writing-mine").mkdir()
    with writing(source, destination, ignored=(signal.SIGHUP, signal.SIGINT)) as running:  # as under nohup and in the background of a script
        (used,) = set(destination.glob(".writing-????????")) - {left}
        assert not left.exists()
        running.send_signal(signal.SIGHUP)
        running.send_signal(signal.SIGINT)
        assert synthetic(source, destination) == 0
        assert used.exists() and running.poll() is None
        running.terminate()
        _, err = running.communicate(timeout=60)
    assert err.splitlines() == [f"{left}: left by a run that was killed; removed", "dataloading.transcribe: stopped by SIGTERM"]
    assert sorted(path.name for path in destination.iterdir()) == [".writing-mine", "feature_spec.yaml", "test", "train"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max_batches_train", "-1"], "give --max_batches_train"),
        (["--max_batches_test", "-1"], "give --max_batches_test"),
        (["--max_batches_train", "0"], "--max_batches_train is 0, expected -1"),
        (["--max_batches_test", "-2"], "--train_only writes no test split"),
        (["--src_batch_size", "0"], "--src_batch_size is 0"),
        (["--signal", "-1"], "--signal is -1"),
        (["--signal", "nan"], "--signal is nan"),
        (["--dst_feature_spec", "../x.yaml"], "expected a file name"),
        (["--src_feature_spec", "none.yaml"], "none.yaml: no such file"),
    ],
)
def test_invalid_values_are_rejected(source, tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        synthetic(source, tmp_path / "d", *flags)
    assert not (tmp_path / "d").exists()


def test_flags_without_effect_give_warnings(tmp_path, capsys):
    write_dataset(tmp_path / "a", small_spec())
    old = ["--dst_prebatch_size", "65536", "--src_synthetic_dataset_use_feature_spec"]
    assert stored(tmp_path / "a", tmp_path / "b", "--signal", "0", "--seed", "0", *old) == 0
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 4 and all("has no effect" in line for line in err)
    assert stored(tmp_path / "a", tmp_path / "c") == 0
    assert capsys.readouterr().err == ""


def test_the_specification_can_have_another_name(source, tmp_path):
    (source / "feature_spec.yaml").rename(source / "mine.yaml")
    synthetic(source, tmp_path / "d", "--src_feature_spec", "mine.yaml", "--dst_feature_spec", "yours.yaml")
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["test", "train", "yours.yaml"]
    assert do(validate, "--dataset_path", tmp_path / "d", "--feature_spec", "yours.yaml") == 0


def test_generator_specification_is_not_a_stored_dataset(source, tmp_path):
    with pytest.raises(UserError, match="source_spec is empty"):
        stored(source, tmp_path / "d")
    with pytest.raises(FeatureSpecError, match="no such file"):
        stored(tmp_path, tmp_path / "d")


def test_exit_codes_of_the_run_here(source, tmp_path):
    sound = ("-m", "dataloading.transcribe", "--src_dataset_type", "synthetic", "--src_dataset_path", source)
    sound += ("--dst_dataset_path", str(tmp_path / "d"), "--max_batches_train", "1", "--max_batches_test", "1", "--src_batch_size", "10")
    assert run_here(*sound).returncode == 0
    again = run_here(*sound)
    assert again.returncode == 1 and again.stderr.startswith("dataloading.transcribe: error:") and len(again.stderr.splitlines()) == 1
    short = run_here(*sound, "--max_batches_tr", "1")
    assert short.returncode == 1 and "unknown flag --max_batches_tr; did you mean --max_batches_train?" in short.stderr
