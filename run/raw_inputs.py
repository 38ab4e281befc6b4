"""Raw values to a trained model's inputs, by the vocabularies and transforms that its checkpoint keeps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataloading.vocabularies import RECORD, kept_file, read_vocabulary
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.reading import Checkpoint
from utils.encoding import transforms
from utils.encoding.numerical import TRANSFORMS
from utils.errors import UserError


class RawInputs:
    """What turns columns of a log into `[B, M]` and `[F, B]`. Holds 8 bytes for each value of the vocabularies.

    Args:
        checkpoint: of the model.
        numerical: its features.
        categorical: rows of their tables.

    Raises:
        UserError: the checkpoint does not say how raw values became its dataset's, or its vocabularies are damaged.
    """

    def __init__(self, checkpoint: Checkpoint, numerical: Sequence[str], categorical: Mapping[str, int]):
        known = checkpoint.manifest.get(transforms.NAME, {})
        self._transforms = {name: _transform(checkpoint, known, name, TRANSFORMS) for name in numerical}
        for name in categorical:
            _transform(checkpoint, known, name, (transforms.HEXADECIMAL,))
        self._lookups = {name: _lookup(checkpoint, name, rows) for name, rows in categorical.items()}

    def encoded(self, columns: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Numericals `[B, M]` float16 and ids `[F, B]` int32 of a value of every feature a sample. Raises ValueError that names the feature."""
        import polars as pl

        from utils.encoding.raw import numbers_of_hexadecimal, transformed, whole_numbers

        whole = {name: whole_numbers(name, columns[name]) for name in self._transforms}
        values = {name: numbers_of_hexadecimal(name, columns[name]) for name in self._lookups}
        found = whole | values
        first, count = next((name, len(column)) for name, column in found.items())
        for name, column in found.items():
            if len(column) != count:
                raise ValueError(f"feature {name}: has shape [{len(column)}], expected [{count}] as {first} has")
        numerical = np.empty((count, len(whole)), np.float16)
        for transform in set(self._transforms.values()):
            names = [name for name, found in self._transforms.items() if found == transform]
            numerical[:, [list(whole).index(name) for name in names]] = transformed(pl.DataFrame({name: whole[name] for name in names}), transform)
        return numerical, np.stack([self._lookups[name].ids(column) for name, column in values.items()])


def _transform(checkpoint: Checkpoint, known: Any, name: str, expected: Sequence[str]) -> str:
    found = known.get(name) if isinstance(known, Mapping) else None
    if found is None:
        raise UserError(
            f"{checkpoint.folder}: does not say how raw values became feature {name}: its dataset has no metadata.transforms (preproc.criteo writes "
            "them), or it was saved before they were kept; score takes what stands in a dataset"
        )
    if found not in expected:
        raise UserError(f"{checkpoint.folder}: the transform of feature {name} is {str(found)[:60]!r}, expected {' or '.join(expected)}")
    return found


def _lookup(checkpoint: Checkpoint, name: str, rows: int):
    import polars as pl

    from utils.encoding.raw import Lookup

    path, record = checkpoint.folder / kept_file(name), checkpoint.manifest.get(RECORD, {}).get(name)
    if record is None or not path.is_file():
        raise UserError(f"{checkpoint.folder}: keeps no vocabulary of feature {name}: its dataset had none, or it was saved before they were kept")
    found, _ = read_vocabulary(path, 0, rows)
    if (found.values, found.digest) != (record["values"], record["digest"]):
        raise DamagedError(checkpoint.folder, f"{path}: its values are not those that the model was trained with; the checkpoint is damaged")
    return Lookup(pl.read_parquet(path, columns=["value", "id"], glob=False))
