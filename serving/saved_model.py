"""A model as a TensorFlow SavedModel: each weight once, tables from files of any size in little memory."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from serving.description import CATEGORICAL, NUMERICAL, PROBABILITY, ServedModel
from serving.graph import Graph
from utils.checkpoint.links import link
from utils.serving_options import BFLOAT16, FLOAT16, INT8

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_STORED = {BFLOAT16: tf.bfloat16, FLOAT16: tf.float16, INT8: tf.uint8}


def write_saved_model(model: ServedModel, folder: Path) -> None:
    """Write the SavedModel, its tables hard links of the model's files where the file system has them.

    Signature `serving_default`: `numerical` float32 `[B, M]` (where M > 0) and `categorical` int64 `[B, K]` -> `probability` float32 `[B, 1]`.

    Args:
        model: what to write.
        folder: is made.

    Raises:
        OSError: it cannot be written.
    """
    graph = Graph(model)
    specs = [tf.TensorSpec([None, model.ids], tf.int64, CATEGORICAL)]
    if model.numerical:
        specs.insert(0, tf.TensorSpec([None, len(model.numerical)], tf.float32, NUMERICAL))

    def score(*inputs):
        return {PROBABILITY: graph.probabilities(inputs[0] if model.numerical else None, inputs[-1])}

    graph.score = tf.function(score, input_signature=specs, autograph=False)
    tf.saved_model.save(graph, str(folder), signatures={"serving_default": graph.score.get_concrete_function()})
    fill_tables(model, folder)


def fill_tables(model: ServedModel, folder: Path) -> None:
    """Put the tables' rows into a SavedModel that was written of a `Graph`, whose tables have one."""
    files = {}
    for place, table in enumerate(model.tables):
        rows, scales = model.files(table)
        files[f"tables/{place}{_VALUE}"] = rows, _STORED.get(model.precision, tf.float32), (table.rows, table.dim)
        if scales:
            files[f"scales/{place}{_VALUE}"] = scales, tf.float32, (table.rows, 2)
    variables = folder / "variables"
    _replaced(variables, files)


def _replaced(variables: Path, files: Mapping[str, tuple[Path, tf.DType, tuple[int, int]]]) -> None:
    """Write the bundle of variables anew, those of `files` each in a file of its own, with which theirs then share the data.

    A bundle's data file holds the values of its variables and nothing else, so that of one variable is the table's file, byte by byte; its index
    has the checksum, for which the values are read once.
    """
    before, parts = str(variables / "variables"), variables.parent / ".parts"
    reader = tf.train.load_checkpoint(before)
    kinds, small = reader.get_variable_to_dtype_map(), sorted(set(reader.get_variable_to_shape_map()) - set(files))
    values = tf.raw_ops.RestoreV2(prefix=before, tensor_names=small, shape_and_slices=[""] * len(small), dtypes=[kinds[name] for name in small])
    prefixes = [str(parts / "small")]
    parts.mkdir()
    tf.raw_ops.SaveV2(prefix=prefixes[0], tensor_names=small, shape_and_slices=[""] * len(small), tensors=values)
    for number, (name, (path, dtype, shape)) in enumerate(files.items()):
        prefixes.append(str(parts / f"table_{number}"))
        tf.raw_ops.SaveV2(prefix=prefixes[-1], tensor_names=[name], shape_and_slices=[""], tensors=[_mapped(path, dtype, shape)])
        data = Path(f"{prefixes[-1]}.data-00000-of-00001")
        if data.stat().st_size != path.stat().st_size:
            raise OSError(f"{data}: {data.stat().st_size} bytes, expected the {path.stat().st_size} of {path}")
        data.unlink()
        link(path, data)
    shutil.rmtree(variables)
    variables.mkdir()
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=before, delete_old_dirs=False)
    shutil.rmtree(parts)


def _mapped(path: Path, dtype: tf.DType, shape: tuple[int, int]) -> tf.Tensor:
    """A file as a tensor that is not copied."""
    kind = np.dtype(f"u{dtype.size}") if dtype in (tf.bfloat16, tf.float16) else np.dtype(dtype.as_numpy_dtype)
    mapped = np.memmap(path, kind, "c", shape=shape)  # DLPack takes no read-only arrays; nothing is written
    tensor = tf.experimental.dlpack.from_dlpack(np.asarray(mapped).__dlpack__())
    return tf.bitcast(tensor, dtype) if tensor.dtype != dtype else tensor
