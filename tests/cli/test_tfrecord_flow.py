"""Tests of dlrm.py --dataset_type tfrecord: results equal those of the same data in tf_raw bit by bit, after a resume, too."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
from runs import TRAIN

from dataloading import transcribe
from tests.dataloading.tfrecord.example_records import write_outbrain


@pytest.fixture(scope="module")
def records(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    flags = ("--src_dataset_path", str(dataset), "--dst_dataset_path", str(folder / "whole"), "--dst_dataset_type", "tfrecord")
    assert transcribe.main([*flags]) == 0
    return folder / "whole"


def figures(result):
    return {key: value for key, value in result.final.items() if key in ("auc", "train_loss", "validation_loss", "samples")}


def test_training_on_tfrecords_matches_tf_raw(run, trained, records, dataset, tmp_path):
    flags = ("--dataset_path", records, "--dataset_type", "tfrecord", *TRAIN, "--print_freq", "10", "--save_checkpoint_path", tmp_path / "model")
    first = run(*flags, "--epochs", "3", "--max_steps", "20")
    assert first.code == 0, first.err
    result = run(*flags, "--epochs", "3", "--resume", "auto")
    assert figures(result) == figures(trained[1]) and not result.err.count("unused features")

    found = {}
    for name, data in (("raw", ("--dataset_path", dataset)), ("records", ("--dataset_path", records, "--dataset_type", "tfrecord"))):
        predictions = tmp_path / f"{name}.parquet"
        flags = ("--mode", "predict", "--cpu", "--restore_checkpoint_path", tmp_path / "model", "--predictions_path", predictions)
        assert run(*data, *flags).code == 0
        found[name] = pl.read_parquet(predictions)
    assert found["raw"].equals(found["records"])


def test_nvidias_records_are_read_unchanged(run, tmp_path):
    write_outbrain(tmp_path, sizes=(512,) * 4 + (100,), eval_sizes=(300, 30), float_label=True, extra=lambda n: {"ad_views": np.zeros(n, np.float32)})
    result = run("--dataset_path", tmp_path, "--dataset_type", "tfrecord", *TRAIN)
    assert result.final["samples"] == 2148 and 0 < result.final["map_at_12"] < 1 and 1 < result.final["groups"] <= 330
    assert result.err.count("unused features of the TFRecords: ad_views") == 1
    plan = run("--dataset_path", tmp_path, "--dataset_type", "tfrecord", "--mode", "plan", "--plan_format", "json", "--embedding_dim", "16", "--cpu")
    assert json.loads(plan.out)["embedding_parameters"] == 16 * 672_304


def test_invalid_records_are_a_one_line_error(run, records, tmp_path):
    flags = ("--dataset_type", "tfrecord", *TRAIN)
    result = run("--dataset_path", tmp_path, *flags)
    assert result.code == 1 and "no folder train or eval; expected TFRecords" in result.err and result.err.count("error: ") == 1
    result = run("--dataset_path", records, *TRAIN)
    assert result.code == 1 and "type is tfrecord, expected split_binary; --dataset_type tfrecord reads such records as they are" in result.err
    copy = shutil.copytree(records, tmp_path / "records")
    path = copy / "train/part-r-00000"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    result = run("--dataset_path", copy, *flags)
    assert result.code == 1 and "part-r-00000, record 0: corrupted record at" in result.err and "Traceback" not in result.err
