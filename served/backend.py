"""Handling of requests in the Python backend: they are joined, scored and answered; an invalid request fails alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import dlrm
from served.self_check import check_frames, check_rows, check_tensors
from served.stalls import ends_when_continued
from served.unknown_metric import unknown_metric
from serving import kept_rows
from serving.description import CATEGORICAL, CHECKPOINT, ID_WEIGHTS, NUMERICAL, PROBABILITY
from serving.integrity import compare_once
from utils.checkpoint.manifest import CheckpointError

_RAW = "raw"


class Scorer(Protocol):
    """An engine that scores samples: `score` returns the probabilities of samples that `checked` has accepted."""

    def checked(self, *inputs: Any) -> tuple[np.ndarray, np.ndarray]:
        """Convert a request to numericals `[B, M]` float32 and ids int32 `[B, …]`. Raises ValueError that names feature, sample and value."""

    def score(self, numerical: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return probabilities `[B]` float32."""


class Backend:
    """A model in Triton's Python backend. On loading it compares all weights with their checksums, and scores the rows that its version keeps.

    Args:
        triton: the module `triton_python_backend_utils`.
        version: folder of the version.
        config: the model's configuration, as read by Triton.
        args: arguments of `initialize`.
        proving: whether the version is being exported: no rows are kept yet, and `triton` is a stand-in.

    Raises:
        UserError: the model cannot be loaded, or its self-check fails.
    """

    def __init__(self, triton: Any, version: Path, config: dict, args: dict, proving: bool = False):
        if not proving:
            check_tensors(triton)
        self._triton = triton
        self._names = [one["name"] for one in config["input"] if not one.get("optional", False)]  # of features for training only: never read
        self._texts = {one["name"] for one in config["input"] if one["data_type"] == "TYPE_STRING"}
        self._raw = config["parameters"]["INPUTS"]["string_value"] == _RAW
        if self._raw:
            check_frames()
        rows = None if proving else kept_rows.read_rows(version / kept_rows.FILE)
        if not proving:  # an export reads all weights itself
            compare_once(version / CHECKPOINT)
        self.scorer = load(version / CHECKPOINT, self._raw, cpu=args["model_instance_kind"] != "GPU")
        if rows is not None:
            check_rows(self.execute, triton, rows)
        self._unknown = unknown_metric(triton, args, self.scorer) if self._raw and not proving else None
        if not proving:
            ends_when_continued()

    def close(self) -> None:
        """Stop the background thread."""
        if self._unknown is not None:
            self._unknown.close()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return a response for each request, in their order."""
        responses: list[Any] = [None] * len(requests)
        accepted = {}
        for place, request in enumerate(requests):
            try:
                accepted[place] = self._inputs(request)
            except ValueError as error:
                responses[place] = self._error(error)
        checked = self._checked(accepted, responses)
        if checked:
            self._answer(checked, responses)
        return responses

    def _checked(self, accepted: dict[int, list], responses: list) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return the valid requests' arrays by place; set an error for the others. Check one by one only where the check of all at once fails."""
        try:
            together = self._of_values([np.concatenate(parts) for parts in zip(*accepted.values(), strict=True)]) if accepted else ()
            ends = np.cumsum([len(values[0]) for values in accepted.values()])[:-1]
            return dict(zip(accepted, zip(*(np.split(part, ends) for part in together), strict=True), strict=True)) if accepted else {}
        except ValueError:
            pass
        found = {}
        for place, values in accepted.items():
            try:
                found[place] = self._of_values(values)
            except ValueError as error:
                responses[place] = self._error(error)
        return found

    def _of_values(self, values: list) -> tuple[np.ndarray, np.ndarray]:
        given = dict(zip(self._names, values, strict=True))
        if self._raw:
            return self.scorer.checked({name: _texts(name, column) if name in self._texts else column[:, 0] for name, column in given.items()})
        ids = given[CATEGORICAL]
        return self.scorer.checked(given.get(NUMERICAL, np.empty((len(ids), 0), np.float32)), ids, given.get(ID_WEIGHTS))

    def _answer(self, checked: dict[int, tuple[np.ndarray, np.ndarray]], responses: list) -> None:
        try:
            numerical, ids = (np.concatenate(parts) for parts in zip(*checked.values(), strict=True))
            scores = self.scorer.score(numerical, ids)
        except (CheckpointError, OSError, MemoryError) as error:  # a missing table file, for instance: the fault of no single request
            for place in checked:
                responses[place] = self._error(error)
            return
        start = 0
        for place, (rows, _) in checked.items():
            output = self._triton.Tensor(PROBABILITY, scores[start : start + len(rows), np.newaxis])
            responses[place] = self._triton.InferenceResponse(output_tensors=[output])
            start += len(rows)

    def _inputs(self, request: Any) -> list[np.ndarray]:
        """Return the request's arrays in the order of the inputs. Raises ValueError."""
        found, count = [], None
        for name in self._names:
            tensor = self._triton.get_input_tensor_by_name(request, name)
            if tensor is None:
                raise ValueError(f"input {name}: is missing")
            array = tensor.as_numpy()
            count = len(array) if count is None else count
            if array.ndim != 2 or len(array) != count:
                raise ValueError(f"input {name}: has shape {list(array.shape)}, expected [{count}, …] as {self._names[0]} has")
            found.append(array)
        return found

    def _error(self, error: Exception) -> Any:
        return self._triton.InferenceResponse(error=self._triton.TritonError(str(error)))


def load(checkpoint: Path, raw: bool, cpu: bool) -> Scorer:
    """Load the scorer of an export with `dlrm.load`, tables mapped. Raises UserError."""
    model = dlrm.load(checkpoint, mmap=True, cpu=cpu)
    return model.over_raw_arrays() if raw else model.over_arrays()


def _texts(name: str, column: np.ndarray) -> list[str]:
    """Decode `[B, 1]` bytes to texts. Raises ValueError where one is not UTF-8."""
    found = []
    for sample, value in enumerate(column[:, 0]):
        try:
            found.append(value.decode())
        except UnicodeDecodeError:
            raise ValueError(f"feature {name}: value {value!r:.60} of sample {sample} is not UTF-8") from None
    return found
