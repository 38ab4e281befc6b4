"""Ids of texts by search in files, for vocabularies that would not fit an executor's memory as a table.

A vocabulary is stored in parts, each for a range of hashes (64 bits of BLAKE2b). A part holds its hashes in ascending order, with the texts and their
ids beside them. A text is looked up by its hash and then compared, so two texts with the same hash are kept apart.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from preproc.shared.polars_engine import VALUE
from preproc.table.staging import Coded
from utils.naming import naming

HASHES, ENDS, TEXTS, IDS = "hashes.u64", "ends.i64", "texts.bin", "ids.i32"
_HASH, _ALL_HASHES = "hash", 1 << 64


class SortedTexts:
    """A vocabulary in parts, memory-mapped one after another. Memory holds a block's texts and the system's page cache of the files.

    Args:
        parts: the folders that `write_texts` filled, in the order of `hash_ranges`.
        at_once: the number of texts that are compared at once.
    """

    def __init__(self, parts: Sequence[Path], at_once: int = 1 << 16):
        self._at_once = at_once
        self._parts = list(zip(parts, hash_ranges(len(parts)), strict=True))

    def of(self, blocks: Iterable[Coded]) -> Iterator[tuple[pl.Series, np.ndarray]]:
        """Yield the codes of each block and the ids int32 of its texts; see `writing.Ids`."""
        return ((codes, self.ids(texts)) for codes, texts in blocks)

    def ids(self, texts: pl.Series) -> np.ndarray:
        """Return ids `[n]` int32 of texts `[n]`; 0 for texts that the vocabulary lacks and for missing ones."""
        found = np.zeros(len(texts), np.int32)
        asked = pl.DataFrame([texts.alias(VALUE), hashes_of(texts).alias(_HASH)]).with_row_index("row").drop_nulls().sort(_HASH)
        hashes = asked[_HASH].to_numpy()
        for folder, (low, high) in self._parts:
            first, last = (len(hashes) if bound == _ALL_HASHES else int(np.searchsorted(hashes, np.uint64(bound))) for bound in (low, high))
            part = _Part(folder) if last > first else None
            for start in range(first, last, self._at_once):
                some = asked.slice(start, min(self._at_once, last - start))
                found[some["row"].to_numpy()] = part.ids(some[VALUE], some[_HASH].to_numpy())
        return found


class _Part:
    """The memory-mapped files of a range of hashes."""

    def __init__(self, folder: Path):
        self._hashes, self._ends = _mapped(folder / HASHES, np.uint64), _mapped(folder / ENDS, np.int64)
        self._texts, self._ids = _mapped(folder / TEXTS, np.uint8), _mapped(folder / IDS, np.int32)

    def ids(self, texts: pl.Series, hashes: np.ndarray) -> np.ndarray:
        """Return the ids of texts. They come in the order of their hashes, so that the search passes through the files once."""
        content, ends = bytes_of(texts)
        ids, places = np.zeros(len(texts), np.int32), np.searchsorted(self._hashes, hashes)
        rows = np.arange(len(texts))
        while len(rows := rows[places[rows] < len(self._hashes)]):
            rows = rows[self._hashes[places[rows]] == hashes[rows]]
            same = self._same(places[rows], content, ends, rows)
            ids[rows[same]] = self._ids[places[rows[same]]]
            rows = rows[~same]  # another text has the same hash: compare with the next entry
            places[rows] += 1
        return ids

    def _same(self, places: np.ndarray, content: np.ndarray, ends: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Compare the stored texts at some places with those of rows; return `[n]` bool. A row's text is `content[ends[row]:ends[row + 1]]`."""
        begins, lengths = ends[rows], ends[rows + 1] - ends[rows]
        same = self._ends[places + 1] - self._ends[places] == lengths
        compared = np.flatnonzero(same & (lengths > 0))
        if len(compared):
            lengths = lengths[compared]
            first = np.cumsum(lengths) - lengths
            within = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
            theirs = self._texts[np.repeat(self._ends[places[compared]], lengths) + within]
            ours = content[np.repeat(begins[compared], lengths) + within]
            same[compared] = np.logical_and.reduceat(theirs == ours, first)
        return same


def hashes_of(texts: pl.Series) -> pl.Series:
    """Return the 64-bit BLAKE2b hash of each text, the same on every machine; null where a text is missing."""
    digests = b"".join([hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts.fill_null("").to_list()])
    return pl.Series(np.frombuffer(digests, "<u8").astype(np.uint64)).set(texts.is_null(), None)


def bytes_of(texts: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated UTF-8 bytes of texts, and the offsets `[n + 1]`: the start of each text, and the end of the last."""
    content = np.frombuffer(texts.str.join("").item().encode() if len(texts) else b"", np.uint8)
    return content, np.concatenate([[0], np.cumsum(texts.str.len_bytes().to_numpy().astype(np.int64))])


def hash_ranges(parts: int) -> list[tuple[int, int]]:
    """Return `parts` ranges [low, high) that divide all 64-bit hashes about evenly."""
    return list(itertools.pairwise((part << 64) // parts for part in range(parts + 1)))


def write_hashed(vocabulary: Path, first: int, rows: int, path: Path, group_rows: int = 1 << 14) -> None:
    """Write some rows of a vocabulary with their hashes, sorted by hash.

    The file has small row groups, so that the reader of a range of hashes skips the others.
    """
    found = pl.scan_parquet(vocabulary, glob=False).slice(first, rows).select(VALUE, "id").collect(engine="streaming")
    ordered = found.with_columns(hashes_of(found[VALUE]).alias(_HASH)).sort(_HASH)
    with naming(path):
        ordered.write_parquet(path, compression="lz4", statistics=True, row_group_size=group_rows)


def write_texts(hashed: Sequence[Path], low: int, high: int, folder: Path) -> None:
    """Write a part: all texts in the files of `write_hashed` whose hashes are in [low, high)."""
    # compared with `high - 1`, because the last range ends at 2**64, which UInt64 cannot hold
    wanted = (pl.col(_HASH) >= pl.lit(low, pl.UInt64)) & (pl.col(_HASH) <= pl.lit(high - 1, pl.UInt64))
    found = pl.scan_parquet(list(hashed), glob=False).filter(wanted).collect(engine="streaming").sort(_HASH)
    content, ends = bytes_of(found[VALUE])
    for name, values in ((HASHES, found[_HASH].to_numpy()), (ENDS, ends), (TEXTS, content), (IDS, found["id"].to_numpy())):
        with naming(folder / name):
            values.tofile(folder / name)


def _mapped(path: Path, dtype: type) -> np.ndarray:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
