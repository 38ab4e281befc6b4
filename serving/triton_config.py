"""`config.pbtxt`: Triton's configuration of a model."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from serving.description import CATEGORICAL, ID_WEIGHTS, NUMERICAL, PROBABILITY
from utils.config.serving import GPU, ONNX, SAVEDMODEL, TRITON, ExportConfig

ROWS = "ROWS"  # a parameter: rows of each feature's table, `300*6` for a table of 300 rows and 6 ids a sample
_ENGINES = {TRITON: 'backend: "python"', SAVEDMODEL: 'platform: "tensorflow_savedmodel"', ONNX: 'platform: "onnxruntime_onnx"'}
_INTERFACE = re.compile(r"^(?:input|output) \[\n.*?^\]\n", re.M | re.S)


class Tensor(NamedTuple):
    """An input or output tensor of a model, `[B, width]`. An optional input is not read; requests for Triton's Python backend may lack it."""

    name: str
    kind: str  # FP32, INT64 or STRING, which requests call BYTES
    width: int
    optional: bool = False


def inputs_of_ids(num_numerical: int, num_ids: int, num_weights: int = 0) -> list[Tensor]:
    """Return the inputs `numerical` `[B, M]` where M is not 0, `categorical` `[B, K]`, and `id_weights` `[B, W]` where W is not 0."""
    inputs = Tensor(NUMERICAL, "FP32", num_numerical), Tensor(CATEGORICAL, "INT64", num_ids), Tensor(ID_WEIGHTS, "FP32", num_weights)
    return [one for one in inputs if one.width or one.name == CATEGORICAL]


def inputs_of_columns(numbers: Mapping[str, bool], optional: Collection[str] = ()) -> list[Tensor]:
    """Return an input for each column of the log, numbers or texts."""
    return [Tensor(name, "FP32" if holds else "STRING", 1, name in optional) for name, holds in numbers.items()]


def inputs_of_form(inputs: Sequence[Tensor], form: str) -> list[Tensor]:
    """Return the inputs that a model has in a format: only Triton's Python backend knows optional ones."""
    return [one for one in inputs if form == TRITON or not one.optional]


def config_text(options: ExportConfig, form: str, inputs: Sequence[Tensor], parameters: Mapping[str, str]) -> str:
    """Return the text of a `config.pbtxt`.

    Args:
        options: options of the export.
        form: one of `FORMATS`.
        inputs: inputs of the model.
        parameters: parameters for the Python backend.
    """
    lines = [f"name: {_quoted(options.name_of(form))}", _ENGINES[form], f"max_batch_size: {options.max_batch_size}"]
    lines += _tensors("input", inputs_of_form(inputs, form)) + _tensors("output", [Tensor(PROBABILITY, "FP32", 1)])
    kind = "KIND_GPU" if options.device == GPU else "KIND_CPU"
    lines.append(f"instance_group [ {{ count: {options.instances} kind: {kind} }} ]")
    if options.max_queue_delay_us:
        sizes = ", ".join(map(str, options.preferred))
        lines.append(f"dynamic_batching {{ preferred_batch_size: [ {sizes} ] max_queue_delay_microseconds: {options.max_queue_delay_us} }}")
    lines += [f"parameters: {{ key: {_quoted(name)} value: {{ string_value: {_quoted(value)} }} }}" for name, value in parameters.items()]
    return "\n".join(lines) + "\n"


def interface(text: str) -> list[str]:
    """Return the inputs and outputs in a `config.pbtxt` of this project: the interface to clients."""
    return _INTERFACE.findall(text)


def _tensors(kind: str, tensors: Sequence[Tensor]) -> list[str]:
    described = [
        f"  {{ name: {_quoted(one.name)} data_type: TYPE_{one.kind} dims: [ {one.width} ]{' optional: true' if one.optional else ''} }}"
        for one in tensors
    ]
    return [f"{kind} [", ",\n".join(described), "]"]


def _quoted(text: str) -> str:
    """Quote a text for protobuf's text format."""
    escaped = "".join(f"\\{byte:03o}" if byte < 32 or byte > 126 or chr(byte) in '"\\' else chr(byte) for byte in text.encode())
    return f'"{escaped}"'
