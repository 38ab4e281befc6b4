"""Export of a model as a TensorFlow SavedModel: each weight is stored once, and tables of any size need little memory."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from serving.description import CATEGORICAL, ID_WEIGHTS, NUMERICAL, PROBABILITY, ServedModel
from serving.graph import Graph
from serving.raw_graph import RawFeatures, RawGraph
from serving.triton_config import Tensor
from utils.checkpoint.links import link
from utils.config.serving import BFLOAT16, FLOAT16, INT8

_KINDS = {"FP32": tf.float32, "INT64": tf.int64, "STRING": tf.string}
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_STORED = {BFLOAT16: tf.bfloat16, FLOAT16: tf.float16, INT8: tf.uint8}


def write_saved_model(model: ServedModel, folder: Path, inputs: Sequence[Tensor], raw: RawFeatures | None = None) -> None:
    """Write the SavedModel; its tables are hard links to the model's files where the file system supports them.

    The signature `serving_default` takes `inputs` and returns `probability` float32 `[B, 1]`.

    Args:
        model: model to write.
        folder: folder to create.
        inputs: `numerical`, `categorical` and `id_weights` as far as the model has them, or columns of the log.
        raw: sources of the features in the log; None where the inputs are ids.

    Raises:
        UserError: an input has a name that is invalid in a signature.
        OSError: the files cannot be written.
    """
    graph = Graph(model)
    specs = [tf.TensorSpec([None, one.width], _KINDS[one.kind], one.name) for one in inputs]
    texts = folder.with_name(f".{folder.name}.vocabularies")  # TensorFlow copies them into the SavedModel
    graph.raw = RawGraph(raw.numerical, raw.categorical, model.numerical_dtype, texts) if raw else None

    def score(*given):
        by_name = {one.name: tensor for one, tensor in zip(inputs, given, strict=True)}
        if raw:
            return {PROBABILITY: graph.probabilities(*graph.raw.encoded(by_name))}
        return {PROBABILITY: graph.probabilities(by_name.get(NUMERICAL), by_name[CATEGORICAL], by_name.get(ID_WEIGHTS))}

    graph.score = tf.function(score, input_signature=specs, autograph=False)
    concrete = graph.score.get_concrete_function()
    tf.saved_model.save(graph, str(folder), signatures={"serving_default": concrete})
    shutil.rmtree(texts, ignore_errors=True)
    fill_tables(model, folder)


class LoadedModel:
    """A SavedModel loaded by TensorFlow.

    Args:
        folder: folder of the SavedModel.
    """

    def __init__(self, folder: Path):
        self._model = tf.saved_model.load(str(folder))
        self._score = self._model.signatures["serving_default"]

    @property
    def inputs(self) -> list[str]:
        """The names of the signature's inputs."""
        return sorted(self._score.structured_input_signature[1])

    def score(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return probabilities `[B]` float32."""
        return self._score(**{name: tf.convert_to_tensor(values) for name, values in inputs.items()})[PROBABILITY].numpy()[:, 0]


def fill_tables(model: ServedModel, folder: Path) -> None:
    """Insert the tables' rows into a SavedModel written from a `Graph`, whose tables have one row."""
    files = {}
    for place, table in enumerate(model.tables):
        rows, scales = model.files(table)
        files[f"tables/{place}{_VALUE}"] = rows, _STORED.get(model.precision, tf.float32), (table.rows, table.dim)
        if scales:
            files[f"scales/{place}{_VALUE}"] = scales, tf.float32, (table.rows, 2)
    variables = folder / "variables"
    _replaced(variables, files)


def _replaced(variables: Path, files: Mapping[str, tuple[Path, tf.DType, tuple[int, int]]]) -> None:
    """Rewrite the bundle of variables with each variable of `files` in a data file of its own, which shares the data of the table's file.

    A bundle's data file holds the values of its variables and nothing else, so with one variable it equals the table's file, byte by byte. The values
    are read once, for the checksum in the bundle's index.
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
    """Return a file as a tensor, without a copy."""
    kind = np.dtype(f"u{dtype.size}") if dtype in (tf.bfloat16, tf.float16) else np.dtype(dtype.as_numpy_dtype)
    mapped = np.memmap(path, kind, "c", shape=shape)  # copy-on-write, as DLPack takes no read-only arrays; nothing is written
    tensor = tf.experimental.dlpack.from_dlpack(np.asarray(mapped).__dlpack__())
    return tf.bitcast(tensor, dtype) if tensor.dtype != dtype else tensor
