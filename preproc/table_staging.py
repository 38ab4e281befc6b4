"""What lies on the disk between reading a table and writing the dataset: what features are made of, block by block, and read back by columns."""

import glob
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import polars as pl

from dataloading.contract import DatasetError
from preproc.resume import Progress
from preproc.stores import Source
from utils.naming import naming
from utils.scratch import Scratch

LABEL, GROUP, SPLIT = "label", "group", "split"
_COLUMNS_A_FILE = 32


def feature_column(name: str) -> str:
    """Where a feature is staged."""
    return f"f {name}"


def key_column(name: str) -> str:
    """Where a column that predictions carry is staged."""
    return f"k {name}"


class TableStaging:
    """Blocks of rows of several groups of files (`train`, `test`, …), each a few Parquet files; gone after the `with` block, however it ends.

    The folder lies inside `destination`: the disk that has the room. A block is stored in parts, so that reading one of thousands of columns does not
    read of all others where they are.
    """

    def __init__(self, destination: Path, groups: Sequence[str], progress: Progress):
        self._scratch, self._progress = Scratch(destination, "staging", progress.takes), progress
        self.folder = self._scratch.folder
        self._blocks: dict[str, int] = dict.fromkeys(groups, 0)
        self._schema: pl.Schema | None = None
        self._parts: list[list[str]] = []

    def __enter__(self) -> "TableStaging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.end(self._scratch, kind is not None)

    def blocks(self, group: str, first: int = 0) -> list[Path]:
        """The files of a group's blocks from the first on."""
        return [self._path(group, part, block) for block in range(first, self._blocks[group]) for part in range(len(self._parts))]

    def count(self, group: str) -> int:
        """How many blocks a group has."""
        return self._blocks[group]

    def restore(self, group: str, blocks: int) -> None:
        """Take the first blocks of a group as an earlier run staged them."""
        self._blocks[group] = blocks
        if blocks and not self._parts:
            parts = sorted(self.folder.glob(f"{glob.escape(group)}-*-000000.parquet"), key=lambda path: int(path.name.split("-")[-2]))
            self._schema = pl.Schema({name: dtype for path in parts for name, dtype in pl.read_parquet_schema(path).items()})
            self._parts = _parts(self._schema)

    def append(self, group: str, rows: pl.DataFrame, source: Source) -> None:
        """Add rows, in their order. Raises DatasetError where a column is of another type than in the files before."""
        if not self._parts:
            self._parts = _parts(rows.schema)
            self._schema = rows.schema
        for name, dtype in rows.schema.items():
            if self._schema.get(name, dtype) != dtype:
                before = self._schema[name]
                raise DatasetError(f"{source}: column {name[2:]} holds {dtype}, and {before} in the files before it; expected one type (--keep)")
        for part, names in enumerate(self._parts):
            path = self._path(group, part, self._blocks[group])
            with naming(path):
                kept = [name for name in dict.fromkeys([*names, SPLIT]) if name in rows.schema]
                rows.select(kept).write_parquet(path, compression="lz4", statistics=False)
        self._blocks[group] += 1

    def scan(self, group: str, rows: pl.Expr | None, *columns: str | pl.Expr) -> pl.LazyFrame:
        """Columns of those rows of a group for which the expression holds (None: all), as a stream in row order.

        They must stand in one part: one feature, all numbers, all keys, or label and group.
        """
        names = {name for column in columns for name in ([column] if isinstance(column, str) else column.meta.root_names())}
        part = next(i for i, part in enumerate(self._parts) if names <= {*part, SPLIT})
        frame = pl.scan_parquet([self._path(group, part, block) for block in range(self._blocks[group])], glob=False)
        return (frame if rows is None else frame.filter(rows)).select(*columns)

    def _path(self, group: str, part: int, block: int) -> Path:
        return self.folder / f"{group}-{part}-{block:06d}.parquet"


def _parts(schema: pl.Schema) -> list[list[str]]:
    """The columns of each file of a block: label, group and split with the first features; keys; numbers; the other features by a few."""
    first = [name for name in schema if name in (LABEL, GROUP, SPLIT)]
    keys = [name for name in schema if name.startswith("k ")]
    numbers = [name for name, dtype in schema.items() if dtype == pl.Float64 and name.startswith("f ")]
    others = [name for name in schema if name.startswith("f ") and name not in {*numbers}]
    few = [others[start : start + _COLUMNS_A_FILE] for start in range(0, len(others), _COLUMNS_A_FILE)]
    return [part for part in ([*first, *few[0]], keys, numbers, *few[1:]) if part]
