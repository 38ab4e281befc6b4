"""What lies on the disk between reading a table and writing the dataset: what features are made of, block by block, and read back by columns."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import polars as pl

from dataloading.contract import DatasetError
from preproc.resume import Progress
from preproc.stores import Source
from utils.naming import naming
from utils.scratch import Scratch

LABEL, GROUP, SPLIT = "label", "group", "split"
_COLUMNS_A_FILE = 32
_KEYS = ".parquet"  # of texts, nearly all of them different, half the size of Arrow


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
    that they are counted and looked up once a block and not once a row. These are Arrow streams, of which Polars reads one column in a tenth of the
    time that it takes for Arrow files.
    """

    def __init__(self, destination: Path, groups: Sequence[str], progress: Progress):
        self._scratch, self._progress = Scratch(destination, "staging", progress.takes), progress
        self.folder = self._scratch.folder
        self._blocks: dict[str, int] = dict.fromkeys(groups, 0)
        self._schema: pl.Schema | None = None
        self._parts: list[list[str]] = []
        self._coded: dict[str, int] = {}  # the part of each feature made of texts
        self._num_texts: dict[str, int] = {}

    def __enter__(self) -> "TableStaging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.end(self._scratch, kind is not None)

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
            self._parts = _parts(rows.schema, texts)
            self._coded = {name: place // _COLUMNS_A_FILE for place, name in enumerate(texts)}
            self._schema = rows.schema
        for name, dtype in rows.schema.items():
            if self._schema.get(name, dtype) != dtype:
                before = self._schema[name]
                raise DatasetError(f"{source}: column {name[2:]} holds {dtype}, and {before} in the files before it; expected one type (--keep)")
        block = self._blocks[group]
        for part, names in enumerate(self._parts):
            path, kept = self._path(group, part, block), rows.select(name for name in dict.fromkeys([*names, SPLIT]) if name in rows.schema)
            with naming(path):
                kept.write_parquet(path, compression="lz4", statistics=False) if path.suffix == _KEYS else kept.write_ipc(path)
        for part in sorted({*self._coded.values()}):
            names = [name for name in texts if self._coded[name] == part]
            codes, words = self._coded_paths(group, part, block)
            with naming(codes):
                rows.select(name for name in (*names, SPLIT) if name in rows.schema).write_ipc_stream(codes)
            with naming(words):
                pl.DataFrame({name: [texts[name]] for name in names}).write_ipc_stream(words)
        for name, found in texts.items():
            self._num_texts[name] = self._num_texts.get(name, 0) + len(found)
        self._blocks[group] += 1

    def state(self, group: str) -> dict[str, Any]:
        """What has been staged so far, for `restore`."""
        return {"blocks": self._blocks[group], "parts": self._parts, "coded": self._coded, "num_texts": self._num_texts}

    def files(self, group: str, first: int) -> list[Path]:
        """The files of a group's blocks from the first on."""
        blocks = range(first, self._blocks[group])
        coded = [path for block in blocks for part in sorted({*self._coded.values()}) for path in self._coded_paths(group, part, block)]
        return [self._path(group, part, block) for block in blocks for part in range(len(self._parts))] + coded

    def restore(self, group: str, state: dict[str, Any]) -> None:
        """Take the blocks of a group as an earlier run staged them."""
        self._blocks[group], self._parts, self._coded, self._num_texts = (state[name] for name in ("blocks", "parts", "coded", "num_texts"))
        if self._blocks[group]:
            paths = [self._path(group, part, 0) for part in range(len(self._parts))]
            schemas = [pl.read_parquet_schema(path) if path.suffix == _KEYS else pl.read_ipc_schema(path) for path in paths]
            self._schema = pl.Schema({name: dtype for schema in [*schemas, self._schema or {}] for name, dtype in schema.items()})

    def scan(self, group: str, rows: pl.Expr | None, *columns: str | pl.Expr) -> pl.LazyFrame:
        """Columns of those rows of a group for which the expression holds (None: all), as a stream in row order.

        They must stand in one part: numbers, keys, or label and group.
        """
        names = {name for column in columns for name in ([column] if isinstance(column, str) else column.meta.root_names())}
        part = next(i for i, part in enumerate(self._parts) if names <= {*part, SPLIT})
        paths = [self._path(group, part, block) for block in range(self._blocks[group])]
        frame = pl.scan_parquet(paths, glob=False) if paths[0].suffix == _KEYS else pl.scan_ipc(paths, glob=False)
        return (frame if rows is None else frame.filter(rows)).select(*columns)

    def coded(self, group: str, rows: pl.Expr | None, feature: str) -> Iterator[Coded]:
        """A feature made of texts, block by block; of those rows for which the expression holds."""
        name = feature_column(feature)
        for block in range(self._blocks[group]):
            codes, words = self._coded_paths(group, self._coded[name], block)
            found = pl.read_ipc_stream(codes, columns=[name] if rows is None else [name, SPLIT])
            found = found if rows is None else found.filter(rows)
            yield Coded(found[name], pl.read_ipc_stream(words, columns=[name]).to_series().explode())

    def num_texts(self, feature: str) -> int:
        """The texts of all blocks: a bound of a feature's different ones."""
        return self._num_texts.get(feature_column(feature), 0)

    def _path(self, group: str, part: int, block: int) -> Path:
        keys = self._parts[part][0].startswith("k ")
        return self.folder / f"{group}-{part}-{block:06d}{_KEYS if keys else '.arrow'}"

    def _coded_paths(self, group: str, part: int, block: int) -> tuple[Path, Path]:
        return self.folder / f"{group}-{part}-{block:06d}.codes", self.folder / f"{group}-{part}-{block:06d}.texts"


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


def _parts(schema: pl.Schema, coded: Container[str]) -> list[list[str]]:
    """The columns of each Arrow file of a block: label, group and split, with one that all groups have, by which rows are counted; keys; numbers."""
    first = [name for name in schema if name in (LABEL, GROUP, SPLIT)] + [name for name in schema if name.startswith("f ")][:1]
    keys = [name for name in schema if name.startswith("k ")]
    numbers = [name for name in schema if name.startswith("f ") and name not in coded]
    return [part for part in (first, keys, numbers) if part]
