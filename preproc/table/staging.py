"""What lies on the disk between reading a table and writing the dataset: what features are made of, block by block, and read back by columns."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import polars as pl

from dataloading.features import DatasetError
from preproc.reading.stores import Source
from preproc.shared.resume import Progress
from utils.naming import naming
from utils.scratch import Scratch

LABEL, GROUP, SPLIT = "label", "group", "split"
_COLUMNS_A_FILE = 32
_KEYS = ".parquet"  # of texts, nearly all of them different, half the size of Arrow


_FEATURE, _KEY = "f ", "k "  # in front of the names of columns that are staged


def feature_column(name: str) -> str:
    """Where a feature is staged."""
    return _FEATURE + name


def key_column(name: str) -> str:
    """Where a column that predictions carry is staged."""
    return _KEY + name


def is_feature(column: str) -> bool:
    """Whether a feature is staged there."""
    return column.startswith(_FEATURE)


def staged_name(column: str) -> str:
    """Of the feature or the column that is staged there."""
    return column.removeprefix(_FEATURE if is_feature(column) else _KEY)


class Coded(NamedTuple):
    """Texts of n rows of a block: `codes` UInt32, or lists of them, are places in `texts`, which holds each once, and null for what is missing."""

    codes: pl.Series
    texts: pl.Series


class Block(NamedTuple):
    """Where a block lies: a folder, and its number there.

    `first`: its staged split is the place of the row in a part of its group, before which so many rows stand; None: it is staged as it is.
    """

    folder: Path
    number: int
    first: int | None = None


class TableBlocks:
    """Blocks of rows of several groups of files (`train`, `test`, …), each a few Arrow files in a folder that exists.

    A block is stored in parts, so that reading one of thousands of columns does not read of all others where they are. Of features made of texts the
    rows hold codes; the texts of a part stand in a file beside it, each once, so that they are counted and looked up once a block and not once a row.
    These are Arrow streams, of which Polars reads one column in a tenth of the time that it takes for Arrow files.

    Args:
        folder: of the blocks that are appended.
        groups: their names.
    """

    def __init__(self, folder: Path, groups: Iterable[str]):
        self.folder = folder
        self.split_of: Callable[[int], pl.Expr] | None = None  # gives what splits by the rows before a part: see `Block.first`
        self._blocks: dict[str, list[Block]] = {group: [] for group in groups}
        self._schema: pl.Schema | None = None
        self._parts: list[list[str]] = []
        self._coded: dict[str, int] = {}  # the part of each feature made of texts
        self._num_texts: dict[str, int] = {}

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
        self._take(rows.schema, texts, source)
        block = Block(self.folder, len(self._blocks[group]))
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
        self._blocks[group].append(block)

    def _take(self, schema: pl.Schema, coded: Iterable[str], source: Source) -> None:
        if not self._parts:
            self._coded = {name: place // _COLUMNS_A_FILE for place, name in enumerate(coded)}
            self._parts = _parts(schema, self._coded)
            self._schema = schema
        for name, dtype in schema.items():
            if self._schema.get(name, dtype) != dtype:
                before = self._schema[name]
                raise DatasetError(
                    f"{source}: column {staged_name(name)} holds {dtype}, and {before} in the files before it; expected one type (--keep)"
                )

    def adopt(self, group: str, other: "TableBlocks", folder: Path, source: Source, first: int | None = None) -> list[Block]:
        """Take the blocks that another process has appended to its own.

        Args:
            group: which they belong to.
            other: what it has appended to.
            folder: where that lies now.
            source: the file that they are from.
            first: see `Block`.

        Returns:
            the blocks as they are known here.

        Raises:
            DatasetError: a column is of another type than in the files before.
        """
        if not other._blocks[group]:
            return []
        self._take(other._schema, other._coded, source)
        found = [Block(folder, block.number, first) for block in other._blocks[group]]
        self._blocks[group] += found
        for name, texts in other._num_texts.items():
            self._num_texts[name] = self._num_texts.get(name, 0) + texts
        return found

    def of(self, blocks: Mapping[str, Sequence[Block]], feature: str | None = None) -> "TableBlocks":
        """Some of the blocks of each group, for another process to read; only a feature of them (None: all columns)."""
        found, name = TableBlocks(self.folder, ()), None if feature is None else feature_column(feature)
        found.split_of, found._parts, found._coded = self.split_of, self._parts, self._coded
        if name is not None:  # of thousands of columns, so that little is sent; a part's kind is told by its first
            found._parts = [[*part[:1], *([name] if name in part[1:] else [])] for part in self._parts]
            found._coded = {name: self._coded[name]} if name in self._coded else {}
        found._blocks = {group: list(some) for group, some in blocks.items()}
        return found

    def scan(self, group: str, rows: pl.Expr | None, *columns: str | pl.Expr) -> pl.LazyFrame:
        """Columns of those rows of a group for which the expression holds (None: all), as a stream in row order.

        They must stand in one part: numbers, keys, or label and group.
        """
        names = {name for column in columns for name in ([column] if isinstance(column, str) else column.meta.root_names())}
        part = next(i for i, part in enumerate(self._parts) if names <= {*part, SPLIT})
        blocks = self._blocks[group]
        if rows is None or blocks[0].first is None:
            frame = _scan([self._path(group, part, block) for block in blocks])
        else:
            frame = pl.concat(_scan([self._path(group, part, block)]).with_columns(self.split_of(block.first)) for block in blocks)
        return (frame if rows is None else frame.filter(rows)).select(*columns)

    def coded(self, group: str, rows: pl.Expr | None, feature: str) -> Iterator[Coded]:
        """A feature made of texts, block by block; of those rows for which the expression holds."""
        name = feature_column(feature)
        for block in self._blocks[group]:
            codes, words = self._coded_paths(group, self._coded[name], block)
            found = pl.read_ipc_stream(codes, columns=[name] if rows is None else [name, SPLIT])
            found = found if rows is None or block.first is None else found.with_columns(self.split_of(block.first))
            found = found if rows is None else found.filter(rows)
            yield Coded(found[name], pl.read_ipc_stream(words, columns=[name]).to_series().explode())

    def num_texts(self, feature: str) -> int:
        """The texts of all blocks: a bound of a feature's different ones."""
        return self._num_texts.get(feature_column(feature), 0)

    def _path(self, group: str, part: int, block: Block) -> Path:
        keys = self._parts[part][0].startswith("k ")
        return block.folder / f"{group}-{part}-{block.number:06d}{_KEYS if keys else '.arrow'}"

    def _coded_paths(self, group: str, part: int, block: Block) -> tuple[Path, Path]:
        return block.folder / f"{group}-{part}-{block.number:06d}.codes", block.folder / f"{group}-{part}-{block.number:06d}.texts"


class TableStaging(TableBlocks):
    """What a run stages; gone after the `with` block, however it ends. The folder lies inside `destination`: the disk that has the room."""

    def __init__(self, destination: Path, groups: Sequence[str], progress: Progress):
        self._scratch, self._progress = Scratch(destination, "staging", progress.takes), progress
        super().__init__(self._scratch.folder, groups)

    def __enter__(self) -> "TableStaging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.end(self._scratch, kind is not None)

    def state(self, group: str) -> dict[str, Any]:
        """What has been staged so far, for `restore`."""
        return {"blocks": len(self._blocks[group]), "parts": self._parts, "coded": self._coded, "num_texts": self._num_texts}

    def files(self, group: str, first: int) -> list[Path]:
        """The files of a group's blocks from the first on."""
        blocks = self._blocks[group][first:]
        coded = [path for block in blocks for part in sorted({*self._coded.values()}) for path in self._coded_paths(group, part, block)]
        return [self._path(group, part, block) for block in blocks for part in range(len(self._parts))] + coded

    def restore(self, group: str, state: dict[str, Any]) -> None:
        """Take the blocks of a group as an earlier run staged them."""
        blocks, self._parts, self._coded, self._num_texts = (state[name] for name in ("blocks", "parts", "coded", "num_texts"))
        self._blocks[group] = [Block(self.folder, number) for number in range(blocks)]
        if blocks:
            paths = [self._path(group, part, self._blocks[group][0]) for part in range(len(self._parts))]
            schemas = [pl.read_parquet_schema(path) if path.suffix == _KEYS else pl.read_ipc_schema(path) for path in paths]
            self._schema = pl.Schema({name: dtype for schema in [*schemas, self._schema or {}] for name, dtype in schema.items()})


@dataclass(frozen=True)
class Split:
    """A split: the group of files it comes from, and which of their staged rows are its own (None: all)."""

    group: str
    rows: pl.Expr | None


@dataclass(frozen=True)
class StagedRows:
    """Rows of one or more splits, one after another."""

    staging: TableBlocks
    parts: Sequence[Split]

    def scan(self, *columns: str | pl.Expr) -> pl.LazyFrame:
        """See `TableBlocks.scan`."""
        frames = [self.staging.scan(part.group, part.rows, *columns) for part in self.parts]
        return frames[0] if len(frames) == 1 else pl.concat(frames)

    def coded(self, feature: str) -> Iterator[Coded]:
        """See `TableBlocks.coded`."""
        for part in self.parts:
            yield from self.staging.coded(part.group, part.rows, feature)


def _scan(paths: Sequence[Path]) -> pl.LazyFrame:
    return pl.scan_parquet(paths, glob=False) if paths[0].suffix == _KEYS else pl.scan_ipc(paths, glob=False)


def _parts(schema: pl.Schema, coded: Container[str]) -> list[list[str]]:
    """The columns of each Arrow file of a block: label, group and split, with one that all groups have, by which rows are counted; keys; numbers."""
    first = [name for name in schema if name in (LABEL, GROUP, SPLIT)] + [name for name in schema if is_feature(name)][:1]
    keys = [name for name in schema if name.startswith("k ")]
    numbers = [name for name in schema if is_feature(name) and name not in coded]
    return [part for part in (first, keys, numbers) if part]
