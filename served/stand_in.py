"""In the place of `triton_python_backend_utils`, which there is in Triton's process only: what `served.backend` uses of it."""

from collections.abc import Sequence

import numpy as np


class _Capsule:
    """An array on its way as DLPack."""

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
        """Of another tensor's memory."""
        return Tensor(name, np.from_dlpack(capsule))

    def to_dlpack(self) -> _Capsule:
        """For `from_dlpack`."""
        return _Capsule(self._values)

    def name(self) -> str:
        """Its name."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """Its array."""
        return self._values


class TritonError:
    """An error that is an answer."""

    def __init__(self, message: str):
        self._message = message

    def message(self) -> str:
        """Its words."""
        return self._message


class InferenceRequest:
    """A request."""

    def __init__(self, model_name: str, requested_output_names: Sequence[str], inputs: Sequence[Tensor]):
        self._inputs = list(inputs)

    def inputs(self) -> list[Tensor]:
        """Its tensors."""
        return self._inputs


class InferenceResponse:
    """An answer."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None):
        self._output, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        """Its tensors."""
        return self._output

    def has_error(self) -> bool:
        """Return whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Its error."""
        return self._error


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    """A request's tensor; None where there is none of that name."""
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)
