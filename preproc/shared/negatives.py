"""Sampling of the training split's negatives: all positives are kept, and each negative with the same probability.

Which rows are kept depends only on the seed and on each row's number in the split, so every command, engine, block size and number of processes keeps
the same ones. Everything is learned, checked and encoded as if all rows were kept; the others are left out as the split's files are written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from dataloading.features import DatasetError
from utils.naming import naming

TRAIN = "train"  # the split whose negatives are sampled
_FILE = "kept.bin"
_STREAM = 0x6E65676174697665  # "negative": with one seed, other numbers than those that draw the rows of splits
_STEP = 0x9E3779B97F4A7C15  # between the counters of SplitMix64
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # shifts and factors of its finalizer
_BYTES_AT_ONCE = 1 << 24

Rows = TypeVar("Rows", np.ndarray, pl.DataFrame, pl.Series)


def drawn(rate: float, seed: int, first: int, count: int) -> np.ndarray:
    """Return for the rows of numbers `first` to `first + count - 1` of a split whether each is kept if it is negative: bool `[count]`."""
    key = _mixed(np.array([(seed * _STEP + _STREAM) % 2**64], np.uint64))
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return _mixed(key + (numbers + np.uint64(1)) * np.uint64(_STEP)) < np.uint64(int(rate * 2**64))


def _mixed(counters: np.ndarray) -> np.ndarray:
    """Return uniform hashes uint64 of counters uint64, by the finalizer of SplitMix64."""
    mixed = counters
    for shift, factor in _FACTORS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


class KeptRows:
    """The rows of the training split that are kept.

    Args:
        path: a file of one byte for each row of the split, 1 where the row is kept.
        positives: the number of the split's positives, which are all kept.
        weightless: the number of kept rows of weight 0.

    Attributes:
        rows: the number of kept rows.
        rows_before: the number of all rows.
    """

    def __init__(self, path: Path, positives: int, weightless: int):
        self._mask = np.memmap(path, bool, "r")
        self._positives, self._weightless = positives, weightless
        self.rows, self.rows_before = int(np.count_nonzero(self._mask)), len(self._mask)

    def of(self, blocks: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the kept rows of each block; the blocks are all rows of the split, in order."""
        first = 0
        for block in blocks:
            mask = self._mask[first : first + len(block)]
            first += len(block)
            yield block[mask] if isinstance(block, np.ndarray) else block.filter(pl.Series(mask))

    def counts(self, parts: Sequence[int]) -> list[int]:
        """Return the number of kept rows of each part; the parts, given by their numbers of rows, are all rows of the split, in order."""
        ends = np.cumsum(parts).tolist()
        return [int(np.count_nonzero(self._mask[end - rows : end])) for end, rows in zip(ends, parts, strict=True)]

    def write(self, parts: Sequence[Path], target: Path) -> None:
        """Write the kept rows of several files, which together hold all rows of the split in equally many bytes each."""
        width = sum(part.stat().st_size for part in parts) // self.rows_before
        with naming(target), target.open("wb") as file:
            for rows in self.of(_rows(parts, width)):
                file.write(rows.tobytes())

    def join(self, parts: Sequence[Path], target: Path) -> None:
        """Do the same as `write`, and remove the files."""
        self.write(parts, target)
        for part in parts:
            part.unlink()

    def described(self, statistics: dict[str, Any]) -> dict[str, Any]:
        """Return the split's entry in the dataset's metadata, given that of all its rows."""
        found = {**statistics, "rows": self.rows, "rows_before_sampling": self.rows_before, "click_rate": round(self._positives / self.rows, 6)}
        return found | ({"rows_of_weight_0": self._weightless} if "rows_of_weight_0" in statistics else {})


def choose_rows(
    rate: float, seed: int, blocks: Iterable[tuple[np.ndarray, np.ndarray | None]], folder: Path, warn: Callable[[str], None]
) -> KeptRows:
    """Choose the rows of the training split that are kept.

    Args:
        rate: the probability with which each negative is kept, above 0 and below 1.
        seed: of the draw.
        blocks: all rows of the split, at least one, in order: labels bool `[n]`, and bool `[n]` of the rows of weight 0, None where rows have no
            weights.
        folder: where a file of one byte a row is written.
        warn: called with a line where all rows have one label before or after.

    Raises:
        DatasetError: no row is kept.
    """
    path, first, positives, weightless = folder / _FILE, 0, 0, 0
    with naming(path), path.open("wb") as file:
        for labels, idle in blocks:
            mask = labels | drawn(rate, seed, first, len(labels))
            file.write(mask.tobytes())
            first, positives = first + len(labels), positives + int(labels.sum())
            weightless += 0 if idle is None else int((idle & mask).sum())
    kept, negatives = KeptRows(path, positives, weightless), first - positives
    if not kept.rows:
        raise DatasetError(
            f"--negative_rate {rate:g} keeps no row: the {TRAIN} split has no positive, and none of its {negatives:,} negatives is drawn"
        )
    if not negatives:
        warn(f"--negative_rate {rate:g} has no effect on the rows: the {TRAIN} split has no negative")
    elif kept.rows == positives:
        warn(f"--negative_rate {rate:g} keeps none of the {negatives:,} negatives of the {TRAIN} split, so every label in it is 1")
    return kept


def _rows(parts: Sequence[Path], width: int) -> Iterator[np.ndarray]:
    """Yield the rows of files, `[n, width]` uint8."""
    for part in parts:
        with part.open("rb") as file:
            while content := file.read(max(_BYTES_AT_ONCE // width, 1) * width):
                yield np.frombuffer(content, np.uint8).reshape(-1, width)
