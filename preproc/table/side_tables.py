"""Side tables (--join): tables of users or items, with one row for each key, whose columns are added to the rows that have the key.

The process of the command reads each side table once and writes it to the staging folder, sorted by its keys. Every process that reads rows, on one
machine or as an executor of Spark, loads that file and looks up the keys of its blocks, so that both engines make the same rows.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from dataloading.features import DatasetError
from preproc.reading.files import FormFlags, form_of
from preproc.reading.stores import Source, release
from preproc.reading.table_file import Block, TableFile
from utils.csv_rows import DOUBLE
from utils.encoding.kinds import Evidence, evidence
from utils.encoding.marks import MARK, TYPES, marked
from utils.encoding.recipe import CATEGORICAL, TEXT, Recipe
from utils.encoding.values import ValueKindError, texts_of
from utils.naming import naming

_KEY = "\0key"  # column of a staged side table; no file has a column of this name
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class Join:
    """A side table.

    Attributes:
        label: its flag, as the user wrote it.
        files: its files.
        key: the rows' column whose values are looked up.
        side_key: the side table's column of these values, each once.
        names: of all its columns, where its files have no header.
        quote: the style of quotes in CSV files (`utils.csv_rows`).
        staged: its rows, sorted by key; None until it is read.
        columns: the columns that it adds to the rows.
        kind: the kind of its keys' values, by which 1, 1.0 and "1" are one key; None until it is read.
    """

    label: str
    files: tuple[Source, ...]
    key: str
    side_key: str
    names: tuple[str, ...] | None = None
    quote: str = DOUBLE
    staged: Path | None = None
    columns: tuple[str, ...] = ()
    kind: str | None = None

    def read(self, path: Path) -> "Join":
        """Write the rows to a file, sorted by key, and return the join with its columns.

        Raises:
            DatasetError: the side table has no such key, a key twice, a row without a key, or no rows; or its files differ in their columns.
        """
        blocks = [block for source in self.files for block in _blocks_of(self, source)]
        if not blocks:
            raise DatasetError(f"{self.files[0]}: holds no rows; expected a table with the key {self.side_key} ({self.label})")
        try:
            rows = pl.concat([block.frame for _, block in blocks], rechunk=True)
        except pl.exceptions.PolarsError as error:
            why = " ".join(str(error).split())[:120]
            raise DatasetError(f"{self.label}: its files have different columns ({why}); expected the same columns and types in each") from None
        try:
            kind = functools.reduce(Evidence.joined, (evidence(block.frame[_KEY]) for _, block in blocks)).kind
            rows = rows.with_columns(_canonical(kind, rows[_KEY]))
        except ValueError as error:
            raise DatasetError(f"{self.files[0]}: column {self.side_key} {error} ({self.label})") from None
        twice = rows[_KEY].is_duplicated()
        if twice.any():
            key = rows[_KEY][twice.arg_max()]
            first, second = (_place(row, blocks) for row in (rows[_KEY] == key).arg_true()[:2])
            raise DatasetError(f"{second}: column {self.side_key}: {key!r} is also in {first}; expected each key once ({self.label})")
        with naming(path):
            rows.sort(_KEY).write_ipc(path, compression="uncompressed")
        return replace(self, staged=path.absolute(), columns=tuple(name for name in rows.columns if name != _KEY), kind=kind)

    def look_up(self, frame: pl.DataFrame, columns: Sequence[str]) -> tuple[pl.DataFrame, pl.Series]:
        """Look up the keys of n rows.

        Args:
            frame: the rows.
            columns: of the side table.

        Returns:
            these columns, n rows, null where the side table lacks the key; and a mask of these rows, Boolean, (n).

        Raises:
            ValueError: the type of the key column cannot be converted to texts.
        """
        rows = _loaded(self.staged)
        try:
            keys = _canonical(self.kind, _marked(frame, self.key))
        except ValueKindError as error:
            raise ValueError(f"column {self.key}: {error} ({self.label})") from None
        places = rows[_KEY].search_sorted(keys.fill_null("")).clip(upper_bound=rows.height - 1)
        lacking = (rows[_KEY].gather(places) != keys).fill_null(True)
        places = pl.select(pl.when(~lacking).then(places)).to_series()
        return rows.select(columns).select(pl.all().gather(places)), lacking

    def some_keys(self) -> list[str]:
        """Return a few of the side table's keys, for messages."""
        return _loaded(self.staged)[_KEY].head(3).to_list()


def _blocks_of(join: Join, source: Source) -> list[tuple[Source, Block]]:
    """Read a file of a side table. Raises DatasetError."""
    file, found = TableFile(source, form_of(source, FormFlags(quote=join.quote, names=join.names))), []
    for block in file.blocks(None, frozenset(), _BLOCK_BYTES):
        if join.side_key not in block.frame.columns:
            hint = f"; {join.label}=COLUMN names the key of the side table" if join.side_key == join.key else ""
            raise DatasetError(f"{source}: has no column {join.side_key}; it has {listed(block.frame.columns)} ({join.label}){hint}")
        try:
            keys = _marked(block.frame, join.side_key)
        except ValueError as error:
            raise DatasetError(f"{source}: {error} ({join.label})") from None
        if keys.has_nulls():
            row = keys.is_null().arg_max()
            raise DatasetError(f"{source}, {block.unit} {block.lines[row]}: column {join.side_key}: nothing, expected a key ({join.label})")
        found.append((source, replace(block, frame=block.frame.drop(join.side_key).with_columns(keys.alias(_KEY)))))
    release(source)
    return found


def _marked(frame: pl.DataFrame, name: str) -> pl.Series:
    """Convert a column of keys to marked texts without blanks around them; null where a key is missing. Raises ValueError where its type has none."""
    dtype = frame.schema[name]
    if dtype not in (pl.String, pl.Categorical, pl.Enum):
        return frame.select(marked(pl.col(name), dtype, name).alias(name))[name]
    found = frame.select(marked(pl.col(name).cast(pl.String).str.strip_chars(), pl.String(), name).alias(name))[name]
    return found.set(found == "", None)


def _canonical(kind: str, keys: pl.Series) -> pl.Series:
    """Return the one text of each key; a typed key among keys that are texts has the text that a CSV file would have. Raises ValueKindError."""
    if kind == TEXT:
        keys = keys.str.replace(f"^{MARK}[{''.join(mark[1] for mark in TYPES)}]", "")
    return texts_of(Recipe(CATEGORICAL, (keys.name,), values=kind), keys)


def _place(row: int, blocks: Sequence[tuple[Source, Block]]) -> str:
    """Return the file and line of a row of all blocks together."""
    for source, block in blocks:
        if row < len(block.lines):
            return f"{source}, {block.unit} {block.lines[row]}"
        row -= len(block.lines)
    raise IndexError(row)


def _loaded(path: Path) -> pl.DataFrame:
    return _version_of(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _version_of(path: Path, time_ns: int) -> pl.DataFrame:
    return pl.read_ipc(path)


def listed(names: Sequence[str]) -> str:
    """Return the first names as a text, for messages."""
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
