"""A model small enough to check by other means, its batches, and a slow reference for its training step."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dataloading.batches import Batch
from model.build import Precision, build_model
from model.embedding.placement import single
from run.tables import tables_of
from training.build import build_trainer
from training.device_batch import TensorBatch, to_device
from training.report import StepReport, WorkerReport
from training.state import arrays, parts
from utils.config.config import Config
from utils.dialects.command_line import parse
from utils.distributed import World


class Table(NamedTuple):
    """A categorical feature."""

    name: str
    num_rows: int


TABLES = (Table("user", 7), Table("item", 5), Table("page", 3))
NUM_NUMERICAL = 2
ROWS = {table.name: table.num_rows for table in TABLES}
NUMERICAL = tuple(f"num_{i}" for i in range(NUM_NUMERICAL))
DIMS = ("--embedding_dim", "4", "--bottom_mlp_dims", "6,4", "--top_mlp_dims", "5,1")


def config(*flags: str) -> Config:
    """Return the options of a tiny run."""
    return parse(["--dataset_type", "synthetic", "--cpu", *DIMS, *flags], "")


def model_and_trainer(*flags: str, dtype: str = "float32", seed: int = 3, hosted: int = 0, partial: bool = False):
    """Build a model and its trainer; the first `hosted` tables are placed in host memory, and with `partial` checkpoints store their touched rows."""
    options = config(*flags)
    names = [table.name for table in TABLES]
    tables = tables_of(options, names, [table.num_rows for table in TABLES])
    placement = single([replace(table, partial=partial) for table in tables])
    placement = replace(placement, hosted=(frozenset(placement.workers[0][:hosted]),))
    model = build_model(options.model, placement, World(), NUM_NUMERICAL, seed, Precision(dtype, options.device.xla))
    return model, build_trainer(options, model, dtype)


def batch(size: int, real: int | None = None, seed: int = 0) -> TensorBatch:
    """Draw a random batch; from row `real` on it is padded with its last real row."""
    draw, real = np.random.default_rng(seed), size if real is None else real
    rows = np.minimum(np.arange(size), real - 1)
    ids = np.stack([draw.integers(0, table.num_rows, size) for table in TABLES]).astype(np.int32)[:, rows]
    numerical = draw.random((size, NUM_NUMERICAL)).astype(np.float16)[rows]
    labels = draw.integers(0, 2, size).astype(np.uint8)[rows]
    return to_device(Batch(numerical, ids, no_ids(size), labels, (np.arange(size) < real).astype(np.float32), real))


def sample(tensors: TensorBatch, count: int | None = None) -> tuple[np.ndarray, ...]:
    """Return the first `count` rows of numericals, ids and labels, or all, as the slow reference takes them."""
    return tensors.inputs.numerical.numpy()[:count], tensors.inputs.ids.numpy()[:, :count], tensors.inputs.labels.numpy()[:count]


def report_of(trainer, tensors: TensorBatch, step: int, rate: float, mine: WorkerReport | None = None, *measured: bool) -> StepReport:
    """Train a step; return its report."""
    return StepReport.unpack(trainer.reporting_step(tensors, step, rate, mine or WorkerReport(), *measured).numpy())


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], said: str = "", rtol: float = 1e-4, atol: float = 2e-6) -> None:
    """Raise AssertionError where arrays differ from those of the same names; the message has `said` and the name."""
    assert found.keys() == expected.keys(), said
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, atol=atol, err_msg=f"{said} {name}")


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Raise AssertionError where arrays are not those of the same names."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def no_ids(size: int) -> np.ndarray:
    """Return an array of ids without features, `[0, B]`."""
    return np.empty((0, size), np.int32)


def weights(model, groups=None) -> dict[str, np.ndarray]:
    """Return every weight by its checkpoint name, and with groups their slots."""
    shapes = arrays(model, groups)
    return {part.array: np.array(part.read(0, shapes[part.array].shape[0])) for part in parts(model, groups)}


def slow_loss(values, numerical, ids, labels, drop=lambda x, layer: x, embedding_l2=0.0, mlp_l2=0.0):
    """Return the mean loss of a plainly written DLRM, regularisation terms included; `values` are float64 weights by checkpoint name."""

    def mlp(name, x, last):
        count = sum(key.startswith(f"dense/{name}/") for key in values) // 2
        for i in range(count):
            x = x @ values[f"dense/{name}/{i}/kernel"] + values[f"dense/{name}/{i}/bias"]
            x = tf.nn.relu(x) if i < count - 1 or last else x
            x = drop(x, f"{name}/{i}") if i < count - 1 else x
        return x

    bottom = mlp("bottom_mlp", tf.constant(numerical, tf.float64), True)
    z = [bottom, *(tf.gather(values[f"tables/{table.name}/weights"], column) for table, column in zip(TABLES, ids, strict=True))]
    side_by_side, beside = tf.concat(z, axis=1), joined(values, z)
    last = sum(key.startswith("dense/top_mlp/") for key in values) // 2 - 1
    if last and values[f"dense/top_mlp/{last}/kernel"].shape[0] > values[f"dense/top_mlp/{last - 1}/kernel"].shape[1]:  # parallel cross layers
        hidden = side_by_side
        for i in range(last):
            hidden = tf.nn.relu(hidden @ values[f"dense/top_mlp/{i}/kernel"] + values[f"dense/top_mlp/{i}/bias"])
            hidden = drop(hidden, f"top_mlp/{i}")
        both = tf.concat([beside, hidden], axis=1)
        logits = (both @ values[f"dense/top_mlp/{last}/kernel"] + values[f"dense/top_mlp/{last}/bias"])[:, 0]
    else:
        logits = mlp("top_mlp", beside, False)[:, 0]
    terms = embedding_l2 / 2 * tf.reduce_mean(sum(tf.reduce_sum(vectors**2, axis=1) for vectors in z[1:]))
    terms += mlp_l2 / 2 * sum(tf.reduce_sum(value**2) for name, value in values.items() if name.endswith("kernel"))
    return tf.reduce_mean(tf.nn.softplus(logits) - tf.constant(labels, tf.float64) * logits) + terms


def joined(values, z):
    """Return the top MLP's input: the cross layers' output if there are any, concatenated vectors if the MLP has their width, else dot products."""
    side_by_side = tf.concat(z, axis=1)
    crosses = sum(key.startswith("dense/cross/") and key.endswith("bias") for key in values)
    last = side_by_side
    for i in range(crosses):
        parts = {key.removeprefix(f"dense/cross/{i}/"): value for key, value in values.items() if key.startswith(f"dense/cross/{i}/")}
        if "w/kernel" in parts:
            last = side_by_side * (last @ parts["w/kernel"] + parts["w/bias"]) + last
        else:
            last = side_by_side * (last @ parts["v/kernel"] @ parts["u/kernel"] + parts["u/bias"]) + last
    if crosses or values["dense/top_mlp/0/kernel"].shape[0] == side_by_side.shape[1]:
        return last
    dots = [tf.reduce_sum(z[i] * z[j], axis=1, keepdims=True) for i in range(len(z)) for j in range(i)]
    return tf.concat([z[0], *dots], axis=1)


def slow_gradients(values: dict[str, np.ndarray], numerical, ids, labels, **terms) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss and the dense gradients, tables included, by TensorFlow's autodiff in float64."""
    tensors = {name: tf.constant(value, tf.float64) for name, value in values.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = slow_loss(tensors, numerical, ids, labels, **terms)
    gradients = tape.gradient(loss, tensors)
    return float(loss), {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in gradients.items()}
