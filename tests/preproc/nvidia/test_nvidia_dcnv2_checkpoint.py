"""Imported checkpoints of NVIDIA's DCNv2: the same scores as by the model's definition, written out here in float64."""

import itertools
import json
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pytest
import tensorflow as tf
from numpy.testing import assert_allclose

import dcnv2
from dataloading.tf_raw import TfRawSplit
from preproc import nvidia_checkpoint
from tests.helpers.commands import run_here
from tests.helpers.datasets import spec_in
from tests.preproc.nvidia.nvidia_forms import CARDINALITIES, Dense, check_refused, edit, padded, paths, write_dataset
from utils.checkpoint.reading import Checkpoint

# NVIDIA's model -----------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """NVIDIA's DCNv2 with random weights, also those that multiply padding: they are initialised at random and never trained.

    `cross`: for each layer the kernel of its _dense_u `[d, r]`, the kernel of its _dense_v `[r, d]` and the latter's bias `[d]`, where d is the
    width of the bottom MLP's output and all embeddings side by side.
    """

    numerical: int = 3
    dims: tuple[int, ...] = (8, 8, 8, 8)  # of the tables
    bottom_dims: tuple[int, ...] = (16, 6)
    top_dims: tuple[int, ...] = (12, 5, 1)
    num_layers: int = 3
    rank: int = 5
    deviation: float = 0.3  # of the cross layers' kernels
    tables: list[np.ndarray] = field(init=False)
    mlps: dict[str, list[tuple[np.ndarray, np.ndarray]]] = field(init=False)
    cross: list[dict[str, np.ndarray]] = field(init=False)

    def __post_init__(self):
        draw = np.random.default_rng(11)

        def normal(deviation, *shape):
            return draw.normal(0, deviation, shape).astype(np.float32)

        width = self.bottom_dims[-1] + sum(self.dims)
        self.tables = [normal(0.7, rows, dim) for rows, dim in zip(CARDINALITIES, self.dims, strict=True)]
        self.mlps = {}
        for name, inputs, dims in (("bottom_mlp", padded(self.numerical), self.bottom_dims), ("top_mlp", padded(width), self.top_dims)):
            self.mlps[name] = [(normal((2 / (m + n)) ** 0.5, m, n), normal(0.5, n)) for m, n in itertools.pairwise((inputs, *dims))]
        layers = range(self.num_layers)
        self.cross = [
            {"u": normal(self.deviation, width, self.rank), "v": normal(self.deviation, self.rank, width), "bias": normal(self.deviation, width)}
            for _ in layers
        ]

    def scores(self, numerical, ids):
        """Return probabilities `[n]` from numerical `[n, M]` and ids `[n]` or `[n, h]` of each feature, as NVIDIA's dense_model.py and dcn.py do."""
        x = np.pad(numerical.astype(float), ((0, 0), (0, padded(self.numerical) - self.numerical)))
        for kernel, bias in self.mlps["bottom_mlp"]:
            x = np.maximum(x @ kernel.astype(float) + bias, 0)
        pooled = [table.astype(float)[column.reshape(len(x), -1)].sum(axis=1) for table, column in zip(self.tables, ids, strict=True)]
        x0 = np.concatenate([x, *pooled], axis=1)
        x = x0
        for layer in self.cross:
            x = x0 * (x @ layer["u"].astype(float) @ layer["v"].astype(float) + layer["bias"]) + x
        x = np.pad(x, ((0, 0), (0, padded(x.shape[1]) - x.shape[1])))
        for number, (kernel, bias) in enumerate(self.mlps["top_mlp"], 1):
            x = x @ kernel.astype(float) + bias
            x = np.maximum(x, 0) if number < len(self.mlps["top_mlp"]) else x
        return 1 / (1 + np.exp(-x[:, 0]))


class Kernel(tf.Module):
    """A module with the variables of a layer `Dense` without a bias, as a TensorFlow checkpoint sees it."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = tf.Variable(kernel)


class Cross(tf.Module):
    """A cross layer of two layers under NVIDIA's names."""

    def __init__(self, u, v, bias):
        super().__init__()
        self._dense_u, self._dense_v = Kernel(u), Dense(v, bias)


class FullRank(tf.Module):
    """A cross layer without a low-rank projection."""

    def __init__(self, u, v, bias):
        super().__init__()
        self._dense = Dense(u @ v, bias)


class CrossNetwork(tf.Module):
    """The interaction: a list of cross layers."""

    def __init__(self, layers, kind):
        super().__init__()
        self.cross_layers = [kind(**layer) for layer in layers]


class DenseModel(tf.Module):
    """The dense part under NVIDIA's names."""

    def __init__(self, model, kind):
        super().__init__()
        self.bottom_mlp_layers = [Dense(*layer) for layer in model.mlps["bottom_mlp"]]
        self.top_mlp = [Dense(*layer) for layer in model.mlps["top_mlp"]]
        self.interact_op = CrossNetwork(model.cross, kind)


def write_checkpoint(folder, model, kind=Cross, concat_embedding=False):
    """Write a checkpoint as DLRM_and_DCNv2 does. Its call of Keras 2's `save_weights` is a `tf.train.Checkpoint.write` of the model."""
    for name in ("dense", "sparse"):
        (folder / name).mkdir(parents=True)
    common = {"embedding_dim": list(model.dims), "categorical_cardinalities": list(CARDINALITIES)}
    dense = {"interaction": "cross", "num_cross_layers": len(model.cross), "cross_layer_projection_dim": model.rank, "transpose": False}
    dense |= {"bottom_mlp_dims": list(model.bottom_dims), "top_mlp_dims": list(model.top_dims), "num_numerical_features": model.numerical}
    sparse = {"concat_embedding": concat_embedding, "cpu_offloading_threshold_gb": 75, "use_mde_embeddings": True}
    (folder / "dense/config.json").write_text(json.dumps(common | dense, indent=4))
    (folder / "sparse/config.json").write_text(json.dumps(common | sparse, indent=4))
    tf.train.Checkpoint(root=DenseModel(model, kind)).write(str(folder / "dense/dense"))
    for i, table in enumerate([np.concatenate(model.tables)] if concat_embedding else model.tables):
        np.save(folder / f"sparse/feature_{i}.npy", table)
    return folder


# The same scores ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture
def imported(call, tmp_path, dataset):
    """Import a checkpoint of `Model()`; return the folder of our checkpoint."""
    assert call(nvidia_checkpoint.main, *paths(write_checkpoint(tmp_path / "nvidia", Model()), dataset, tmp_path / "ours"))[0] == 0
    return tmp_path / "ours"


FORMS = {
    "padded": (Model(), {}),
    "without padding": (Model(numerical=8, dims=(6, 6, 6, 6), bottom_dims=(8,), top_dims=(1,)), {}),
    "tables of several widths": (Model(dims=(4, 8, 3, 8)), {}),
    "lists of ids": (Model(deviation=0.2), {}),
    "one layer of rank one": (Model(num_layers=1, rank=1), {}),
    "more layers than fit one digit": (Model(num_layers=11, rank=2, deviation=0.15), {}),
    "tables in one file": (Model(), {"concat_embedding": True}),
    "full rank": (Model(), {"kind": FullRank}),
}


@pytest.mark.parametrize("form", FORMS)
def test_imported_model_gives_nvidias_scores(call, tmp_path, dataset, form):
    model, options = FORMS[form]
    if model.numerical != 3:
        dataset = write_dataset(tmp_path / "dataset", model.numerical)
    if form == "lists of ids":
        dataset = write_dataset(tmp_path / "dataset", hotness=[3, 1, 2, 5])
    source, target = write_checkpoint(tmp_path / "nvidia", model, **options), tmp_path / "ours"
    code, _, err = call(nvidia_checkpoint.main, *paths(source, dataset, target))
    assert (code, err) == (0, "")
    flags = ("--mode", "predict", "--cpu", "--log_path", "", "--valid_batch_size", 64, "--predictions_path", tmp_path / "predictions.parquet")
    code, _, err = call(dcnv2.main, *flags, "--restore_checkpoint_path", target, "--dataset_path", dataset)
    assert code == 0, err
    split = TfRawSplit(spec_in(dataset), "test")
    count = split.num_samples
    expected = model.scores(split.read_numerical(0, count), [split.read_ids(i, 0, count) for i in range(len(CARDINALITIES))])
    split.close()
    assert expected.std() > 0.05 and expected.min() > 1e-4 and expected.max() < 1 - 1e-4  # the scores vary enough to tell one model from another
    found = pl.read_parquet(tmp_path / "predictions.parquet")["score"].to_numpy()
    assert_allclose(np.log(found / (1 - found)), np.log(expected / (1 - expected)), atol=1e-3, rtol=0)  # compared as logits
    assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_fixture_variables_have_the_names_of_keras_2(tmp_path):
    # Keras 2 gives these names for a subclassed model whose attribute interact_op is a tf.Module with a list of Keras layers
    write_checkpoint(tmp_path / "nvidia", Model(num_layers=1, bottom_dims=(6,), top_dims=(1,)))
    layers = ("bottom_mlp_layers/0/kernel", "bottom_mlp_layers/0/bias", "top_mlp/0/kernel", "top_mlp/0/bias")
    cross = ("_dense_u/kernel", "_dense_v/kernel", "_dense_v/bias")
    expected = {f"{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in (*layers, *(f"interact_op/cross_layers/0/{part}" for part in cross))}
    assert {name for name, _ in tf.train.list_variables(str(tmp_path / "nvidia/dense/dense"))} == expected | {"_CHECKPOINTABLE_OBJECT_GRAPH"}


def test_import_and_evaluation_without_model_flags(call, tmp_path, dataset):
    source = write_checkpoint(tmp_path / "nvidia", Model())
    result = run_here("-m", nvidia_checkpoint.NAME, *paths(source, dataset, tmp_path / "ours"))
    size = "4 tables of 8 columns, 3,256 parameters; bottom MLP 16,6, 3 cross layers of rank 5, top MLP 12,5,1"
    assert (result.returncode, result.stdout, result.stderr) == (0, f"written: {tmp_path}/ours/step-00000000: {size}\n", "")
    restored = "--restore_checkpoint_path", tmp_path / "ours", "--dataset_path", dataset
    code, out, err = call(dcnv2.main, "--mode", "eval", "--cpu", "--valid_batch_size", 64, "--log_path", "", *restored)
    assert code == 0 and "200 samples" in out, err


def test_manifest_keeps_the_options_that_runs_inherit(imported):
    manifest = Checkpoint(imported).manifest
    shape = {"embedding_dim": 8, "bottom_mlp_dims": [16, 6], "top_mlp_dims": [12, 5, 1]}
    shape |= {"interaction": "cross", "num_cross_layers": 3, "cross_layer_projection_dim": 5}
    assert (manifest["step"], manifest["config"]) == (0, shape | {"hash_indices": False, "max_table_size": None})
    assert manifest["model"] == {"name": "dcnv2"} | shape


def test_training_continues_from_the_weights(call, tmp_path, imported, dataset):
    flags = ("--cpu", "--log_path", "", "--max_steps", 3, "--batch_size", 64, "--valid_batch_size", 64, "--warmup_steps", 0)
    flags += ("--dataset_path", dataset, "--restore_checkpoint_path", imported, "--resume", "weights")
    for rate, target in ((1e-30, tmp_path / "same"), (0.01, tmp_path / "trained")):
        code, _, err = call(dcnv2.main, *flags, "--learning_rate", rate, "--save_checkpoint_path", target)
        assert code == 0, err
    before, same, after = (Checkpoint(path) for path in (imported, tmp_path / "same", tmp_path / "trained"))
    assert {"dense/cross/2/v/kernel", "dense/cross/2/u/kernel", "dense/cross/2/u/bias"} <= set(before.names(""))
    for name in before.names(""):
        np.testing.assert_array_equal(same.read(name), before.read(name), name)
        assert not np.array_equal(after.read(name), before.read(name)), name


def test_the_manifest_keeps_widths_and_lists(call, tmp_path):
    dataset = write_dataset(tmp_path / "dataset", hotness=[3, 1, 1, 1], embedding_dim=[4, None, 3, None])
    source = write_checkpoint(tmp_path / "nvidia", Model(dims=(4, 8, 3, 8)))
    code, out, err = call(nvidia_checkpoint.main, *paths(source, dataset, tmp_path / "ours"))
    assert (code, err) == (0, "") and "4 tables of 4,8,3 columns, 3,021 parameters" in out
    manifest = Checkpoint(tmp_path / "ours").manifest
    assert manifest["config"]["embedding_dim"] == manifest["model"]["embedding_dim"] == [4, 8, 3, 8]
    assert manifest["features"]["particulars"] == {"cat_0": {"hotness": 3}}


# Errors -------------------------------------------------------------------------------------------------------------------


def swap(layer, part, change):
    """Return a replacement of an array in a cross layer, to be called with the model."""

    def apply(model):
        model.cross[layer][part] = change(model.cross[layer][part])

    return apply


ARRAYS = {
    "other rank": (
        swap(1, "u", lambda u: u[:, :4]),
        "cross_layers/1/_dense_u/kernel/.ATTRIBUTES/VARIABLE_VALUE: shape [38, 4], expected [38, 5]; 38 is",
    ),
    "other width": (swap(0, "u", lambda u: u[1:]), "cross_layers/0/_dense_u/kernel/.ATTRIBUTES/VARIABLE_VALUE: shape [37, 5], expected [38, 5]"),
    "other output": (swap(2, "v", lambda v: v[:, 1:]), "cross_layers/2/_dense_v/kernel/.ATTRIBUTES/VARIABLE_VALUE: shape [5, 37], expected [5, 38]"),
    "other bias": (swap(2, "bias", lambda bias: bias[1:]), "cross_layers/2/_dense_v/bias/.ATTRIBUTES/VARIABLE_VALUE: shape [37], expected [38]"),
    "flat kernel": (swap(0, "u", np.ravel), "cross_layers/0/_dense_u/kernel/.ATTRIBUTES/VARIABLE_VALUE: shape [190], expected [38, 190]"),
    "float16": (swap(1, "v", np.float16), "cross_layers/1/_dense_v/kernel/.ATTRIBUTES/VARIABLE_VALUE: float16, expected float32"),
    "not finite": (swap(1, "bias", lambda bias: bias * np.nan), "dense/cross/1/u/bias: holds weights that are not finite"),
}


@pytest.mark.parametrize("damage", ARRAYS)
def test_damaged_arrays_are_a_one_line_error(call, tmp_path, dataset, damage):
    change, message = ARRAYS[damage]
    model = Model()
    change(model)
    check_refused(call, write_checkpoint(tmp_path / "nvidia", model), dataset, message)


CONFIGURATIONS = {
    "missing layer": (
        edit("dense/config.json", num_cross_layers=4),
        "interaction cross with 4 cross layers, but dense holds the weights of 3; expected",
    ),
    "layers of a DLRM": (
        edit("dense/config.json", interaction="dot_tensorflow"),
        "dot_tensorflow with 0 cross layers, but dense holds the weights of 3",
    ),
    "other numericals": (edit("dense/config.json", num_numerical_features=8), "config.json: 8 numerical features, but the dataset has 3; give the"),
}


@pytest.mark.parametrize("damage", CONFIGURATIONS)
def test_configuration_of_another_checkpoint_is_a_one_line_error(call, tmp_path, dataset, damage):
    change, message = CONFIGURATIONS[damage]
    source = write_checkpoint(tmp_path / "nvidia", Model())
    change(source)
    check_refused(call, source, dataset, message)


def test_missing_cross_layers_are_rejected(call, tmp_path, dataset):
    check_refused(call, write_checkpoint(tmp_path / "none", Model(num_layers=0)), dataset, "dense holds the weights of 0; expected the same number")


def test_cross_layers_of_both_kinds_are_rejected(call, tmp_path, dataset):
    class Either(tf.Module):
        def __new__(cls, u, v, bias):
            count[0] += 1
            return (FullRank if count[0] == 2 else Cross)(u, v, bias)

    count = [0]
    source = write_checkpoint(tmp_path / "nvidia", Model(), Either)
    check_refused(call, source, dataset, "cross_layers/1/_dense/kernel/.ATTRIBUTES/VARIABLE_VALUE: cross layers of full rank beside others")


def test_layer_without_its_second_kernel_is_rejected(call, tmp_path, dataset):
    class Half(tf.Module):
        def __init__(self, u, v, bias):
            super().__init__()
            self._dense_u = Kernel(u)

    source = write_checkpoint(tmp_path / "nvidia", Model(), Half)
    check_refused(call, source, dataset, "cross layer 0 lacks one of its kernels or its bias; expected a checkpoint of NVIDIA's DCNv2")


DATASETS = {
    "shared tables": ({"table": ["both", None, None, "both"]}, "feature cat_0 uses the table both, but each feature of NVIDIA's"),
    "mean pooling": ({"hotness": 2, "pooling": "mean"}, "feature cat_0 has pooling mean, but NVIDIA's DLRM and DCNv2 sum vectors; remove pooling"),
    "other widths": ({"embedding_dim": [8, 8, 16, 8]}, "feature_2.npy: 8 columns, but feature cat_2 has embedding_dim 16 in "),
}


@pytest.mark.parametrize("case", DATASETS)
def test_dataset_that_needs_another_model_is_rejected(call, tmp_path, case):
    facts, message = DATASETS[case]
    dataset = write_dataset(tmp_path / "dataset", **facts)
    check_refused(call, write_checkpoint(tmp_path / "nvidia", Model()), dataset, message)


def test_the_interaction_needs_no_flag(call, tmp_path, dataset):
    source = write_checkpoint(tmp_path / "nvidia", Model())
    check_refused(call, source, dataset, "dense/config.json says cross; drop the flag", "--dot_interaction", "tensorflow")
