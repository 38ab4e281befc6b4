"""Shuffling of the rows of a column's file in bounded memory, in the same order for every column of a split.

Each row is assigned to a random bucket, and each bucket is shuffled: the buckets one after another are a random order of all rows. Only one bucket
has to be in memory, about `BUCKET_ROWS` rows of one column, whatever the number of rows. The order depends only on the seed and on the number of
rows of each part.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from utils.naming import naming

INPUT, DAY_RANDOM, TOTAL_RANDOM = ORDERINGS = ("input", "day_random", "total_random")
BUCKET_ROWS = 1 << 21
BLOCK_ROWS = 1 << 19  # rows assigned to buckets at once


def shuffled_parts(ordering: str, day_rows: Sequence[int]) -> list[int]:
    """Return the number of rows of each part that is shuffled separately: each day, or all days together."""
    return list(day_rows) if ordering == DAY_RANDOM else [sum(day_rows)]


def shuffle_file(path: Path, row_bytes: int, parts: Sequence[int], seed: int, scratch: Path) -> None:
    """Shuffle the rows of a file within each part; files with the same parts and seed get the same order.

    Args:
        path: the file, which is replaced.
        row_bytes: bytes of a row.
        parts: rows of each part, in file order.
        seed: seed of the order.
        scratch: temporary file on the same disk as `path`, to which it is moved.
    """
    dealt = scratch.with_name(f"{scratch.name}.dealt")
    with path.open("rb") as source, naming(scratch), scratch.open("wb") as target, dealt.open("wb") as buckets:
        for part, rows in enumerate(parts):
            sizes = np.zeros(_buckets(rows), np.int64)
            # The buckets are drawn twice from the same seeds: first for their sizes, which give their offsets in the file.
            for dealing in _dealings(part, rows, seed):
                sizes += np.bincount(dealing, minlength=len(sizes))
            _deal(source, buckets.fileno(), row_bytes, sizes, _dealings(part, rows, seed))
            starts = np.cumsum(sizes) - sizes
            for bucket, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
                content = np.fromfile(dealt, _row_dtype(row_bytes), size, offset=start * row_bytes)
                target.write(content[np.random.default_rng([seed, part, 1, bucket]).permutation(size)].view(np.uint8).data if size else b"")
    dealt.unlink()
    scratch.rename(path)


def _buckets(rows: int) -> int:
    return max(1, -(-rows // BUCKET_ROWS))


def _dealings(part: int, rows: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the bucket of each row, block by block."""
    for block, start in enumerate(range(0, rows, BLOCK_ROWS)):
        count = min(BLOCK_ROWS, rows - start)
        yield np.random.default_rng([seed, part, 0, block]).integers(0, _buckets(rows), count, np.uint16)


def _deal(source, buckets: int, row_bytes: int, sizes: np.ndarray, dealings: Iterator[np.ndarray]) -> None:
    """Copy rows into their buckets, which are consecutive in one file."""
    places = np.cumsum(sizes) - sizes
    for dealing in dealings:
        block = np.frombuffer(source.read(len(dealing) * row_bytes), _row_dtype(row_bytes))
        ordered, counts = block[np.argsort(dealing, kind="stable")], np.bincount(dealing, minlength=len(sizes))
        start = 0
        for bucket in np.flatnonzero(counts):
            stop = start + int(counts[bucket])
            _write_at(buckets, ordered[start:stop].view(np.uint8), int(places[bucket]) * row_bytes)
            places[bucket] += counts[bucket]
            start = stop


def _row_dtype(row_bytes: int) -> str:
    return f"u{row_bytes}" if row_bytes in (1, 2, 4, 8) else f"V{row_bytes}"


def _write_at(file: int, values: np.ndarray, offset: int) -> None:
    view = memoryview(values)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
