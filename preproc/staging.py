"""What lies on the disk between reading the log and writing the dataset: typed columns in a hidden folder of the destination."""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import polars as pl

from utils.naming import naming
from utils.scratch import Scratch


class Staging:
    """Columns of several splits, appended block by block and read back one feature at a time.

    Labels and numerical features have their final form already and are moved into the dataset; categorical values wait
    in Parquet files, one a block, until the dictionaries are known. The folder lies inside `destination` (the disk that
    has the room, and a move instead of a copy) and is gone after the `with` block, however it ends; so is `destination`
    where this made it and nothing was put there.
    """

    def __init__(self, destination: Path, splits: tuple[str, ...]):
        self._scratch = Scratch(destination, "staging")
        self.folder = self._scratch.folder
        self._chunks: dict[str, list[Path]] = {split: [] for split in splits}
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

    def append(self, split: str, labels: np.ndarray, numerical: np.ndarray, categorical: pl.DataFrame) -> None:
        """Append n rows.

        Args:
            split: which split they belong to.
            labels: `[n]` bool.
            numerical: `[n, M]` float16.
            categorical: n rows, a UInt32 column a feature.
        """
        for path, values in ((self.labels(split), labels), (self.numerical(split), numerical)):
            with naming(path):
                self._files[path].write(values.data)
        chunks = self._chunks[split]
        path = self.folder / f"{split}-{len(chunks):06d}.parquet"
        # Level 1: three quarters of the size of no compression, and faster here than writing more bytes.
        with naming(path):
            categorical.write_parquet(path, compression="zstd", compression_level=1, statistics=False)
        chunks.append(path)

    def flush(self) -> None:
        """Close the label and numerical files, so that they can be moved; nothing can be appended afterwards."""
        for path, file in self._files.items():
            with naming(path):
                file.close()

    def values(self, split: str, feature: str) -> pl.LazyFrame:
        """One categorical feature of a split, as a stream in row order."""
        return pl.scan_parquet(self._chunks[split], glob=False).select(feature)
