"""Export of a model as an ONNX graph with external files for its tables, without a converter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from model.embedding.table import MEAN, Feature
from model.layers.interaction import pair_indices
from serving.description import CATEGORICAL, ID_WEIGHTS, NUMERICAL, PROBABILITY, ServedModel
from utils.checkpoint.links import clone
from utils.config.serving import BFLOAT16, FLOAT16, INT8

OPSET = 18
FILE = "model.onnx"
_IR_VERSION = 9  # supported by ONNX Runtime since 2023
_CLIP, _HASH = "clip", "hash"
_STORED = {BFLOAT16: TensorProto.BFLOAT16, FLOAT16: TensorProto.FLOAT16, INT8: TensorProto.UINT8}


def write_onnx(model: ServedModel, folder: Path) -> Path:
    """Write `model.onnx` and the tables' files beside it; return the path of `model.onnx`.

    The tables share the data of the model's files where the file system has reflinks: ONNX's own reader refuses hard links. Inputs are `numerical`
    float32 `[B, M]` (where M > 0), `categorical` int64 `[B, K]` and `id_weights` float32 `[B, W]` (where W > 0); the output is `probability` float32
    `[B, 1]`. Products are float32, whatever the precision of the tables. An id out of range fails the request, or is clipped or hashed, as exported.
    A numerical or a weight that is not finite, or a negative weight of a mean, gives NaN. Columns of features for training only may hold anything.

    Raises:
        OSError: the files cannot be written.
    """
    graph = _Graph(model, folder)
    path = folder / FILE
    onnx.save(graph.built(), path)
    onnx.checker.check_model(str(path))
    return path


class OnnxModel:
    """An ONNX model loaded in ONNX Runtime, its tables mapped.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def score(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return probabilities `[B]` float32."""
        return self._session.run([PROBABILITY], inputs)[0][:, 0]


class _Nodes:
    """Nodes and weights of a graph; each method returns the name of what it adds.

    Args:
        folder: folder of the files of weights that have their own.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._nodes: list = []
        self._weights: list = []

    def _add(self, operation: str, *inputs: str, **attributes) -> str:
        name = f"{operation.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operation, list(inputs), [name], name=name, **attributes))
        return name

    def _constant(self, values) -> str:
        return self._weight(np.asarray(values, getattr(values, "dtype", np.int64)))

    def _columns(self, values: str, first: int, stop: int) -> str:
        return self._add("Slice", values, self._constant([first]), self._constant([stop]), self._constant([1]))

    def _weight(self, values: np.ndarray) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(values) if values.ndim else values, name))
        return name

    def _external(self, name: str, source: Path, kind: int, rows: int, columns: int) -> str:
        """Add a weight in a file of its own, once; return its name."""
        if all(weight.name != name for weight in self._weights):
            target = self._folder / f"{name}.bin"
            clone(source, target)
            described = TensorProto(name=name, data_type=kind, dims=[rows, columns], data_location=TensorProto.EXTERNAL)
            for key, value in (("location", target.name), ("offset", "0"), ("length", str(source.stat().st_size))):
                described.external_data.add(key=key, value=value)
            self._weights.append(described)
        return name

    def _as_served(self, values: str, served: tuple[np.ndarray, np.ndarray] | None) -> str:
        """Put constants into the columns of features for training only."""
        return values if served is None else self._add("Where", self._constant(served[0]), self._constant(served[1]), values)


class _Graph(_Nodes):
    """A graph under construction, see `model.architectures.architecture.Operations`.

    Each method adds nodes and returns the name of the last node's output.
    """

    def __init__(self, model: ServedModel, folder: Path):
        super().__init__(folder)
        self._model, self.options, self.names = model, model.options, [feature.name for feature in model.features]

    def built(self) -> onnx.ModelProto:
        """Build the whole model."""
        model = self._model
        categorical, vectors = self._as_served(CATEGORICAL, model.served_ids), []
        for place, feature, columns, of_weights in zip(model.table_of, model.features, model.id_columns, model.weight_columns, strict=True):
            ids, weights = self._columns(categorical, *columns), self._columns(ID_WEIGHTS, *of_weights) if feature.weights else None
            vectors.append(self._looked_up(feature, place, ids, weights))
        self.numerical, self.vectors = (self._rounded() if model.numerical else None), vectors
        self._nodes.append(helper.make_node("Sigmoid", [model.architecture.logits(self)], [PROBABILITY]))
        inputs = [(NUMERICAL, TensorProto.FLOAT, len(model.numerical))] if model.numerical else []
        inputs.append((CATEGORICAL, TensorProto.INT64, model.ids))
        inputs += [(ID_WEIGHTS, TensorProto.FLOAT, model.id_weights)] if model.id_weights else []
        given = [helper.make_tensor_value_info(name, kind, ["B", width]) for name, kind, width in inputs]
        found = [helper.make_tensor_value_info(PROBABILITY, TensorProto.FLOAT, ["B", 1])]
        graph = helper.make_graph(self._nodes, "scorer", given, found, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION, producer_name="dlrm")

    def _looked_up(self, feature: Feature, place: int, ids: str, weights: str | None) -> str:
        """Look up ids `[B, h]`, with weights `[B, h]` if they have any -> `[B, D]`."""
        ids = self._in_range(feature, self._model.tables[place].rows, ids)
        if not feature.is_list:
            return self._rows(place, self._add("Squeeze", ids, self._constant([1])))
        zero = self._constant(np.float32(0))
        there = self._add("GreaterOrEqual", ids, self._constant(0))
        if weights is None:
            parts = self._add("Cast", there, to=TensorProto.FLOAT)  # what each id adds to the number that a mean divides by
        else:
            parts = self._sound_weights(feature, self._add("Where", there, weights, zero))
            there = self._add("Not", self._add("Equal", parts, zero))
        rows, parts = self._rows(place, self._add("Max", ids, self._constant(0))), self._add("Unsqueeze", parts, self._constant([2]))
        rows = rows if weights is None else self._add("Mul", rows, parts)  # [B, h, D]
        kept = self._add("Where", self._add("Unsqueeze", there, self._constant([2])), rows, zero)
        total = self._add("ReduceSum", kept, self._constant([1]), keepdims=0)
        if feature.pooling != MEAN:
            return total
        count = self._add("ReduceSum", parts, self._constant([1]), keepdims=0)
        return self._add("Div", total, self._add("Where", self._add("Equal", count, zero), self._constant(np.float32(1)), count))

    def _sound_weights(self, feature: Feature, weights: str) -> str:
        """Make invalid weights NaN, and those 0 that float32 holds with less precision."""
        zero, smallest = self._constant(np.float32(0)), self._constant(np.finfo(np.float32).smallest_normal)
        weights = self._add("Where", self._add("Less", self._add("Abs", weights), smallest), zero, weights)
        if feature.pooling == MEAN:
            weights = self._add("Where", self._add("Less", weights, zero), self._constant(np.float32("nan")), weights)
        return self._add("Add", weights, self._add("Mul", weights, zero))  # infinity * 0 is NaN

    def _rows(self, place: int, ids: str) -> str:
        model, table = self._model, self._model.tables[place]
        rows, scales = model.files(table)
        found = self._add(
            "Gather", self._external(f"table_{place}", rows, _STORED.get(model.precision, TensorProto.FLOAT), table.rows, table.dim), ids
        )
        if model.precision in _STORED:
            found = self._add("Cast", found, to=TensorProto.FLOAT)
        if scales is None:
            return found
        scale = self._add("Gather", self._external(f"scales_{place}", scales, TensorProto.FLOAT, table.rows, 2), ids)
        factor, bias = (self._add("Gather", scale, self._constant([column]), axis=-1) for column in (0, 1))
        return self._add("Add", self._add("Mul", found, factor), bias)

    def _in_range(self, feature: Feature, rows: int, ids: str) -> str:
        """Make ids `[B, h]` valid. An id out of range becomes V, which Gather refuses; Gather would read −1 as the last row."""
        how, least = self._model.out_of_range, -1 if feature.is_list else 0
        if how == _CLIP:
            fitting = self._add("Min", self._add("Max", ids, self._constant(0)), self._constant(rows - 1))
        elif how == _HASH:
            fitting = self._add("Mod", ids, self._constant(rows))
        else:
            return self._add("Where", self._add("Less", ids, self._constant(least)), self._constant(rows), ids)
        return fitting if least == 0 else self._add("Where", self._add("Equal", ids, self._constant(-1)), ids, fitting)

    def _rounded(self) -> str:
        """Round numericals to the dataset's dtype; values that it cannot hold become NaN."""
        held = self._as_served(NUMERICAL, self._model.served_numerical)
        if self._model.numerical_dtype == "float16":
            held = self._add("Cast", self._add("Cast", held, to=TensorProto.FLOAT16), to=TensorProto.FLOAT)
        return self._add("Add", held, self._add("Mul", held, self._constant(np.float32(0))))  # infinity * 0 is NaN

    def mlp(self, name: str, inputs: str, beside: str | None = None) -> str:
        """Add an MLP. This method and the ones up to `summed` implement `Operations`."""
        layers = self._model.stack(name)
        for place, (kernel, bias) in enumerate(layers):
            if beside is not None and place == len(layers) - 1:
                inputs = self.concatenated([beside, inputs])
            inputs = self._dense(inputs, kernel, bias)
            inputs = inputs if self._model.gives_logits(name, place) else self._add("Relu", inputs)
        return inputs

    def cross(self, inputs: str) -> str:
        last = inputs
        for v, u, bias in self._model.crosses():
            crossed = self._dense(last if v is None else self._add("MatMul", last, self._weight(v)), u, bias)
            last = self._add("Add", self._add("Mul", inputs, crossed), last)
        return last

    def products(self, vectors: Sequence[str]) -> str:
        stacked = self._add("Concat", *(self._add("Unsqueeze", vector, self._constant([1])) for vector in vectors), axis=1)
        products = self._add("MatMul", stacked, self._add("Transpose", stacked, perm=[0, 2, 1]))
        flat = self._add("Reshape", products, self._constant([-1, len(vectors) ** 2]))
        return self._add("Gather", flat, self._constant(pair_indices(len(vectors))[0].astype(np.int64)), axis=1)

    def has(self, name: str) -> bool:
        return name in self._model.stacks

    def scaled(self, name: str) -> list[str]:
        vectors = self._model.vectors[name]
        columns = [self._add("Gather", self.numerical, self._constant([place]), axis=1) for place in range(len(vectors))]
        return [self._add("Mul", column, self._weight(vector)) for column, vector in zip(columns, vectors, strict=True)]

    def shifted(self, logits: str, name: str) -> str:
        return self._add("Add", logits, self._weight(self._model.intercepts[name]))

    def pair_sum(self, vectors: Sequence[str]) -> str:
        total, squares = self.summed(vectors), self.summed([self._add("Mul", vector, vector) for vector in vectors])
        twice = self._add("ReduceSum", self._add("Sub", self._add("Mul", total, total), squares), self._constant([1]), keepdims=1)
        return self._add("Mul", twice, self._constant(np.float32(0.5)))

    def gated(self, inputs: str, logits: str) -> str:
        return self._add("Mul", inputs, self._add("Mul", self._add("Sigmoid", logits), self._constant(np.float32(2))))

    def bilinear(self, left: str, right: str) -> str:
        return self.summed([self._head(place, kernel, left, right) for place, kernel in enumerate(self._model.heads())])

    def _head(self, place: int, kernel: np.ndarray, left: str, right: str) -> str:
        pieces = []
        for values, width in zip((left, right), kernel.shape, strict=True):
            bounds = (self._constant([place * width]), self._constant([(place + 1) * width]), self._constant([1]))
            pieces.append(self._add("Slice", values, *bounds))
        products = self._add("Mul", self._add("MatMul", pieces[0], self._weight(kernel)), pieces[1])
        return self._add("ReduceSum", products, self._constant([1]), keepdims=1)

    def concatenated(self, parts: Sequence[str]) -> str:
        return self._add("Concat", *parts, axis=1)

    def summed(self, parts: Sequence[str]) -> str:
        return self._add("Sum", *parts)

    def _dense(self, inputs: str, kernel: np.ndarray, bias: np.ndarray) -> str:
        return self._add("Gemm", inputs, self._weight(kernel), self._weight(bias))
