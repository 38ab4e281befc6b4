"""What lies on the disk between reading a table and writing the dataset: what features are made of, block by block, and read back by columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import polars as pl

from dataloading.contract import DatasetError
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


class Coded(NamedTuple):
    """Texts of n rows of a block: `codes` UInt32, or lists of them, are places in `texts`, which holds each once, and null for what is missing."""

    codes: pl.Series
    texts: pl.Series


class TableStaging:
    """Blocks of rows of several groups of files (`train`, `test`, …), each a few Arrow files; gone after the `with` block, however it ends.

    The folder lies inside `destination`: the disk that has the room. A block is stored in parts, so that reading one of thousands of columns does not
    read of all others where they are. Of features made of texts the rows hold codes; the texts of a part stand in a file beside it, each once, so
    that they are counted and looked up once a block and not once a row.
    """

    def __init__(self, destination: Path, groups: Sequence[str]):
        self._scratch = Scratch(destination, "staging")
        self.folder = self._scratch.folder
        self._blocks: dict[str, int] = dict.fromkeys(groups, 0)
        self._schema: pl.Schema | None = None
        self._parts: list[list[str]] = []
        self._num_texts: dict[str, int] = {}

    def __enter__(self) -> "TableStaging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._scratch.remove()

    def append(self, group: str, rows: pl.DataFrame, texts: Mapping[str, pl.Series], source: Source) -> None:
        """Add rows, in their order.

        Args:
            group: which they belong to.
            rows: their columns; codes of features made of texts.
            texts: of these features, see `Coded`.
            source: the file that they are from.

        Raises:
            DatasetError: a column is of another type than in the files before.
        """
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
                rows.select(name for name in dict.fromkeys([*names, SPLIT]) if name in rows.schema).write_ipc(path)
            if held := {name: [texts[name]] for name in names if name in texts}:
                with naming(path := _texts_path(path)):
                    pl.DataFrame(held).write_ipc(path)
        for name, found in texts.items():
            self._num_texts[name] = self._num_texts.get(name, 0) + len(found)
        self._blocks[group] += 1

    def scan(self, group: str, rows: pl.Expr | None, *columns: str | pl.Expr) -> pl.LazyFrame:
        """Columns of those rows of a group for which the expression holds (None: all), as a stream in row order.

        They must stand in one part: one feature, all numbers, all keys, or label and group.
        """
        names = {name for column in columns for name in ([column] if isinstance(column, str) else column.meta.root_names())}
        frame = pl.scan_ipc([self._path(group, self._part(names), block) for block in range(self._blocks[group])], glob=False)
        return (frame if rows is None else frame.filter(rows)).select(*columns)

    def coded(self, group: str, rows: pl.Expr | None, feature: str) -> Iterator[Coded]:
        """A feature made of texts, block by block; of those rows for which the expression holds."""
        name = feature_column(feature)
        part = self._part({name})
        for block in range(self._blocks[group]):
            path = self._path(group, part, block)
            codes = pl.read_ipc(path, columns=[name]) if rows is None else pl.read_ipc(path, columns=[name, SPLIT]).filter(rows)
            yield Coded(codes[name], pl.read_ipc(_texts_path(path), columns=[name]).to_series().explode())

    def num_texts(self, feature: str) -> int:
        """The texts of all blocks: a bound of a feature's different ones."""
        return self._num_texts.get(feature_column(feature), 0)

    def _part(self, names: set[str]) -> int:
        return next(i for i, part in enumerate(self._parts) if names <= {*part, SPLIT})

    def _path(self, group: str, part: int, block: int) -> Path:
        return self.folder / f"{group}-{part}-{block:06d}.arrow"


@dataclass(frozen=True)
class StagedRows:
    """Rows of one or more groups, one after another: of each, in their order, those for which an expression holds (None: all)."""

    staging: TableStaging
    parts: Sequence[tuple[str, pl.Expr | None]]

    def scan(self, *columns: str | pl.Expr) -> pl.LazyFrame:
        """See `TableStaging.scan`."""
        frames = [self.staging.scan(group, rows, *columns) for group, rows in self.parts]
        return frames[0] if len(frames) == 1 else pl.concat(frames)

    def coded(self, feature: str) -> Iterator[Coded]:
        """See `TableStaging.coded`."""
        for group, rows in self.parts:
            yield from self.staging.coded(group, rows, feature)


def _texts_path(path: Path) -> Path:
    return path.with_suffix(".texts")


def _parts(schema: pl.Schema) -> list[list[str]]:
    """The columns of each file of a block: label, group and split with the first features; keys; numbers; the other features by a few."""
    first = [name for name in schema if name in (LABEL, GROUP, SPLIT)]
    keys = [name for name in schema if name.startswith("k ")]
    numbers = [name for name, dtype in schema.items() if dtype == pl.Float64 and name.startswith("f ")]
    others = [name for name in schema if name.startswith("f ") and name not in {*numbers}]
    few = [others[start : start + _COLUMNS_A_FILE] for start in range(0, len(others), _COLUMNS_A_FILE)]
    return [part for part in ([*first, *few[0]], keys, numbers, *few[1:]) if part]
