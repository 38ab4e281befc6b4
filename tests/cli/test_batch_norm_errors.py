"""Tests of what users can get wrong with batch normalisation, plateau, whole tables and decay: one line each, or the right thing."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from runs import write_dataset

import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from utils.checkpoint import manifest
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.zarr_store import open_array, write_rows
from utils.errors import UserError

SMALL = ("--cpu", "--embedding_dim", "4", "--bottom_mlp_dims", "8,4", "--top_mlp_dims", "8,1", "--batch_size", "64", "--gradient_slices", "8")
TRAIN = (*SMALL, "--optimizer", "adam", "--learning_rate", "0.01", "--warmup_steps", "0", "--max_steps", "2")
VARIANCE = "dense/top_mlp/0/moving_variance"
NORM = ("--batch_norm",)
CROSSNET = ("--interaction", "cross", "--structure", "crossnet", "--cross_layer_projection_dim", "0", "--top_mlp_dims", "1")


def refused(result, *words):
    assert result.code == 1 and result.err.count("dlrm.py: error: ") == 1 and "Traceback" not in result.err, result.err
    for word in words:
        assert word in result.err.splitlines()[-1], result.err


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "with", rows={"train": 200, "valid": 60, "test": 60})


@pytest.fixture(scope="module")
def normalised(data, tmp_path_factory):
    """Train two steps with batch normalisation; return the checkpoints' folder."""
    folder = tmp_path_factory.mktemp("normalised") / "c"
    flags = {name.removeprefix("--"): value for name, value in zip(TRAIN[1::2], TRAIN[2::2], strict=True)}
    dlrm.train(dataset_path=data, cpu=True, batch_norm=True, save_checkpoint_path=folder, log_path="", **flags)
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((*NORM, "--batch_size", "1"), "--batch_norm --batch_size 1: one sample has no variance to normalise by"),
        ((*NORM, "--batch_norm_epsilon", "0"), "--batch_norm_epsilon 0.0: expected above 0"),
        ((*NORM, "--batch_norm_epsilon=-1e-5"), "--batch_norm_epsilon -1e-05: expected above 0"),
        ((*NORM, "--batch_norm_epsilon", "nan"), "--batch_norm_epsilon nan"),
        ((*NORM, "--batch_norm_epsilon", "inf"), "--batch_norm_epsilon inf"),
        ((*NORM, "--batch_norm_momentum", "1"), "--batch_norm_momentum 1.0: expected at least 0 and below 1"),
        ((*NORM, "--batch_norm_momentum", "-0.1"), "--batch_norm_momentum -0.1: expected at least 0 and below 1"),
        ((*NORM, "--batch_norm_momentum", "nan"), "--batch_norm_momentum nan"),
        (("--lr_schedule", "plateau", "--evals_per_epoch", "0"), "--evals_per_epoch 0"),
        (("--lr_schedule", "plateau", "--plateau_factor", "1"), "--plateau_factor 1.0: expected above 0 and below 1"),
        (
            ("--table_l2", "0.1", "--dense_update_rows", "299"),
            "table cat_1: --table_l2 needs tables that are updated whole, and this one has 300",
        ),
        (("--table_l2", "nan", "--dense_update_rows", "300"), "--table_l2 nan"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_values_are_one_line(run, data, flags, words):
    refused(run("--dataset_path", data, *TRAIN, *flags), words)


def test_a_model_without_relu_layers_is_refused(run, data, tmp_path):
    said = "--batch_norm: this model has no layer with a ReLU, which it would normalise; drop the flag or give --top_mlp_dims 64,1"
    spec = FeatureSpec.from_yaml(data / "feature_spec.yaml")
    bare = replace(spec, numerical=(), path=None, dtypes={name: kind for name, kind in spec.dtypes.items() if name not in spec.numerical})
    with TfRawWriter(tmp_path / "bare", bare, ("train", "test")) as writer:
        for name in ("train", "test"):
            split = TfRawSplit(spec, name)
            count = split.num_samples
            ids = [split.read_ids(place, 0, count) for place in range(len(spec.categorical))]
            writer.append(name, np.empty((count, 0), np.float32), np.stack(ids), split.read_labels(0, count))
            split.close()
        writer.publish({})
    for flags in (CROSSNET, ("--top_mlp_dims", "1"), ("--interaction", "wide_and_deep", "--top_mlp_dims", "1")):
        refused(run("--dataset_path", tmp_path / "bare", *TRAIN, *NORM, *flags), said)
    refused(run("--dataset_path", data, *TRAIN, *NORM, "--interaction", "wide_and_deep", "--top_mlp_dims", "1"), said)


def test_frozen_tables_are_not_decayed(run, data, tmp_path):
    """Only the dense layers of a model with frozen tables are trained, and flags of the tables say that they have no effect."""
    frozen = ("--noembedding_trainable", "--dense_update_rows", "300", "--table_l2", "0.5", *NORM)
    result = run("--dataset_path", data, *TRAIN, *frozen, "--save_checkpoint_path", tmp_path / "c", "--checkpoint_every_steps", "1")
    assert result.code == 0, result.err
    for name in ("table_l2", "dense_update_rows"):
        assert f"warning: --{name} has no effect with --embedding_trainable false\n" in result.err
    one, two = (Checkpoint(tmp_path / f"c/step-0000000{step}") for step in (1, 2))
    assert sum(name.startswith("tables/") for name in one.names("")) == 3
    for name in one.names("tables/"):
        np.testing.assert_array_equal(one.read(name), two.read(name), err_msg=name)
    assert (one.read(VARIANCE) != two.read(VARIANCE)).any() and (one.read("dense/top_mlp/1/kernel") != two.read("dense/top_mlp/1/kernel")).any()


def test_settings_without_the_flag_do_nothing_and_a_checkpoint_fixes_it(run, data, normalised, tmp_path):
    settings = ("--batch_norm_epsilon", "0.001", "--batch_norm_momentum", "0.5", "--plateau_factor", "0.5")
    plain = run("--dataset_path", data, *TRAIN, *settings, "--save_checkpoint_path", tmp_path / "plain")
    assert plain.code == 0
    for name in ("batch_norm_epsilon", "batch_norm_momentum"):
        assert f"warning: --{name} has no effect without --batch_norm\n" in plain.err
    assert "warning: --plateau_factor has no effect without --lr_schedule plateau\n" in plain.err
    said = "--batch_norm {}: the checkpoint's model has {}; drop the flag or restore another checkpoint"
    for more in ((), ("--resume", "weights"), ("--mode", "eval"), ("--allow_growth",)):
        for folder, has in ((normalised, True), (tmp_path / "plain", False)):
            flags = ("--dataset_path", data, *SMALL, "--batch_norm", str(not has).lower(), "--restore_checkpoint_path", folder)
            refused(run(*flags, *more), said.format(not has, has))
    evaluated = ("--dataset_path", data, "--cpu", "--mode", "eval", "--restore_checkpoint_path", normalised)
    refused(run(*evaluated, "--batch_norm_epsilon", "0.01"), "--batch_norm_epsilon 0.01: the checkpoint's model has 1e-05")
    assert run(*evaluated).code == 0


def test_a_resumed_run_needs_a_batch_of_two_samples(run, data, normalised):
    flags = ("--dataset_path", data, "--cpu", "--restore_checkpoint_path", normalised, "--resume", "weights", "--batch_size", "1")
    refused(run(*flags), "--batch_norm --batch_size 1")


def missing(step):
    shutil.rmtree(step / VARIANCE)


def listed_no_more(step):
    """Remove the array and its entries, as a checkpoint of another model would lack them."""
    shutil.rmtree(step / VARIANCE)
    content = {name: value for name, value in manifest.read(step).items() if name not in ("format", "files")}
    del content["arrays"][VARIANCE]
    manifest.write(step, content)


def flipped(step):
    chunk = next(path for path in (step / VARIANCE / "c").rglob("*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[3] ^= 64  # the length and the recorded checksum stay the same
    chunk.write_bytes(content)


def holding(value):
    """Return a function that puts a value into the array, with right checksums."""

    def change(step):
        values = Checkpoint(step).read(VARIANCE)
        values[5] = value
        write_rows(open_array(step / VARIANCE), 0, values, None).result()
        manifest.write(step, {name: content for name, content in manifest.read(step).items() if name not in ("format", "files")})

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (missing, "moving_variance.*; the checkpoint is damaged"),
        (listed_no_more, "holds no array dense/top_mlp/0/moving_variance; it is of another model or damaged"),
        (flipped, "dense/top_mlp/0/moving_variance: .*checksum; the checkpoint is damaged"),
        (holding(-0.25), "dense/top_mlp/0/moving_variance holds -0.25, expected finite values of 0 or more; the checkpoint is damaged"),
        (holding(np.nan), "dense/top_mlp/0/moving_variance holds nan, expected finite values of 0 or more; the checkpoint is damaged"),
        (holding(np.inf), "dense/top_mlp/0/moving_variance holds inf, expected finite values of 0 or more; the checkpoint is damaged"),
    ],
    ids=["missing", "not listed", "flipped", "negative", "nan", "inf"],
)
def test_a_damaged_moving_variance_is_one_line_everywhere(run, data, normalised, tmp_path, damage, said):
    copy = shutil.copytree(normalised, tmp_path / "c")
    damage(copy / "step-00000002")
    for flags in (("--epochs", "2"), ("--resume", "weights", "--batch_size", "64"), ("--mode", "eval")):
        result = run("--dataset_path", data, "--cpu", "--restore_checkpoint_path", copy, *flags)
        refused(result)
        assert re.search(said, result.err.splitlines()[-1]), result.err
    for mmap in (False, True):
        with pytest.raises(UserError, match=said):
            dlrm.load(copy, mmap=mmap, cpu=True).score({"num_0": [0], "num_1": [0], "num_2": [0], "cat_0": [0], "cat_1": [0], "cat_2": [0]})
    export = ("--mode", "export", "--cpu", "--restore_checkpoint_path", copy, "--export_path", tmp_path / "r", "--formats", "onnx")
    result = run(*export)
    refused(result)
    assert re.search(said, result.err.splitlines()[-1]) and not (tmp_path / "r").exists()
