"""Typed columns on the disk between reading the logs and writing the dataset, in a hidden folder of the destination."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from preproc.shared.joining import append_file
from preproc.shared.resume import Progress
from utils.naming import naming
from utils.scratch import Scratch

_COPIED_BYTES = 1 << 24


class Staging:
    """Columns of several splits, appended block by block and read back one feature at a time.

    Labels and numerical features are stored in their final form and are moved into the dataset; categorical values stay
    in Arrow files, one a block, until the dictionaries are known. The folder is created inside `destination`, which has the
    disk space and allows a move instead of a copy. It is removed on exit from the `with` block, unless `progress` keeps it
    for a resumed run; `destination` is removed too if this class created it and it is empty.
    """

    def __init__(self, destination: Path, splits: tuple[str, ...], progress: Progress):
        self._scratch, self._progress = Scratch(destination, "staging", progress.takes), progress
        self.folder = self._scratch.folder
        self._chunks: dict[str, list[tuple[Path, int]]] = {split: [] for split in splits}  # files and their numbers of rows
        self._files: dict[Path, BinaryIO] = {}
        try:
            for split in splits:
                for path in self._bytes(split):
                    self._files[path] = path.open("r+b" if path.exists() else "wb")
                    self._files[path].seek(0, os.SEEK_END)
        except BaseException:
            self._scratch.remove()
            raise

    def __enter__(self) -> "Staging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # on a full disk: the original error is raised already
                file.close()
        self._progress.end(self._scratch, kind is not None)

    def labels(self, split: str) -> Path:
        """Return the file of the split's labels, 1 byte a row."""
        return self.folder / f"{split}-label.bin"

    def numerical(self, split: str) -> Path:
        """Return the file of the split's numerical features, `[rows, M]` float16."""
        return self.folder / f"{split}-numerical.bin"

    def append(self, split: str, labels: np.ndarray | None, numerical: np.ndarray, categorical: pl.DataFrame) -> None:
        """Append n rows.

        Args:
            split: name of their split.
            labels: `[n]` bool; None where the split has no labels.
            numerical: `[n, M]` float16.
            categorical: n rows, one UInt32 column for each feature.
        """
        for path, values in ((self.labels(split), labels), (self.numerical(split), numerical)):
            with naming(path):
                self._files[path].write(values.data if values is not None and values.size else b"")
        self._add_chunk(split, categorical)

    def _bytes(self, split: str) -> tuple[Path, Path]:
        return self.labels(split), self.numerical(split)

    def _chunk(self, split: str, place: int) -> Path:
        return self.folder / f"{split}-{place:06d}.arrow"

    def _add_chunk(self, split: str, categorical: pl.DataFrame) -> None:
        chunks = self._chunks[split]
        path = self._chunk(split, len(chunks))
        # Not Parquet with zstd: it has three quarters of the size, but costs a tenth of the whole run's time.
        with naming(path):
            categorical.write_ipc(path)
        chunks.append((path, categorical.height))

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`: rows of each chunk and sizes of the other files, by split."""
        for path, file in self._files.items():
            if not file.closed:
                with naming(path):
                    file.flush()
        return {
            split: {"rows": [rows for _, rows in chunks], "sizes": [path.stat().st_size for path in self._bytes(split)]}
            for split, chunks in self._chunks.items()
        }

    def paths(self) -> list[Path]:
        """Return all files with appended rows."""
        return [path for split in self._chunks for path in (*self._bytes(split), *(path for path, _ in self._chunks[split]))]

    def restore(self, state: dict[str, Any] | None) -> bool:
        """Restore a state that an earlier run left in the folder, None: an empty one; return False, unchanged, where its files lack it."""
        state = state or {split: {"rows": [], "sizes": [0, 0]} for split in self._chunks}
        chunks = {split: [(self._chunk(split, i), rows) for i, rows in enumerate(found["rows"])] for split, found in state.items()}
        files = [(path, size) for split, found in state.items() for path, size in zip(self._bytes(split), found["sizes"], strict=True)]
        if any(path.stat().st_size < size for path, size in files) or not all(path.exists() for found in chunks.values() for path, _ in found):
            return False
        for path, size in files:
            self._files[path].truncate(size)
            self._files[path].seek(size)
        self._chunks |= chunks
        return True

    def adopt(self, split: str, labels: Path, numerical: Path, chunks: Sequence[tuple[Path, int]]) -> None:
        """Append rows that another process has written in the same form: two files, which are removed, and Arrow files, which stay in place."""
        for path, source in ((self.labels(split), labels), (self.numerical(split), numerical)):
            with naming(path):
                append_file(source, self._files[path])
            source.unlink()
        self._chunks[split] += chunks

    def chunks(self, split: str) -> Sequence[tuple[Path, int]]:
        """Return the files of the split's categorical values, in row order, with their numbers of rows."""
        return tuple(self._chunks[split])

    def flush(self) -> None:
        """Close the label and numerical files, so that they can be moved; nothing can be appended afterwards."""
        for path, file in self._files.items():
            with naming(path):
                file.close()

    def cut(self, split: str, rows: int, other: str) -> int:
        """Keep the first rows of a split, and move the others to another split, which must be empty; only after `flush`.

        Returns:
            the sum of the labels of the moved rows.
        """
        held = sum(count for _, count in self._chunks[split])
        clicks = _cut_file(self.labels(split), rows, held, self.labels(other))
        _cut_file(self.numerical(split), rows, held, self.numerical(other))
        chunks, self._chunks[split], first = self._chunks[split], [], 0
        for path, count in chunks:
            keep = min(max(rows - first, 0), count)
            first += count
            if keep == count:
                self._chunks[split].append((path, count))
                continue
            values = pl.scan_ipc(path, glob=False).collect()
            path.unlink()
            if keep:
                self._add_chunk(split, values.head(keep))
            self._add_chunk(other, values.slice(keep))
        return clicks

    def num_rows(self, splits: Sequence[str]) -> int:
        """Return the number of rows of some splits."""
        return sum(count for split in splits for _, count in self._chunks.get(split, ()))

    def values(self, splits: Sequence[str], feature: str) -> pl.LazyFrame:
        """Return one categorical feature of some splits, one split after another, as a lazy frame in row order."""
        return pl.scan_ipc([path for split in splits for path, _ in self._chunks[split]], glob=False).select(feature)

    def columns(self, split: str, feature: str) -> Iterator[pl.Series]:
        """Return an iterator over one categorical feature of a split, in blocks in row order."""
        return (pl.scan_ipc(path, glob=False).select(feature).collect().to_series() for path, _ in self._chunks[split])


def labels_of(path: Path) -> Iterator[np.ndarray]:
    """Yield the labels of a file of them, `[n]` bool, in blocks in row order; of a split's staged file only after `Staging.flush`."""
    with path.open("rb") as file:
        while content := file.read(_COPIED_BYTES):
            yield np.frombuffer(content, bool)


def _cut_file(path: Path, rows: int, held: int, target: Path) -> int:
    """Move all rows of a file but the first `rows` to another file; return the sum of their bytes, which counts the clicks if they are labels."""
    width, total = path.stat().st_size // held, 0
    with path.open("r+b") as source, naming(target), target.open("wb") as tail:
        source.seek(rows * width)
        while content := source.read(_COPIED_BYTES):
            tail.write(content)
            total += int(np.frombuffer(content, np.uint8).sum())
        source.truncate(rows * width)
    return total
