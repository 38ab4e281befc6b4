"""Reading of vocabulary files: the values in the order of their ids, and their digest."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.features import VOCABULARY, DatasetError
from utils.checkpoint.zarr_store import file_of
from utils.forks import POLARS, check_threads

RECORD = "vocabularies"  # key in a checkpoint's manifest
_BLOCK = 1 << 20  # values in memory at a time


@dataclass(frozen=True)
class Vocabulary:
    """The number of values and their digest, in the order of the ids; numbers stored in 32 or 64 bits have the same digest."""

    values: int
    digest: str


def kept_file(feature: str) -> str:
    """Return the path of a feature's vocabulary within a step of a checkpoint."""
    return f"{file_of(f'{VOCABULARY}/{feature}')}.parquet"


def read_vocabulary(path: Path, first: int, cardinality: int, block: int = _BLOCK) -> tuple[Vocabulary, Vocabulary]:
    """Read a vocabulary.

    Returns:
        the vocabulary, and the vocabulary of its `first` values only (of all values if it has fewer).

    Raises:
        DatasetError: the file cannot be read, is not in the order of the ids, or has an id beyond the cardinality.
    """
    digest, beginning, next_id = _Digest(), None, 0
    for values, ids in _blocks(path, block):
        next_id = next_id if digest.count else int(ids[0])
        _check_order(path, ids, next_id, digest.count)
        if beginning is None and first <= digest.count + len(ids):
            head = first - digest.count
            digest.add(values[:head], next_id)
            beginning = digest.vocabulary()
            values, next_id = values[head:], next_id + head
        digest.add(values, next_id)
        next_id += len(values)
    if next_id > cardinality:
        raise DatasetError(
            f"{path}: id {next_id - 1} is not in [0, {cardinality}), the feature's ids; the file is of another dataset: remove or replace it"
        )
    whole = digest.vocabulary()
    return whole, beginning or whole


def _check_order(path: Path, ids: np.ndarray, first: int, row: int) -> None:
    wrong = np.flatnonzero(ids != np.arange(first, first + len(ids)))
    if first < 0 or len(wrong):
        place = int(wrong[0]) if len(wrong) else 0
        raise DatasetError(f"{path}: row {row + place}: id {ids[place]}; expected ids that rise by 1 from row to row")


class _Digest:
    """A running digest of numbers or texts and the first id; the division into blocks does not change it."""

    def __init__(self):
        self.count = 0
        self._bytes, self._lengths = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    def add(self, values: Any, first_id: int) -> None:
        """Add a block of values, the first of which has the given id."""
        if self.count == 0 and len(values):
            self._lengths.update(f"{values.dtype} from {first_id} ".encode())
        self.count += len(values)
        if values.dtype.is_integer():
            self._bytes.update(np.ascontiguousarray(values.to_numpy()).data)
        else:  # the joined bytes do not show where a text ends, so lengths are hashed, too
            self._lengths.update(np.ascontiguousarray(values.str.len_bytes().to_numpy(), np.uint64).data)
            self._bytes.update("".join(values.to_list()).encode())

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary of the values added so far."""
        both = self._bytes.digest() + self._lengths.digest()
        return Vocabulary(self.count, hashlib.blake2b(both, digest_size=16).hexdigest())


def _blocks(path: Path, size: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield blocks of values, a Polars series of Int64 or String, and their ids."""
    check_threads(POLARS)
    import polars as pl  # imported here: --help and datasets without vocabularies do not need it

    try:
        frame = pl.scan_parquet(path, glob=False).select("value", "id")
        kind = frame.collect_schema()["value"]
        if not (kind.is_integer() or kind == pl.String):
            raise DatasetError(f"{path}: the values are {kind}; expected whole numbers or texts")
        for block in frame.collect_batches(chunk_size=size, maintain_order=True, engine="streaming"):
            if any(block.null_count().row(0)):
                raise DatasetError(f"{path}: a value or an id is missing; expected both in every row")
            if not len(block):
                continue
            values = block["value"]
            if kind.is_integer():
                values = values.reinterpret(signed=True) if kind == pl.UInt64 else values.cast(pl.Int64)
            yield values, block["id"].cast(pl.Int64).to_numpy()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as a vocabulary (value, id, count): {' '.join(str(error).split())[:200]}") from None
