"""Staging files on disk between reading a table and writing the dataset; they are written by blocks of rows and read back by columns."""

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

LABEL, GROUP, WEIGHT, SPLIT = "label", "group", "weight", "split"
_COLUMNS_A_FILE = 32
_KEYS = ".parquet"  # for texts that are nearly all distinct, half the size of Arrow


_FEATURE, _KEY, _WEIGHTS = "f ", "k ", "w "  # prefixes of the names of staged columns


def feature_column(name: str) -> str:
    """Return the name of the staged column of a feature."""
    return _FEATURE + name


def key_column(name: str) -> str:
    """Return the name of the staged column of a column that predictions carry."""
    return _KEY + name


def weights_column(name: str) -> str:
    """Return the name of the staged column of the weights of a feature's values."""
    return _WEIGHTS + name


def is_feature(column: str) -> bool:
    """Return True if a staged column holds a feature."""
    return column.startswith(_FEATURE)


def has_weights(column: str) -> bool:
    """Return True if a staged column holds the weights of a feature's values."""
    return column.startswith(_WEIGHTS)


def staged_name(column: str) -> str:
    """Return the name of the feature or column that a staged column holds."""
    return column.removeprefix(_FEATURE if is_feature(column) else _WEIGHTS if has_weights(column) else _KEY)


class Coded(NamedTuple):
    """Texts of a block's n rows.

    `codes`, UInt32 or lists of UInt32, are indices in `texts`. These hold each text once, and null for missing values.
    """

    codes: pl.Series
    texts: pl.Series


class Block(NamedTuple):
    """The place of a block: its folder, and its number there.

    `first`: if set, the block's staged split is each row's place in a part of the group, and `first` is the number of the group's rows before that
    part. None: the split is staged in its final form.
    """

    folder: Path
    number: int
    first: int | None = None


class TableBlocks:
    """Blocks of rows of several groups of files (`train`, `test`, …). Each block is stored as a few Arrow files in an existing folder.

    A block is stored in parts, so that reading one of thousands of columns does not read the metadata of all others. Rows hold codes for features
    made of texts. The texts of a part are in a file beside it, each once, so that they are counted and looked up once a block and not once a row.
    Codes and texts are Arrow streams, from which Polars reads one column in a tenth of the time that it takes for Arrow files.

    Args:
        folder: the folder of the blocks that are appended.
        groups: the names of the groups.
    """

    def __init__(self, folder: Path, groups: Iterable[str]):
        self.folder = folder
        # returns the split's expression, given the number of rows before a part; see `Block.first`
        self.split_of: Callable[[int], pl.Expr] | None = None
        self._blocks: dict[str, list[Block]] = {group: [] for group in groups}
        self._schema: pl.Schema | None = None
        self._parts: list[list[str]] = []
        self._coded: dict[str, int] = {}  # the part of each feature made of texts
        self._num_texts: dict[str, int] = {}
        self.canonical: set[tuple[str, str]] = set()  # groups and features of whose texts all were found to be canonical

    def append(self, group: str, rows: pl.DataFrame, texts: Mapping[str, pl.Series], source: Source) -> None:
        """Add rows, in their order.

        Args:
            group: the group to which they belong.
            rows: their staged columns, with codes for features made of texts.
            texts: the texts of these features; see `Coded`.
            source: the file from which they were read.

        Raises:
            DatasetError: a column has another type than in the previous files.
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
                    f"{source}: column {staged_name(name)} holds {dtype}, but {before} in the files before it; expected one type (--keep)"
                )

    def adopt(self, group: str, other: "TableBlocks", folder: Path, source: Source, first: int | None = None) -> list[Block]:
        """Add the blocks that another process has staged, without copying them.

        Args:
            group: the group to which they belong.
            other: the other process's staging.
            folder: the folder that holds its blocks now.
            source: the file from which they were read.
            first: see `Block`.

        Returns:
            the blocks with their new folder.

        Raises:
            DatasetError: a column has another type than in the previous files.
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
        """Return a view of some blocks of each group, for another process to read; of one feature only (None: all columns)."""
        found, name = TableBlocks(self.folder, ()), None if feature is None else feature_column(feature)
        names = () if feature is None else (name, weights_column(feature))
        found.split_of, found._parts, found._coded = self.split_of, self._parts, self._coded
        if name is not None:
            # Drop the names of thousands of other columns, so that little is sent. Keep a part's first column: it determines the file type.
            found._parts = [[*part[:1], *(other for other in part[1:] if other in names)] for part in self._parts]
            found._coded = {name: self._coded[name]} if name in self._coded else {}
        found._blocks = {group: list(some) for group, some in blocks.items()}
        return found

    def scan(self, group: str, rows: pl.Expr | None, *columns: str | pl.Expr) -> pl.LazyFrame:
        """Return a lazy frame of columns, with the rows of a group for which the expression holds (None: all), in row order.

        All columns must be in the same part: numbers, keys, weights of values, or label, group and weight.
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
        """Yield the codes and texts of a feature, block by block, for the rows for which the expression holds (None: all)."""
        name = feature_column(feature)
        for block in self._blocks[group]:
            codes, words = self._coded_paths(group, self._coded[name], block)
            found = pl.read_ipc_stream(codes, columns=[name] if rows is None else [name, SPLIT])
            found = found if rows is None or block.first is None else found.with_columns(self.split_of(block.first))
            found = found if rows is None else found.filter(rows)
            yield Coded(found[name], _texts(words, name))

    def texts(self, group: str, feature: str) -> Iterator[pl.Series]:
        """Yield the texts of a feature, block by block."""
        for block in self._blocks[group]:
            yield _texts(self._coded_paths(group, self._coded[feature_column(feature)], block)[1], feature_column(feature))

    def num_texts(self, feature: str) -> int:
        """Return the number of a feature's texts, summed over blocks: an upper bound of its distinct texts."""
        return self._num_texts.get(feature_column(feature), 0)

    def _path(self, group: str, part: int, block: Block) -> Path:
        keys = self._parts[part][0].startswith("k ")
        return block.folder / f"{group}-{part}-{block.number:06d}{_KEYS if keys else '.arrow'}"

    def _coded_paths(self, group: str, part: int, block: Block) -> tuple[Path, Path]:
        return block.folder / f"{group}-{part}-{block.number:06d}.codes", block.folder / f"{group}-{part}-{block.number:06d}.texts"


class TableStaging(TableBlocks):
    """The staging files of a run, in a folder inside `destination`, whose disk has the space.

    The folder is removed at the end of the `with` block, unless `progress` keeps it so that a failed run can be resumed.
    """

    def __init__(self, destination: Path, groups: Sequence[str], progress: Progress):
        self._scratch, self._progress = Scratch(destination, "staging", progress.takes), progress
        super().__init__(self._scratch.folder, groups)

    def __enter__(self) -> "TableStaging":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.end(self._scratch, kind is not None)

    def state(self, group: str) -> dict[str, Any]:
        """Return the state of a group's staging so far, for `restore`."""
        return {"blocks": len(self._blocks[group]), "parts": self._parts, "coded": self._coded, "num_texts": self._num_texts}

    def files(self, group: str, first: int) -> list[Path]:
        """Return the files of a group's blocks, beginning with the block of index `first`."""
        blocks = self._blocks[group][first:]
        coded = [path for block in blocks for part in sorted({*self._coded.values()}) for path in self._coded_paths(group, part, block)]
        return [self._path(group, part, block) for block in blocks for part in range(len(self._parts))] + coded

    def restore(self, group: str, state: dict[str, Any]) -> None:
        """Restore the blocks of a group that an earlier run has staged."""
        blocks, self._parts, self._coded, self._num_texts = (state[name] for name in ("blocks", "parts", "coded", "num_texts"))
        self._blocks[group] = [Block(self.folder, number) for number in range(blocks)]
        if blocks:
            paths = [self._path(group, part, self._blocks[group][0]) for part in range(len(self._parts))]
            schemas = [pl.read_parquet_schema(path) if path.suffix == _KEYS else pl.read_ipc_schema(path) for path in paths]
            self._schema = pl.Schema({name: dtype for schema in [*schemas, self._schema or {}] for name, dtype in schema.items()})


@dataclass(frozen=True)
class Split:
    """A split: the group of files from which it comes, and the condition that selects its rows (None: all rows)."""

    group: str
    rows: pl.Expr | None


@dataclass(frozen=True)
class StagedRows:
    """The rows of one or more splits, one split after another."""

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

    def texts(self, feature: str) -> Iterator[pl.Series]:
        """Yield the texts of a feature in the blocks that hold these rows, also those of other rows."""
        for part in self.parts:
            yield from self.staging.texts(part.group, feature)


def _texts(path: Path, name: str) -> pl.Series:
    return pl.read_ipc_stream(path, columns=[name]).to_series()[0]


def _scan(paths: Sequence[Path]) -> pl.LazyFrame:
    return pl.scan_parquet(paths, glob=False) if paths[0].suffix == _KEYS else pl.scan_ipc(paths, glob=False)


def _parts(schema: pl.Schema, coded: Container[str]) -> list[list[str]]:
    """Return the columns of each part of a block, other than codes and texts: first label, group, weight and split; then keys;
    then numbers; then weights of values in lists.

    The first part also holds one feature: every group has it, even one without a label, so that rows can be counted by it.
    """
    first = [name for name in schema if name in (LABEL, GROUP, WEIGHT, SPLIT)] + [name for name in schema if is_feature(name)][:1]
    keys = [name for name in schema if name.startswith("k ")]
    numbers = [name for name in schema if is_feature(name) and name not in coded]
    return [part for part in (first, keys, numbers, [name for name in schema if has_weights(name)]) if part]
