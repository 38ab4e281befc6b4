"""What lies on the disk between reading a table and writing the dataset: what features are made of, block by block, and read back by columns."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import polars as pl

from dataloading.contract import DatasetError
from utils.naming import naming
from utils.scratch import Scratch

LABEL, GROUP, SPLIT = "label", "group", "split"


def feature_column(name: str) -> str:
    """Where a feature is staged."""
    return f"f {name}"


def key_column(name: str) -> str:
    """Where a column that predictions carry is staged."""
    return f"k {name}"


class TableStaging:
    """Blocks of rows of several groups of files (`train`, `test`, …), each a Parquet file; gone after the `with` block, however it ends.

    The folder lies inside `destination`: the disk that has the room.
    """

    def __init__(self, destination: Path, groups: Sequence[str]):
        self._scratch = Scratch(destination, "staging")
        self.folder = self._scratch.folder
        self._blocks: dict[str, list[Path]] = {group: [] for group in groups}
        self._schema: pl.Schema | None = None

    def __enter__(self) -> "TableStaging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._scratch.remove()

    def append(self, group: str, rows: pl.DataFrame, source: Path) -> None:
        """Add rows, in their order. Raises DatasetError where a column is of another type than in the files before."""
        if self._schema is None:
            self._schema = rows.schema
        for name, dtype in rows.schema.items():
            if self._schema.get(name, dtype) != dtype:
                raise DatasetError(
                    f"{source}: column {name[2:]} holds {dtype}, {self._schema[name]} in the files before it; expected one type (--keep)"
                )
        blocks = self._blocks[group]
        path = self.folder / f"{group}-{len(blocks):06d}.parquet"
        with naming(path):
            rows.write_parquet(path, compression="lz4", statistics=False)
        blocks.append(path)

    def scan(self, group: str, rows: pl.Expr | None, *columns: str | pl.Expr) -> pl.LazyFrame:
        """Columns of those rows of a group for which the expression holds (None: all), as a stream in row order."""
        frame = pl.scan_parquet(self._blocks[group], glob=False)
        return (frame if rows is None else frame.filter(rows)).select(*columns)
