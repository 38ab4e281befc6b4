"""A file of rows with their scores: a version scores its kept rows when it is loaded, before it answers requests."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils.errors import UserError

FILE = "rows.npz"  # in the folder of a version
COUNT = 200
_OF_ONE_ROUNDING, _OF_TWO_ROUNDINGS = 1e-2, 2e-2  # limits in bfloat16: of earlier exports, and of `proof.DIFFERENCE`
_BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


class KeptRows(NamedTuple):
    """Rows in the form of a request, and their scores.

    Attributes:
        inputs: arrays by input name: `[n, width]` float32 or int64, or `[n, 1]` bytes.
        scores: `[n]` float32.
        limit: largest permitted difference from these scores.
    """

    inputs: Mapping[str, np.ndarray]
    scores: np.ndarray
    limit: float

    def write(self, path: Path) -> None:
        """Write the rows to a file. Raises OSError."""
        about = json.dumps({"inputs": list(self.inputs), "limit": self.limit})
        arrays = {"about": _of_bytes(about.encode()), "scores": self.scores}
        for place, values in enumerate(self.inputs.values()):
            if values.dtype == object:
                arrays[f"lengths_{place}"] = np.array([len(value) for value in values[:, 0]], np.int64)
                values = _of_bytes(b"".join(values[:, 0]))
            arrays[f"input_{place}"] = values
        with path.open("wb") as file:
            np.savez(file, **arrays)

    def first(self, count: int) -> "KeptRows":
        """Return the first `count` rows."""
        return KeptRows({name: values[:count] for name, values in self.inputs.items()}, self.scores[:count], self.limit)


def read_rows(path: Path) -> KeptRows:
    """Read a file that `KeptRows.write` wrote. Raises UserError."""
    try:
        with np.load(path) as held:
            about = json.loads(held["about"].tobytes())
            inputs = {name: _input(held, place) for place, name in enumerate(about["inputs"])}
            limit = float(about["limit"])
            return KeptRows(inputs, held["scores"], _OF_TWO_ROUNDINGS if limit == _OF_ONE_ROUNDING else limit)
    except FileNotFoundError:
        raise UserError(
            f"{path}: is missing, so this version cannot be checked: an older program exported it; export the model again: "
            "--mode export and serving.publish write the next version"
        ) from None
    except _BROKEN as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())[:100]}); export the model again") from None


def _of_bytes(content: bytes) -> np.ndarray:
    return np.array(bytearray(content), np.uint8)


def _input(held: Mapping[str, np.ndarray], place: int) -> np.ndarray:
    values = held[f"input_{place}"]
    if f"lengths_{place}" not in held:
        return values
    ends = np.cumsum(held[f"lengths_{place}"])
    found = np.empty((len(ends), 1), object)
    found[:, 0] = [values[start:stop].tobytes() for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
    return found
