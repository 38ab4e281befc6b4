"""Clicks between collecting their statistics and writing their features, in a hidden folder of the destination, one file a block."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import polars as pl

from preproc.shared.polars_engine import batches
from utils.naming import naming
from utils.scratch import Scratch

_ROWS_AT_ONCE = 1 << 18


class StagedClicks:
    """Clicks of several splits, appended block by block. The folder is removed on exit from the `with` block.

    Args:
        destination: folder in which the staging folder is made.
        sorted_splits: splits whose rows are returned in the order of their displays, so that the rows of a display are adjacent; other splits keep
            the order in which rows were appended.
    """

    def __init__(self, destination: Path, sorted_splits: tuple[str, ...]):
        self._scratch = Scratch(destination, "staging")
        self.folder = self._scratch.folder
        self._sorted = sorted_splits
        self._files: dict[str, list[tuple[Path, int]]] = {}  # files and their numbers of rows
        self._last: dict[str, int] = {}
        self._rising: dict[str, bool] = {}

    def __enter__(self) -> "StagedClicks":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._scratch.remove()

    def append(self, split: str, rows: pl.DataFrame) -> None:
        """Append rows of `display_id`, `ad_id`, `clicked`."""
        if rows.is_empty():
            return
        files, displays = self._files.setdefault(split, []), rows["display_id"]
        rising = displays.is_sorted() and displays[0] >= self._last.get(split, displays[0])
        self._rising[split] = self._rising.get(split, True) and rising
        self._last[split] = displays[-1]
        with naming(path := self.folder / f"{split}-{len(files):06d}.arrow"):
            rows.write_ipc(path)
        files.append((path, rows.height))

    def files(self, split: str) -> list[tuple[Path, int]]:
        """Return the files of a split, in order, and the number of rows of each; sort them first where the split needs it."""
        found = self._files[split]
        if split in self._sorted and not self._rising[split]:
            with naming(path := self.folder / f"{split}-sorted.arrow"):
                frame = pl.scan_ipc([path for path, _ in found], glob=False)
                frame.sort("display_id", maintain_order=True).sink_ipc(path)
            found = self._files[split] = [(path, sum(rows for _, rows in found))]
            self._rising[split] = True
        return found

    def blocks(self, split: str) -> Iterator[pl.DataFrame]:
        """Yield the rows of a split, in batches."""
        yield from batches(pl.scan_ipc([path for path, _ in self.files(split)], glob=False), _ROWS_AT_ONCE)
