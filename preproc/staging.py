"""What lies on the disk between reading the log and writing the dataset: typed columns in a hidden folder of the destination."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import polars as pl

from preproc.joining import append_file
from utils.naming import naming
from utils.scratch import Scratch

_COPIED_BYTES = 1 << 24


class Staging:
    """Columns of several splits, appended block by block and read back one feature at a time.

    Labels and numerical features have their final form already and are moved into the dataset; categorical values wait
    in Arrow files, one a block, until the dictionaries are known. The folder lies inside `destination` (the disk that
    has the room, and a move instead of a copy) and is gone after the `with` block, however it ends; so is `destination`
    where this made it and nothing was put there.
    """

    def __init__(self, destination: Path, splits: tuple[str, ...]):
        self._scratch = Scratch(destination, "staging")
        self.folder = self._scratch.folder
        self._chunks: dict[str, list[tuple[Path, int]]] = {split: [] for split in splits}  # with their rows
        self._files: dict[Path, BinaryIO] = {}
        try:
            for split in splits:
                for path in (self.labels(split), self.numerical(split)):
                    self._files[path] = path.open("wb")
        except BaseException:
            self._scratch.remove()
            raise

    def __enter__(self) -> "Staging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # a full disk, which the error on its way says already
                file.close()
        self._scratch.remove()

    def labels(self, split: str) -> Path:
        """The file of the split's labels, 1 byte a row."""
        return self.folder / f"{split}-label.bin"

    def numerical(self, split: str) -> Path:
        """The file of the split's numerical features, `[rows, M]` float16."""
        return self.folder / f"{split}-numerical.bin"

    def append(self, split: str, labels: np.ndarray | None, numerical: np.ndarray, categorical: pl.DataFrame) -> None:
        """Append n rows.

        Args:
            split: which split they belong to.
            labels: `[n]` bool; None where the split has none.
            numerical: `[n, M]` float16.
            categorical: n rows, a UInt32 column a feature.
        """
        for path, values in ((self.labels(split), labels), (self.numerical(split), numerical)):
            with naming(path):
                self._files[path].write(values.data if values is not None and values.size else b"")
        self._add_chunk(split, categorical)

    def _add_chunk(self, split: str, categorical: pl.DataFrame) -> None:
        chunks = self._chunks[split]
        path = self.folder / f"{split}-{len(chunks):06d}.arrow"
        # Not Parquet with zstd: three quarters of the size, and a tenth of the whole run's time.
        with naming(path):
            categorical.write_ipc(path)
        chunks.append((path, categorical.height))

    def adopt(self, split: str, labels: Path, numerical: Path, chunks: Sequence[tuple[Path, int]]) -> None:
        """Append rows that another process has written in the same form.

        Args:
            split: which split they belong to.
            labels: their file, empty where the split has none; it is removed, as the next is.
            numerical: their file.
            chunks: Arrow files of the categorical values, which stay where they are, with their rows.
        """
        for path, source in ((self.labels(split), labels), (self.numerical(split), numerical)):
            with naming(path):
                append_file(source, self._files[path])
            source.unlink()
        self._chunks[split] += chunks

    def chunks(self, split: str) -> Sequence[tuple[Path, int]]:
        """The files of the split's categorical values, in row order, with their rows."""
        return tuple(self._chunks[split])

    def flush(self) -> None:
        """Close the label and numerical files, so that they can be moved; nothing can be appended afterwards."""
        for path, file in self._files.items():
            with naming(path):
                file.close()

    def cut(self, split: str, rows: int, other: str) -> int:
        """After `flush`: the rows of a split behind its first ones become those of another, which has none yet.

        Args:
            split: that is cut.
            rows: that it keeps.
            other: the split that gets the others.

        Returns:
            the sum of the labels that it gets.
        """
        held = sum(count for _, count in self._chunks[split])
        clicks = 0
        for path_of in (self.labels, self.numerical):
            path, target = path_of(split), path_of(other)
            width = path.stat().st_size // held
            with path.open("r+b") as source, naming(target), target.open("wb") as tail:
                source.seek(rows * width)
                while content := source.read(_COPIED_BYTES):
                    tail.write(content)
                    clicks += sum(content) if path_of == self.labels else 0
                source.truncate(rows * width)
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

    def values(self, splits: Sequence[str], feature: str) -> pl.LazyFrame:
        """One categorical feature of some splits, one after another, as a stream in row order."""
        return pl.scan_ipc([path for split in splits for path, _ in self._chunks[split]], glob=False).select(feature)

    def columns(self, split: str, feature: str) -> Iterator[pl.Series]:
        """One categorical feature of a split, in blocks in row order."""
        return (pl.scan_ipc(path, glob=False).select(feature).collect().to_series() for path, _ in self._chunks[split])
