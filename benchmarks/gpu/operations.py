"""Analysis of a step's graph as a GPU would run it: operations without GPU kernels, and tensors that pass through host memory.

A part that XLA compiles counts as one launch and is not analysed further. Functions that XLA does not compile are, because TensorFlow inlines them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from benchmarks.gpu.kernels import Kernel

LARGE = 1024  # bytes; larger tensors must not be copied between host and device inside a step
HOST, DEVICE = "host", "device"
_ARGUMENTS = ("Placeholder", "_Arg")
_FREE = ("Const", "Identity", "IdentityN", "NoOp", *_ARGUMENTS)  # operations that launch nothing in a step
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf")


@dataclass
class Findings:
    """The findings about one graph."""

    operations: Counter = field(default_factory=Counter)  # outside the compiled parts, by type; of a condition, the branch that is taken
    compiled: int = 0  # number of compiled parts
    without_kernel: list[str] = field(default_factory=list)
    transfers: list[str] = field(default_factory=list)  # copies of more than LARGE bytes
    hosted: list[str] = field(default_factory=list)  # such copies to and from operations that are placed on the host

    @property
    def count(self) -> int:
        """The number of operations outside the compiled parts."""
        return self.operations.total()


def findings(graph: tf.Graph, kernels: Mapping[str, Sequence[Kernel]]) -> Findings:
    """Analyse a graph whose arguments are in device memory, except those of int32 and strings.

    Raises:
        KeyError: `kernels` lacks an operation.
    """
    found = Findings()
    _Walk(found, kernels).over(graph, {})
    return found


class _Walk:
    """A walk over the operations in order; the memory of each tensor follows from the operation that made it."""

    def __init__(self, found: Findings, kernels: Mapping[str, Sequence[Kernel]]):
        self._found, self._kernels = found, kernels

    def over(self, graph: tf.Graph, arguments: Mapping[str, str]) -> dict[str, str]:
        """Walk over a graph and return the memory of each tensor, HOST or DEVICE, by name; `arguments` gives that of some arguments."""
        places: dict[str, str] = {}
        for op in graph.get_operations():
            places |= {output.name: place for output, place in zip(op.outputs, self._outputs(op, places, arguments), strict=True)}
        return places

    def _outputs(self, op: tf.Operation, places: Mapping[str, str], arguments: Mapping[str, str]) -> list[str]:
        by_dtype = [_usual(output.dtype) for output in op.outputs]
        if op.type in _ARGUMENTS:
            return [arguments.get(output.name, place) for output, place in zip(op.outputs, by_dtype, strict=True)]
        if op.type.startswith("Identity"):
            return [places[value.name] for value in op.inputs]
        if op.type in _FREE:
            return by_dtype
        if op.type in _CALLS:
            return self._call(op, places)
        if op.type in _BRANCHES:
            self._found.operations[op.type] += 1
            self._needs(op, op.inputs[0], HOST, places)
            self._inside(op, "then_branch", op.inputs[1:], places)
            return by_dtype
        self._found.operations[op.type] += 1
        if "CPU" in op.device:
            for value in op.inputs:
                self._needs(op, value, HOST, places, self._found.hosted)
            return [HOST] * len(op.outputs)
        return self._kernel(op, places)

    def _kernel(self, op: tf.Operation, places: Mapping[str, str]) -> list[str]:
        """Return the memory of the outputs of an operation, which the first kernel that accepts its dtypes runs."""
        dtypes = {one.name: op.get_attr(one.name).name for one in op.op_def.attr if one.type == "type"}
        kernel = next((one for one in self._kernels[op.type] if one.takes(dtypes)), None)
        if kernel is None:
            self._found.without_kernel.append(f"{op.type} ({', '.join(dtypes.values())}): {op.name}")
            return [HOST] * len(op.outputs)
        for name, value in zip(_flat(op.op_def.input_arg, op), op.inputs, strict=True):
            self._needs(op, value, HOST if name in kernel.host else DEVICE, places)
        return [HOST if name in kernel.host else DEVICE for name in _flat(op.op_def.output_arg, op)]

    def _call(self, op: tf.Operation, places: Mapping[str, str]) -> list[str]:
        if _definition(op, "f").attr["_XlaMustCompile"].b:
            self._found.compiled += 1
            for value in op.inputs:
                self._needs(op, value, _usual(value.dtype), places)
            return [_usual(output.dtype) for output in op.outputs]
        return self._inside(op, "f", op.inputs, places)

    def _inside(self, op: tf.Operation, attribute: str, inputs: Sequence[tf.Tensor], places: Mapping[str, str]) -> list[str]:
        """Walk over a function and return the memory of its results."""
        inner = function_def_to_graph(_definition(op, attribute), input_shapes=[value.shape for value in inputs])
        found = self.over(inner, {mine.name: places[value.name] for mine, value in zip(inner.inputs, inputs, strict=True)})
        return [found[output.name] for output in inner.outputs]

    def _needs(self, op: tf.Operation, value: tf.Tensor, place: str, places: Mapping[str, str], into: list[str] | None = None) -> None:
        """Record a copy where a value is not in the needed memory."""
        if value.dtype in (tf.resource, tf.variant) or places[value.name] == place:
            return
        size = value.shape.num_elements()
        if size is None or size * value.dtype.size > LARGE:
            by_host = value.op.device and "CPU" in value.op.device
            target = self._found.hosted if by_host else self._found.transfers if into is None else into
            target.append(f"{value.dtype.name} {value.shape} to the {place} for {op.type}: {op.name}")


def _usual(dtype: tf.DType) -> str:
    """Return the memory in which TensorFlow keeps a function's arguments and results of a dtype."""
    return HOST if dtype in (tf.int32, tf.string, tf.resource) else DEVICE


def _definition(op: tf.Operation, attribute: str):
    return context.context().get_function_def(op.get_attr(attribute).name)


def _flat(arguments, op: tf.Operation) -> list[str]:
    """Return the argument's name for each tensor of an operation."""
    names = []
    for one in arguments:
        count = op.get_attr(one.number_attr) if one.number_attr else len(op.get_attr(one.type_list_attr)) if one.type_list_attr else 1
        names += [one.name] * count
    return names
