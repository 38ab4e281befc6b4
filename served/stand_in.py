"""A stand-in for the part of `triton_python_backend_utils` that `served.backend` uses: the real module exists only in Triton's process."""

from collections.abc import Sequence

import numpy as np


class _Capsule:
    """An array in transfer through DLPack."""

    def __init__(self, values: np.ndarray):
        self._values = values

    def __dlpack__(self, **options: object) -> object:
        return self._values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()


class Tensor:
    """A named array."""

    def __init__(self, name: str, values: np.ndarray):
        self._name, self._values = name, values

    @staticmethod
    def from_dlpack(name: str, capsule: _Capsule) -> "Tensor":
        """Make a tensor from the memory of another one."""
        return Tensor(name, np.from_dlpack(capsule))

    def to_dlpack(self) -> _Capsule:
        """Return a capsule for `from_dlpack`."""
        return _Capsule(self._values)

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """Return the tensor's array."""
        return self._values


class TritonError:
    """An error as a response."""

    def __init__(self, message: str):
        self._message = message

    def message(self) -> str:
        """Return the error message."""
        return self._message


class InferenceRequest:
    """A request with its input tensors."""

    def __init__(self, model_name: str, requested_output_names: Sequence[str], inputs: Sequence[Tensor]):
        self._inputs = list(inputs)

    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""
        return self._inputs


class InferenceResponse:
    """A response: output tensors or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None):
        self._output, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return self._output

    def has_error(self) -> bool:
        """Return whether the response is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error; None where there is none."""
        return self._error


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    """Return a request's tensor by name; None where there is none of that name."""
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)
