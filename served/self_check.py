"""The self-check of a version when it is loaded, on any server and in any environment: a version that scores wrongly is not loaded."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from serving.description import PROBABILITY
from serving.kept_rows import KeptRows
from utils.errors import UserError

Execute = Callable[[Sequence[Any]], list[Any]]
_SENT = (np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(6, dtype=np.int64).reshape(3, 2), np.arange(5, dtype=np.uint8))


def check_tensors(triton: Any) -> None:
    """Raise UserError where an array changes on its way through a Triton tensor: then Triton was built for another NumPy."""
    for sent in _SENT:
        try:
            found = _through_memory(triton, "sent", sent).as_numpy()
            same = found.dtype == sent.dtype and np.array_equal(found, sent)
        except Exception:  # wrong memory may raise anything
            same = False
        if not same:
            raise UserError(
                f"NumPy {np.__version__} is not what this Triton was built for: its tensors hold other values than the arrays. Export the model "
                "again: config.pbtxt then names an environment with the right NumPy (EXECUTION_ENV_PATH)"
            )


def check_frames() -> None:
    """Raise UserError where values change on their way between Polars and NumPy."""
    import polars as pl

    for dtype in (np.float32, np.float64, np.int64):
        rows = np.array([[1, 4], [2, 5], [3, 6]], dtype)
        columns = {"a": rows[:, 0], "b": rows[:, 1]}
        frame = pl.DataFrame(columns)
        back = np.stack([pl.Series(values).to_numpy() for values in columns.values()], axis=1)
        if frame.rows() != [(1, 4), (2, 5), (3, 6)] or not np.array_equal(frame.to_numpy(), rows) or not np.array_equal(back, rows):
            raise UserError(f"values change between Polars {pl.__version__} and NumPy {np.__version__}; run ./scripts/install, then export again")


def check_rows(execute: Execute, triton: Any, rows: KeptRows) -> None:
    """Score the rows a version keeps: one alone, then all in joined requests. Raises UserError where a score differs from the kept one."""
    count = len(rows.scores)
    for bounds in ((0, 1), (0, 1, 3, count)):
        found = scores_of(execute, triton, rows.inputs, bounds)
        expected = rows.scores[: len(found)]
        wrong = ~(np.abs(found.astype(np.float64) - expected) <= rows.limit)  # this form treats NaN as wrong, too
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UserError(
                f"self-check row {row} of {count} scores {found[row]:.7g}, expected {expected[row]:.7g} as in the export's proof: the version's "
                "files, this program or its libraries have changed since; export the model again"
            )


def scores_of(execute: Execute, triton: Any, inputs: Mapping[str, np.ndarray], bounds: Sequence[int]) -> np.ndarray:
    """Score rows in joined requests, given by their boundaries. Raises UserError with the message of a request that fails."""
    count, found = len(next(iter(inputs.values()))), []
    for response in execute([_request(triton, inputs, slice(*part)) for part in pairwise(sorted({min(bound, count) for bound in bounds}))]):
        if response.has_error():
            raise UserError(f"the self-check rows cannot be scored: {response.error().message()}")
        found.append(response.output_tensors()[0].as_numpy()[:, 0])
    return np.concatenate(found)


def _request(triton: Any, inputs: Mapping[str, np.ndarray], part: slice) -> Any:
    tensors = []
    for name, values in inputs.items():
        texts = values.dtype == object  # DLPack does not carry texts
        tensors.append(triton.Tensor(name, values[part]) if texts else _through_memory(triton, name, values[part]))
    return triton.InferenceRequest(model_name="", requested_output_names=[PROBABILITY], inputs=tensors)


def _through_memory(triton: Any, name: str, values: np.ndarray) -> Any:
    """Return a tensor built through DLPack, as Triton builds a request's tensors; a tensor built from an array would only return that array."""
    return triton.Tensor.from_dlpack(name, triton.Tensor(name, values).to_dlpack())
