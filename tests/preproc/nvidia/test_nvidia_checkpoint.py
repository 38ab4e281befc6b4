"""Imported checkpoints of NVIDIA's DLRM: the same scores as by the model's definition, written out here with loops."""

import itertools
import json
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pytest
import tensorflow as tf
from numpy.testing import assert_array_equal

import dlrm
from dataloading.tf_raw import TfRawSplit
from preproc import nvidia_checkpoint
from preproc.nvidia_checkpoint import Weight, rows_of_parts, top_rows
from tests.helpers.commands import do, help_of, run
from tests.helpers.datasets import spec_in
from tests.preproc.nvidia.nvidia_forms import CARDINALITIES, Dense, check_refused, cut, edit, padded, paths, remove, resave, write, write_dataset
from utils.checkpoint.reading import Checkpoint
from utils.errors import UserError

# NVIDIA's model -----------------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """NVIDIA's DLRM with random weights, also those that multiply padding: they are initialised at random and never trained.

    `order`: features in the order of the interaction. `bottom_first`: True where the bottom MLP's output stands first. `inputs`: of the
    top MLP, padding included; by default a multiple of 8.
    """

    numerical: int = 3
    cardinalities: tuple[int, ...] = CARDINALITIES
    dim: int = 8
    bottom_dims: tuple[int, ...] = (16, 8)
    top_dims: tuple[int, ...] = (12, 5, 1)
    order: tuple[int, ...] = (0, 1, 2, 3)
    bottom_first: bool = True
    inputs: int | None = None
    tables: list[np.ndarray] = field(init=False)
    layers: dict[str, list[tuple[np.ndarray, np.ndarray]]] = field(init=False)

    def __post_init__(self):
        draw = np.random.default_rng(7)
        features = len(self.cardinalities)
        self.inputs = self.inputs or padded(self.dim + features * (features + 1) // 2)
        self.tables = [draw.normal(0, 0.7, (rows, self.dim)).astype(np.float32) for rows in self.cardinalities]
        self.layers = {}
        for name, first, dims in (("bottom_mlp", padded(self.numerical), self.bottom_dims), ("top_mlp", self.inputs, self.top_dims)):
            sizes = itertools.pairwise((first, *dims))
            self.layers[name] = [
                (draw.normal(0, (2 / (m + n)) ** 0.5, (m, n)).astype(np.float32), draw.normal(0, 0.5, n).astype(np.float32)) for m, n in sizes
            ]

    def score(self, numerical, ids):
        """Return the probability of one sample from numerical `[M]` and ids `[F]`."""
        x = np.zeros(padded(self.numerical))
        x[: self.numerical] = numerical
        for kernel, bias in self.layers["bottom_mlp"]:
            x = np.maximum(x @ kernel.astype(float) + bias, 0)
        vectors = [x] + [self.tables[i][ids[i]].astype(float) for i in self.order]
        dots = [float(vectors[i] @ vectors[j]) for i in range(len(vectors)) for j in range(i)]
        joined = [*x, *dots] if self.bottom_first else [*dots, *x]
        y = np.array(joined + [0.0] * (self.inputs - len(joined)))
        for number, (kernel, bias) in enumerate(self.layers["top_mlp"], 1):
            y = y @ kernel.astype(float) + bias
            if number < len(self.layers["top_mlp"]):
                y = np.maximum(y, 0)
        return 1 / (1 + np.exp(-y[0]))


def scores(model, dataset):
    split = TfRawSplit(spec_in(dataset), "test")
    count = split.num_samples
    numerical = split.read_numerical(0, count).astype(float)
    ids = np.stack([split.read_ids(i, 0, count) for i in range(len(model.cardinalities))], axis=1)
    split.close()
    return np.array([model.score(*sample) for sample in zip(numerical, ids, strict=True)])


class DenseModel(tf.Module):
    """The dense part: two lists of layers under NVIDIA's names."""

    def __init__(self, model):
        super().__init__()
        self.bottom_mlp_layers = [Dense(*layer) for layer in model.layers["bottom_mlp"]]
        self.top_mlp = [Dense(*layer) for layer in model.layers["top_mlp"]]


def write_current(folder, model, interaction="dot_tensorflow", concat_embedding=False, limit_gb=75, newer=False):
    """Write a checkpoint as DLRM_and_DCNv2 does. Its call of Keras 2's `save_weights` is a `tf.train.Checkpoint.write` of the model."""
    for name in ("dense", "sparse"):
        (folder / name).mkdir(parents=True)
    features = len(model.cardinalities)
    common = {"embedding_dim": [model.dim] * features, "categorical_cardinalities": list(model.cardinalities)}
    dims = {"bottom_mlp_dims": list(model.bottom_dims), "top_mlp_dims": list(model.top_dims), "num_numerical_features": model.numerical}
    dense = {"interaction": interaction, "transpose": False, "num_cross_layers": 3, "cross_layer_projection_dim": 512, "batch_size": 65536, **dims}
    sparse = {"use_mde_embeddings": True, "column_slice_threshold": 10**10, "embedding_zeros_initializer": False, "embedding_trainable": True}
    sparse |= {"concat_embedding": concat_embedding, "cpu_offloading_threshold_gb": limit_gb}
    sparse |= {"data_parallel_input": False, "row_slice_threshold": 10**10, "data_parallel_threshold": None} if newer else {}
    (folder / "dense/config.json").write_text(json.dumps(common | dense, indent=4))
    (folder / "sparse/config.json").write_text(json.dumps(common | sparse, indent=4))
    tf.train.Checkpoint(root=DenseModel(model)).write(str(folder / "dense/dense"))
    for i, table in enumerate(concatenated(model.tables, limit_gb * (10**9 if newer else 2**30)) if concat_embedding else model.tables):
        np.save(folder / f"sparse/feature_{i}.npy", table)
    return folder


def concatenated(tables, limit):
    """Return the arrays of DualEmbeddingGroup: the smallest tables as one, up to a limit of bytes, then the others one by one."""
    sizes = np.array([table.nbytes for table in tables])
    by_size = np.argsort(sizes)
    exceed = (np.cumsum(sizes[by_size]) > limit).tolist()
    first = exceed.index(True) if True in exceed else len(tables)
    fused = [np.concatenate([tables[i] for i in sorted(by_size[:first])])] if first else []
    return [*fused, *(tables[i] for i in sorted(by_size[first:]))]


def write_older(folder, model, part="", rows_a_part=None):
    """Write a checkpoint as older DLRM versions do; with `rows_a_part`, as the first version does."""
    folder.mkdir()
    for name, layers in model.layers.items():
        for i, layer in enumerate(layers):
            for kind, values in zip(("kernel", "bias"), layer, strict=True):
                np.save(folder / f"{name}_layer_{i}_{kind}{part}.npy", values)
    for i, table in enumerate(model.tables):
        if rows_a_part is None:
            np.save(folder / f"feature_{i}{part}.npy", table)
            continue
        for number, first in enumerate(range(0, len(table), rows_a_part)):
            np.save(folder / f"feature_{i}_{len(table)}_part{number}.npy", table[first : first + rows_a_part])
    return folder


# The same scores ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


BY_SIZE = (1, 0, 3, 2)  # 300, 50, 50, 7 rows
CUDA, TENSORFLOW = ("--dot_interaction", "custom_cuda"), ("--dot_interaction", "tensorflow")
FORMS = {
    "padded": (Model(), write_current, {}, ()),
    "padded by the CUDA kernel": (Model(), write_current, {"interaction": "dot_custom_cuda"}, ()),
    "without padding": (Model(numerical=8, dim=6, bottom_dims=(6,)), write_current, {}, ()),
    "one layer each": (Model(bottom_dims=(8,), top_dims=(1,)), write_current, {}, ()),
    "tables in one file": (Model(), write_current, {"concat_embedding": True}, ()),
    # 13,024 bytes of tables: 1.25e-5 of 2^30 bytes holds them all, of 10^9 bytes all but the largest
    "tables in one file, at the limit": (Model(), write_current, {"concat_embedding": True, "limit_gb": 1.25e-5}, ()),
    "largest table in its own file": (Model(), write_current, {"concat_embedding": True, "limit_gb": 1.25e-5, "newer": True}, ()),
    "all tables but one in their own files": (Model(), write_current, {"concat_embedding": True, "limit_gb": 5e-7}, ()),
    "all tables in their own files": (Model(), write_current, {"concat_embedding": True, "limit_gb": 0}, ()),
    "two tables in their own files": (Model(cardinalities=(50, 300, 7, 60)), write_current, {"concat_embedding": True, "limit_gb": 2e-6}, ()),
    "distributed embeddings": (Model(), write_older, {}, CUDA),
    "distributed embeddings, with part": (Model(), write_older, {"part": "_part0"}, CUDA),
    "distributed embeddings, bottom last": (Model(bottom_first=False), write_older, {}, TENSORFLOW),
    "largest table first": (Model(order=BY_SIZE), write_older, {"part": "_part0", "rows_a_part": 64}, CUDA),
    "largest first, padded by one": (Model(order=BY_SIZE, inputs=19), write_older, {"part": "_part0", "rows_a_part": 50}, CUDA),
    "largest first, bottom last": (Model(order=BY_SIZE, bottom_first=False), write_older, {"part": "_part0", "rows_a_part": 300}, TENSORFLOW),
}


@pytest.mark.parametrize("form", FORMS)
def test_imported_model_gives_nvidias_scores(call, tmp_path, dataset, form):
    model, write, options, flags = FORMS[form]
    if (model.numerical, model.cardinalities) != (3, CARDINALITIES):
        dataset = write_dataset(tmp_path / "dataset", model.numerical, model.cardinalities)
    source, target = write(tmp_path / "nvidia", model, **options), tmp_path / "ours"
    code, _, err = call(nvidia_checkpoint.main, *paths(source, dataset, target), *flags)
    assert (code, err) == (0, "")
    flags = ("--mode", "predict", "--cpu", "--log_path", "", "--valid_batch_size", 64, "--predictions_path", tmp_path / "predictions.parquet")
    code, _, err = call(dlrm.main, *flags, "--restore_checkpoint_path", target, "--dataset_path", dataset)
    assert code == 0, err
    expected = scores(model, dataset)
    assert expected.std() > 0.05  # the scores vary enough to tell one model from another
    np.testing.assert_allclose(pl.read_parquet(tmp_path / "predictions.parquet")["score"].to_numpy(), expected, atol=1e-5, rtol=0)


def test_fixture_variables_have_the_names_of_keras_2(tmp_path):
    # TensorFlow 2.12 writes these names for a subclassed Keras model with these two lists of Dense layers
    write_current(tmp_path / "nvidia", Model())
    layers = [("bottom_mlp_layers", 0), ("bottom_mlp_layers", 1), ("top_mlp", 0), ("top_mlp", 1), ("top_mlp", 2)]
    expected = {f"{name}/{i}/{kind}/.ATTRIBUTES/VARIABLE_VALUE" for name, i in layers for kind in ("kernel", "bias")}
    assert {name for name, _ in tf.train.list_variables(str(tmp_path / "nvidia/dense/dense"))} == expected | {"_CHECKPOINTABLE_OBJECT_GRAPH"}


def test_rows_of_the_first_top_kernel_worked_out_by_hand():
    assert top_rows([0, 1], 2, bottom_first=True).tolist() == [0, 1, 2, 3, 4]
    # theirs: pairs (a,bottom) (b,bottom) (b,a), then the bottom output; ours: bottom output, then the pairs
    assert top_rows([0, 1], 2, bottom_first=False).tolist() == [3, 4, 0, 1, 2]
    # theirs in the order b, c, a: (b,bottom) (c,bottom) (c,b) (a,bottom) (a,b) (a,c); ours: (a,bottom) (b,bottom) (b,a) (c,bottom) (c,a) (c,b)
    assert top_rows([1, 2, 0], 1, bottom_first=True).tolist() == [0, 4, 1, 5, 2, 6, 3]


def test_rows_are_read_across_parts():
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    parts = [Weight("", part) for part in np.split(table, [3, 4, 9])]
    for start, stop in itertools.combinations(range(11), 2):
        assert_array_equal(rows_of_parts(parts, start, stop), table[start:stop])


# As its users run it ------------------------------------------------------------------------------------------------------


def test_import_in_a_child_process_and_evaluation_without_model_flags(call, tmp_path, dataset):
    source = write_current(tmp_path / "nvidia", Model())
    result = run("-m", nvidia_checkpoint.NAME, *paths(source, dataset, tmp_path / "ours"))
    size = "4 tables of 8 columns, 3,256 parameters; bottom MLP 16,8, top MLP 12,5,1"
    assert (result.returncode, result.stdout, result.stderr) == (0, f"written: {tmp_path}/ours/step-00000000: {size}\n", "")
    restored = "--restore_checkpoint_path", tmp_path / "ours", "--dataset_path", dataset
    code, out, err = call(dlrm.main, "--mode", "eval", "--cpu", "--valid_batch_size", 64, "--log_path", "", *restored)
    assert code == 0 and "200 samples" in out, err


def test_help_loads_no_tensorflow():
    assert "--dot_interaction" in help_of(nvidia_checkpoint.NAME)


@pytest.fixture
def imported(call, tmp_path, dataset):
    source = write_current(tmp_path / "nvidia", Model())
    assert call(nvidia_checkpoint.main, *paths(source, dataset, tmp_path / "ours"))[0] == 0
    return tmp_path / "ours"


TRAIN = ("--cpu", "--log_path", "", "--max_steps", 3, "--batch_size", 64, "--valid_batch_size", 64, "--warmup_steps", 0, "--optimizer", "adam")


def test_manifest_keeps_the_options_that_runs_inherit(imported, dataset):
    manifest = Checkpoint(imported).manifest
    dims = {"embedding_dim": 8, "bottom_mlp_dims": [16, 8], "top_mlp_dims": [12, 5, 1], "hash_indices": False, "max_table_size": None}
    assert (manifest["step"], manifest["config"]) == (0, dims)
    categorical = {f"cat_{i}": rows for i, rows in enumerate(CARDINALITIES)}
    assert manifest["features"] == {"numerical": ["num_0", "num_1", "num_2"], "categorical": categorical}


def test_training_continues_from_the_weights(call, tmp_path, imported, dataset):
    flags = (*TRAIN, "--dataset_path", dataset, "--restore_checkpoint_path", imported, "--resume", "weights")
    for rate, target in ((1e-30, tmp_path / "same"), (0.01, tmp_path / "trained")):
        code, _, err = call(dlrm.main, *flags, "--learning_rate", rate, "--save_checkpoint_path", target)
        assert code == 0, err
    before, same, after = (Checkpoint(path) for path in (imported, tmp_path / "same", tmp_path / "trained"))
    for name in before.names(""):
        assert_array_equal(same.read(name), before.read(name), name)
        assert not np.array_equal(after.read(name), before.read(name)), name


def test_imported_checkpoint_has_no_training_position(call, imported, dataset):
    code, _, err = call(dlrm.main, *TRAIN, "--dataset_path", dataset, "--restore_checkpoint_path", imported)
    assert code == 1 and "has no training position to resume from; use --resume weights to take its weights and start at step 0" in err


# Errors -------------------------------------------------------------------------------------------------------------------


CURRENT = {
    "cross": (edit("dense/config.json", interaction="cross"), "interaction cross with 3 cross layers, but dense holds the weights of 0; expected"),
    "unknown interaction": (edit("dense/config.json", interaction="dummy"), "interaction 'dummy', expected dot_custom_cuda, dot_tensorflow or cross"),
    "other numericals": (edit("dense/config.json", num_numerical_features=8), "config.json: 8 numerical features, but the dataset has 3; give the"),
    "no dense config": (remove("dense/config.json"), "dense/config.json: No such file or directory; expected the folders dense and sparse"),
    "bad config": (write("sparse/config.json", b"{"), "sparse/config.json: Expecting property name"),
    "config of another kind": (write("sparse/config.json", b"[]"), "sparse/config.json: expected a JSON object, found list"),
    "no index": (remove("dense/dense.index"), "dense/dense.index or "),
    "no data": (remove("dense/dense.data-00000-of-00001"), "dense.data-*: missing; expected a TensorFlow checkpoint of the dense layers"),
    "bad index": (write("dense/dense.index", b"x" * 99), "dense/dense.index: TensorFlow cannot read it: "),
    "cut data": (write("dense/dense.data-00000-of-00001", b""), "dense/dense.index: TensorFlow cannot read it: "),
    "other data": (write("dense/dense.data-00000-of-00001", bytes(9999)), "dense/dense.index: TensorFlow cannot read it: "),
    "no table": (remove("sparse/feature_2.npy"), "sparse: the table of feature cat_2, feature_2….npy, is missing; expected 4 tables"),
    "table too many": (write("sparse/feature_4.npy", b""), "feature_4.npy: not a complete NumPy file"),
    "cut table": (cut("sparse/feature_1.npy"), "sparse/feature_1.npy: not a complete NumPy file: mmap length is greater than file size"),
    "objects": (resave("sparse/feature_1.npy", lambda table: table.astype(object)), "sparse/feature_1.npy: not a complete NumPy file"),
    "fewer rows": (resave("sparse/feature_1.npy", lambda table: table[1:]), "feature_1.npy: 299 rows, but feature cat_1 has cardinality 300 in "),
    "more rows": (
        resave("sparse/feature_0.npy", lambda table: np.tile(table, (2, 1))),
        "feature_0.npy: 100 rows, but feature cat_0 has cardinality 50",
    ),
    "wider table": (resave("sparse/feature_3.npy", lambda table: np.pad(table, ((0, 0), (0, 1)))), "shape [50, 9], expected [rows, 8], the same"),
    "flat table": (resave("sparse/feature_3.npy", np.ravel), "feature_3.npy: shape [400], expected [rows, 8]"),
    "float16": (resave("sparse/feature_3.npy", lambda table: table.astype(np.float16)), "sparse/feature_3.npy: float16, expected float32"),
}
OLDER = {
    "no files": (remove("*"), "holds no checkpoint of NVIDIA's models; expected the folders dense and"),
    "missing part": (remove("feature_1_300_part1.npy"), "the table of feature cat_1, feature_1….npy, has only the parts [0, 2, 3, 4]"),
    "missing last part": (remove("feature_1_300_part4.npy"), "feature_1_300_part0.npy: 256 rows, but feature cat_1 has cardinality 300 in "),
    "two checkpoints": (write("feature_1.npy", b""), "feature_1.npy: not a complete NumPy file"),
    "table of another checkpoint": (
        lambda folder: np.save(folder / "feature_1.npy", np.zeros(3)),
        "9 files for 8 tables or parts of tables: it holds more",
    ),
    "extra table": (lambda folder: np.save(folder / "feature_4_9_part0.npy", np.zeros(9)), "_part0.npy: one table too many, since the dataset has 4"),
    "no bias": (remove("top_mlp_layer_1_bias_part0.npy"), "layer 1 of the top_mlp has no bias"),
    "no layer": (remove("top_mlp_layer_0*"), "layer 0 of the top_mlp has no kernel; expected a checkpoint of NVIDIA's DLRM"),
    "float16": (resave("top_mlp_layer_1_bias_part0.npy", np.float16), "top_mlp_layer_1_bias_part0.npy: float16, expected float32"),
    "other inputs": (resave("bottom_mlp_layer_0_kernel_part0.npy", lambda kernel: kernel[:5]), "shape [5, 16], expected 3 or 8 rows for the data"),
    "other features": (resave("top_mlp_layer_0_kernel_part0.npy", lambda kernel: kernel[1:]), "shape [23, 12], expected 18 or 19 or 24 rows"),
    "other layer": (resave("top_mlp_layer_1_kernel_part0.npy", lambda kernel: kernel[1:]), "shape [11, 5], expected 12 rows"),
    "flat kernel": (resave("top_mlp_layer_1_kernel_part0.npy", np.ravel), "top_mlp_layer_1_kernel_part0.npy: shape [60], expected 12 rows"),
    "other bias": (resave("top_mlp_layer_1_bias_part0.npy", lambda bias: bias[1:]), "shape [4], expected [5], one for each column of the kernel"),
    "five outputs": (remove("top_mlp_layer_2*"), "top_mlp_layer_1_kernel_part0.npy: 5 columns, expected 1 in the last layer of the top_mlp"),
    "wide bottom": (remove("bottom_mlp_layer_1*"), "bottom_mlp_layer_0_kernel_part0.npy: 16 columns, expected 8 in the last layer of the bottom_mlp"),
    "not finite": (resave("feature_2_7_part0.npy", lambda table: table * np.nan), "tables/cat_2/weights: holds weights that are not finite"),
}


@pytest.mark.parametrize("damage", CURRENT)
def test_damaged_checkpoint_is_a_one_line_error(call, tmp_path, dataset, damage):
    change, message = CURRENT[damage]
    source = write_current(tmp_path / "nvidia", Model())
    change(source)
    check_refused(call, source, dataset, message)


@pytest.mark.parametrize("damage", OLDER)
def test_damaged_older_checkpoint_is_a_one_line_error(call, tmp_path, dataset, damage):
    change, message = OLDER[damage]
    source = write_older(tmp_path / "nvidia", Model(order=BY_SIZE), "_part0", 64)
    change(source)
    check_refused(call, source, dataset, message, *CUDA)


def test_concatenated_tables_of_other_cardinalities_are_rejected(call, tmp_path, dataset):
    source = write_current(tmp_path / "nvidia", Model(cardinalities=(300, 50, 7, 50)), concat_embedding=True)
    check_refused(call, source, dataset, "the table of feature cat_1, feature_1….npy, is missing")


CONCATENATED = {
    "tables of equal size": (2e-6, lambda folder: None, "left some of several tables of 1600 bytes on the CPU; the checkpoint does not say"),
    "missing file": (
        4e-6,
        remove("sparse/feature_1.npy"),
        "feature_0.npy and the files after it: [107] rows, expected [107, 300] by --concat_embedding for tables of 50, 300",
    ),
    "other rows": (
        4e-6,
        resave("sparse/feature_0.npy", lambda table: table[1:]),
        "feature_0.npy and the files after it: [106, 300] rows, expected [107, 300] by",
    ),
    "limit is no number": (
        4e-6,
        edit("sparse/config.json", cpu_offloading_threshold_gb=None),
        "cpu_offloading_threshold_gb is None, expected a number",
    ),
}


@pytest.mark.parametrize("case", CONCATENATED)
def test_concatenated_tables_that_cannot_be_separated_are_a_one_line_error(call, tmp_path, dataset, case):
    limit_gb, change, message = CONCATENATED[case]
    source = write_current(tmp_path / "nvidia", Model(), concat_embedding=True, limit_gb=limit_gb)
    change(source)
    check_refused(call, source, dataset, message)


def test_dot_interaction_is_required_only_where_it_is_not_recorded(call, tmp_path, dataset):
    older = write_older(tmp_path / "older", Model())
    check_refused(call, older, dataset, "give --dot_interaction as in training: custom_cuda (that application's default) or tensorflow")
    message = "dense/config.json says dot_tensorflow; drop the flag"
    check_refused(call, write_current(tmp_path / "nvidia", Model()), dataset, message, *CUDA)


def test_other_mistakes(call, tmp_path, dataset, imported):
    nothing = tmp_path / "nothing"
    assert f"--nvidia_checkpoint {nothing}: no such folder" in call(nvidia_checkpoint.main, *paths(nothing, dataset, tmp_path / "new"))[2]
    code, _, err = call(nvidia_checkpoint.main, *paths(tmp_path / "nvidia", dataset, imported))
    assert code == 1 and f"--save_checkpoint_path {imported}: already holds a checkpoint; choose another folder" in err
    assert "no such file; expected a feature specification" in call(nvidia_checkpoint.main, *paths(tmp_path / "nvidia", nothing, tmp_path / "new"))[2]
    with pytest.raises(UserError, match="--save_checkpoint_path"):
        do(nvidia_checkpoint, "--nvidia_checkpoint", "a", "--dataset_path", "b")
