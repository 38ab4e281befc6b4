"""Columns that are added to the rows of a table as they are read: those of side tables (--join), then lists of one-hot columns (--list)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from dataloading.features import DatasetError
from preproc.reading.stores import Source
from preproc.table.side_tables import Join, listed
from utils.encoding.columns import Made, flag

RECORD = "added_columns"  # of a dataset's metadata: the columns that each flag added


@dataclass(frozen=True)
class OneHotList:
    """A list feature made of one-hot columns.

    Attributes:
        name: of the column of lists.
        patterns: names of columns; `*`, at most once in each, stands for any text.
        columns: the columns that the patterns match, in the order of the rows' columns.
        values: for each of these columns, the value that it puts into the list: the text that `*` stands for, or else the column's name.
    """

    name: str
    patterns: tuple[str, ...]
    columns: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The flag, as the user wrote it."""
        return f"--list {self.name}={','.join(self.patterns)}"

    def matched(self, names: Sequence[str], where: str) -> "OneHotList":
        """Return the list with the columns that its patterns match among `names`. Raises DatasetError where a pattern matches none."""
        values: dict[str, str] = {}
        for pattern in self.patterns:
            before, star, behind = pattern.partition("*")
            fits = re.compile(f"{re.escape(before)}(.*){re.escape(behind)}" if star else f"({re.escape(pattern)})", re.DOTALL).fullmatch
            found = {name: match[1] or name for name in names if (match := fits(name))}
            if not found:
                raise DatasetError(f"{self.label}: {pattern} matches no column of {where}; it has {listed(names)}")
            values = found | values
        columns = tuple(name for name in names if name in values)
        return replace(self, columns=columns, values=tuple(values[name] for name in columns))

    def of(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        """Return the values of the columns that are set, in the order of the columns: lists of texts."""
        words = [pl.when(flag(column, schema[column]).value).then(pl.lit(value)) for column, value in zip(self.columns, self.values, strict=True)]
        return pl.concat_list(words).list.drop_nulls().alias(self.name)


@dataclass(frozen=True)
class ExtraColumns:
    """The columns added to rows: of side tables, in the order of the flags, each of which may have a key of the one before; then lists."""

    joins: tuple[Join, ...] = ()
    lists: tuple[OneHotList, ...] = ()

    @property
    def files(self) -> list[Source]:
        """The files of all side tables."""
        return [source for join in self.joins for source in join.files]

    @property
    def names(self) -> list[str]:
        """The columns that are added."""
        return [name for join in self.joins for name in join.columns] + [one.name for one in self.lists]

    @property
    def sources(self) -> frozenset[str]:
        """The columns from which they are made: keys and one-hot columns."""
        return frozenset([*(join.key for join in self.joins), *self.one_hot])

    @property
    def one_hot(self) -> list[str]:
        """The one-hot columns of all lists."""
        return [column for one in self.lists for column in one.columns]

    def recorded(self) -> dict[str, dict[str, list[str]]]:
        """Return their part of the dataset's metadata."""
        added = {join.label: list(join.columns) for join in self.joins} | {one.label: [one.name] for one in self.lists}
        return {RECORD: added} if added else {}

    def resolved(self, folder: Path, names: Sequence[str], where: str) -> "ExtraColumns":
        """Read the side tables, and match the patterns of the lists.

        Args:
            folder: for the side tables; every process that reads rows has access to it.
            names: the columns of the first file of rows.
            where: this file, for messages.

        Raises:
            DatasetError: a key or pattern matches no column, a side table is not valid (see `Join.read`), or two columns have the same name.
        """
        names, joins, lists = list(names), [], []
        for number, join in enumerate(self.joins):
            if join.key not in names:
                raise DatasetError(f"{join.label}: {where} has no column {join.key}; it has {listed(names)}")
            joins.append(join.read(folder / f"side-table-{number}.arrow"))
            names += _new(joins[-1].columns, join.label, names, where)
        for one in self.lists:
            lists.append(one.matched(names, where))
        for one in self.lists:
            names += _new([one.name], one.label, names, where)
        return ExtraColumns(tuple(joins), tuple(lists))

    def needed(self, wanted: Iterable[str]) -> list[str]:
        """Return the columns that are read of the files so that the wanted ones can be made, each once."""
        return self._closure(wanted)[0]

    def _closure(self, wanted: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the columns of the files, and those of side tables, that the wanted ones need."""
        found, joined = dict.fromkeys(wanted), []
        for one in self.lists:
            if one.name in found:
                del found[one.name]
                found |= dict.fromkeys(one.columns)
        for join in reversed(self.joins):
            if taken := [name for name in join.columns if name in found]:
                joined += taken
                found = dict.fromkeys([*(name for name in found if name not in taken), join.key])
        return list(found), joined

    def add(self, frame: pl.DataFrame, wanted: Iterable[str]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
        """Add the wanted columns to n rows.

        Returns:
            the rows, and for each side table that is used, by its label, a mask of the rows whose key it lacks, Boolean, (n).

        Raises:
            ValueError: the type of a key has no texts, or that of a one-hot column no 0 and 1.
        """
        wanted = list(wanted)
        joined, lacking = self._closure(wanted)[1], {}
        for join in self.joins:
            if columns := [name for name in join.columns if name in joined]:
                found, lacking[join.label] = join.look_up(frame, columns)
                frame = frame.hstack(found)
        return frame.with_columns(one.of(frame.schema) for one in self.lists if one.name in wanted), lacking

    def checks(self, schema: Mapping[str, pl.DataType], wanted: Iterable[str]) -> dict[str, Made]:
        """Return the conversion of each one-hot column that is read, by its name; see `columns.flag`."""
        wanted = set(wanted)
        return {column: flag(column, schema[column]) for one in self.lists if one.name in wanted for column in one.columns}


def _new(added: Sequence[str], label: str, names: Sequence[str], where: str) -> list[str]:
    """Return names of columns that are added. Raises DatasetError where a column has such a name already."""
    for name in added:
        if name in names:
            raise DatasetError(f"{label}: adds a column {name}, which {where} or an earlier flag has already; rename one of them")
    return list(added)
