"""Reading of a table's files into staging; every value is checked, and bad rows are reported with file, line, column and value."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import polars as pl
from tqdm import tqdm

from dataloading.features import DatasetError
from preproc.reading.files import JSON_LINES, FormFlags, form_of
from preproc.reading.stores import Source, release
from preproc.reading.table_file import Block, TableFile
from preproc.shared.in_order import in_order
from preproc.shared.resume import Progress
from preproc.shared.text_places import TextPlaces
from preproc.table.columns import Plan
from preproc.table.extra_columns import ExtraColumns
from preproc.table.splits import ROWS, TRAIN, SplitRule
from preproc.table.staging import (
    GROUP,
    LABEL,
    SPLIT,
    WEIGHT,
    TableStaging,
    feature_column,
    has_weights,
    is_feature,
    key_column,
    staged_name,
    weights_column,
)
from utils.encoding import columns
from utils.encoding.columns import Made
from utils.encoding.id_weights import fault, id_weights
from utils.encoding.kinds import is_undecided
from utils.encoding.marks import BLANKS, MARK, escaped
from utils.encoding.recipe import CATEGORICAL
from utils.encoding.values import ValueKindError, texts_of

_SAMPLE_BYTES = 4 << 20  # of JSON lines, whose objects say which columns there are
_ONE_HOT = "1 "  # prefix of the names of one-hot columns among the checked columns


@dataclass
class FileCounts:
    """The counts of rows and bad lines of a group of files."""

    files: list[str]
    rows: int = 0
    bad_lines: int = 0
    unmatched: Counter[str] = field(default_factory=Counter)  # for each side table, by its flag: the rows whose key it lacks

    def check_rows(self, group: str) -> None:
        """Raise DatasetError where the group has no rows; called after its last file."""
        if not self.rows:
            why = f"; {self.bad_lines:,} bad lines were skipped" if self.bad_lines else ""
            raise DatasetError(f"the {group} files hold no rows: {', '.join(self.files)}{why}")


@dataclass(frozen=True)
class Reading:
    """The options for reading files.

    `keep` are the columns that predictions carry. `block_bytes` of text are parsed at once. Rows of the group `unlabelled` have no label;
    `unlabelled_names` are its column names where files have no header and that group's columns differ from the others'. `extra` are added columns.
    """

    form: FormFlags = field(default_factory=FormFlags)
    skip_bad_lines: bool = False
    block_bytes: int = 32 << 20
    keep: tuple[str, ...] = ()
    unlabelled: str | None = None
    unlabelled_names: tuple[str, ...] | None = None
    extra: ExtraColumns = field(default_factory=ExtraColumns)


@dataclass(frozen=True)
class GroupPlan:
    """The plan, split rule and reading options for the rows of one group of files.

    Attributes:
        plan: the features that are made of them.
        divide: the rule that divides them into splits.
        reading: the options for reading them.
        form: the format of the group's files, as far as the user set it.
        lists: the columns that may hold lists.
        optional: the columns that a file may lack; their values are missing then.
    """

    plan: Plan
    divide: SplitRule
    reading: Reading
    form: FormFlags
    lists: frozenset[str]
    optional: frozenset[str] = frozenset()

    @property
    def wanted(self) -> list[str]:
        """The columns that the staged rows are made of."""
        return list(dict.fromkeys([*self.plan.columns, *self.reading.keep, *([self.divide.column] if self.divide.column else [])]))

    def of(
        self,
        file: TableFile,
        source: Source,
        on_read: Callable[[int], object] = lambda count: None,
        byte_range: tuple[int, int] | None = None,
        row_range: tuple[int, int] | None = None,
    ) -> "Iterator[Staged]":
        """Yield the rows of a file, or of a range of it, block by block in staged form.

        Raises:
            DatasetError: a row is bad and bad rows are not skipped.
        """
        extra = self.reading.extra
        coded = _plain_columns(self.plan, {*self.reading.keep, self.divide.column, *extra.sources, *extra.names})
        needed = extra.needed(self.wanted)
        if lacking := self._lacking(file, needed):
            needed, coded = [name for name in needed if name not in lacking], coded - lacking
        blocks = file.tasks(needed, self.lists, self.reading.block_bytes, on_read, byte_range, coded, row_range)
        return in_order(partial(_staged, self, source, partial(_with_missing, block, lacking) if lacking else block) for block in blocks)

    def _lacking(self, file: TableFile, needed: Sequence[str]) -> frozenset[str]:
        """Return the optional columns that a file lacks."""
        optional = self.optional.intersection(needed)
        if not optional:
            return optional
        names = file.names
        if file.form.kind == JSON_LINES:
            first = next(TableFile(file.path, file.form, skip_bad_lines=True).blocks(None, frozenset(), _SAMPLE_BYTES), None)
            names = [] if first is None else first.frame.columns
        return optional.difference(names)


class Staged(NamedTuple):
    """A block in staged form.

    Attributes:
        rows: the staged columns of the valid rows.
        texts: the texts that their codes refer to, for each feature made of texts.
        faults: a description of each other row.
        unmatched: for each side table, by its flag: the valid rows whose key it lacks.
    """

    rows: pl.DataFrame
    texts: dict[str, pl.Series]
    faults: list[str]
    unmatched: Mapping[str, int]


def form_flags(group: str, reading: Reading) -> FormFlags:
    """Return the format of a group's files, as far as the user set it."""
    return replace(reading.form, names=reading.unlabelled_names or reading.form.names) if group == reading.unlabelled else reading.form


def rows_of(group: str, plan: Plan, rule: SplitRule, reading: Reading) -> GroupPlan:
    """Return the plan for the rows of a group; the split rule applies to the group `train` only."""
    made, optional = plan, frozenset()
    if group == reading.unlabelled:
        made, optional = replace(plan, label=None, weight=None), plan.unread.difference(reading.keep)
    return GroupPlan(made, rule if group == TRAIN else SplitRule(), reading, form_flags(group, reading), plan.list_columns, optional)


def stage(
    files: Mapping[str, Sequence[Source]], plan: Plan, rule: SplitRule, reading: Reading, staging: TableStaging, progress: Progress
) -> dict[str, FileCounts]:
    """Read every file once, except those that an earlier run has read.

    Args:
        files: the files of each group.
        plan: the features that are made of the rows.
        rule: the rule that divides the rows of the group `train`.
        reading: the options for reading.
        staging: the staging to which rows are appended.
        progress: the record of files that are read already.

    Returns:
        the counts of each group.

    Raises:
        DatasetError: a file lacks a column, a row is bad and is not skipped, or a group has no valid row.
    """
    tallies = {group: FileCounts([path.name for path in paths]) for group, paths in files.items()}
    total = sum(path.stat().st_size for paths in files.values() for path in paths)
    with tqdm(total=total, desc="reading", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        for group, paths in files.items():
            tally, found = tallies[group], rows_of(group, plan, rule, reading)
            # the first block of the last file that this run read; later blocks of an earlier run would be out of order, so they are not reused
            first_block = -1
            for place, path in enumerate(paths):
                if first_block < 0 and (known := progress.done(f"read {group} {place}")):
                    tally.rows, tally.bad_lines, unmatched, state = known["value"]
                    tally.unmatched = Counter(unmatched)
                    staging.restore(group, state)
                    bar.update(path.stat().st_size)
                    continue
                if first_block < 0:
                    later = list(files)[list(files).index(group) :]
                    progress.forget(f"read {name} {i}" for name in later for i in range(place if name == group else 0, len(files[name])))
                first_block = staging.state(group)["blocks"]
                file = TableFile(path, form_of(path, found.form), reading.skip_bad_lines)
                bad_lines, first_fault = 0, ""
                for rows, texts, faults, unmatched in found.of(file, path, bar.update):
                    if found.divide.by == ROWS:
                        rows = rows.with_columns(found.divide.places(tally.rows, rows.height))
                    if rows.height:
                        staging.append(group, rows, texts, path)
                    tally.rows += rows.height
                    tally.unmatched.update(unmatched)
                    bad_lines, first_fault = bad_lines + len(faults), first_fault or next(iter(faults), "")
                release(path)
                if bad_lines:
                    bar.write(skipped(path, bad_lines, first_fault), file=sys.stderr)
                tally.bad_lines += bad_lines
                value = [tally.rows, tally.bad_lines, tally.unmatched, staging.state(group)]
                progress.complete(f"read {group} {place}", staging.files(group, first_block), value)
            tally.check_rows(group)
    return tallies


def skipped(path: Source, bad_lines: int, first_fault: str) -> str:
    """Return the message about a file whose bad rows were left out."""
    return f"preproc.table: {path}: bad lines skipped: {bad_lines}, the first: {first_fault}"


def _with_missing(parsed: Callable[[], Block], names: frozenset[str]) -> Block:
    """Return a block with columns of missing values."""
    block = parsed()
    return replace(block, frame=block.frame.with_columns(pl.lit(None, pl.String).alias(name) for name in sorted(names)))


def _staged(group: GroupPlan, path: Source, parsed: Callable[[], Block]) -> Staged:
    """Return a block in staged form. Raises DatasetError for a bad row, unless bad rows are skipped."""
    block, plan, reading = parsed(), group.plan, group.reading
    try:
        frame, lacking = reading.extra.add(block.frame, group.wanted)
        block = replace(block, frame=frame)
        found = _expressions(block, plan, group.divide)
        keys = [_key(frame.schema, name) for name in reading.keep]
        one_hot = {_ONE_HOT + name: made for name, made in reading.extra.checks(frame.schema, group.wanted).items()}
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from None
    checks = {name: made for name, made in {**found, **one_hot}.items() if made.bad is not None}
    values = [made.value.alias(name) for name, made in found.items()]
    bad = [made.bad.alias(f"bad {i}") for i, made in enumerate(checks.values())]
    try:
        frame = frame.select(*values, *keys, *bad)
    except pl.exceptions.PolarsError as error:  # a type that has no text form, or an invalid time format
        raise DatasetError(f"{path}: {' '.join(str(error).split())[:200]}; set the use of each column with --config") from None
    rows, faults = frame.drop(f"bad {i}" for i in range(len(bad))), list(block.faults)
    wrong = frame.select(pl.any_horizontal(pl.lit(False), *(f"bad {i}" for i in range(len(bad))))).to_series().fill_null(False)
    for row in wrong.arg_true():
        name = next(name for i, name in enumerate(checks) if frame[f"bad {i}"][row])
        faults.append(_fault(block, row, name, checks[name], plan, group.divide))
        if not reading.skip_bad_lines:
            raise DatasetError(f"{path}, {faults[-1]}; --bad_lines skip leaves such rows out")
    stripped = {feature_column(name) for name, recipe in plan.features.items() if recipe.stripped}
    rows, texts = _coded(rows.filter(~wrong) if wrong.any() else rows, stripped)
    for name, recipe in plan.features.items():
        if feature_column(name) in texts and not is_undecided(recipe):
            try:
                texts[feature_column(name)] = _escaped(texts_of(recipe, texts[feature_column(name)]))  # which is called again for their ids
            except ValueKindError as error:
                raise DatasetError(
                    f"{path}, {block.unit}s from {block.lines[0]}: feature {name}, column {', '.join(recipe.value_columns)}: {error}"
                ) from None
    return Staged(rows, texts, faults, {label: int((lacks & ~wrong).sum()) for label, lacks in lacking.items()})


def _coded(rows: pl.DataFrame, stripped: Collection[str]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """Replace the texts of features by codes, and return the texts of each feature; see `staging.Coded`. Blanks leave those of `stripped`."""
    codes, texts = [], {}
    for name, dtype in rows.schema.items():
        if not is_feature(name) or dtype == pl.Float64:
            continue
        if isinstance(dtype, pl.Categorical):
            places, found = pl.col(name).to_physical(), dtype.categories.to_series()
            found = _escaped(found.str.strip_chars(BLANKS) if name in stripped else found)
        else:
            table = TextPlaces()
            value = pl.col(name).list.eval(table.of(pl.element())) if dtype == pl.List else table.of(pl.col(name))
            places, found = pl.lit(rows.select(value).to_series()), table.texts
        # an empty text is a missing value; the null at the end is the code of rows without a value
        texts[name] = found.set(found == "", None).extend(pl.Series([None], dtype=pl.String))
        codes.append((places if dtype == pl.List else places.fill_null(len(texts[name]) - 1)).alias(name))
    return rows.with_columns(codes), texts


def _escaped(texts: pl.Series) -> pl.Series:
    """Return texts that begin like a type mark so that they are not taken for marked ones."""
    return texts.to_frame("text").select(escaped(pl.col("text"))).to_series() if texts.str.starts_with(MARK).any() else texts


def _expressions(block: Block, plan: Plan, divide: SplitRule) -> dict[str, Made]:
    """Return the expression of each staged column, by its staged name. Raises ValueError where a column has an unsuitable type."""
    schema, found = block.frame.schema, {}
    for name, recipe in plan.features.items():
        coded = recipe.columns[0] in block.coded
        found[feature_column(name)] = Made(pl.col(recipe.columns[0]), None, "") if coded else columns.made(recipe, schema)
        if recipe.weights is not None:
            weights, bad = id_weights(recipe, block.frame, recipe.pooling)
            found[weights_column(name)] = Made(pl.lit(weights), pl.lit(bad), "")
    if plan.label is not None:
        found[LABEL] = columns.label(plan.comparison, schema[plan.comparison.column])
    if plan.group is not None:
        found[GROUP] = columns.group(plan.group, schema[plan.group])
    if plan.weight is not None:
        found[WEIGHT] = columns.weight(plan.weight, schema[plan.weight])
    split = divide.staged(schema)
    return found if split is None else found | {SPLIT: split}


def _plain_columns(plan: Plan, others: set[str | None]) -> frozenset[str]:
    """Return the columns that are used unchanged and as ids only, so that they can be parsed as categories."""
    ids = [name for name, recipe in plan.features.items() if recipe.kind == CATEGORICAL]
    others = {*others, plan.group, plan.weight, None if plan.label is None else plan.comparison.column}
    others |= {column for name, recipe in plan.features.items() if name not in ids for column in recipe.inputs}
    return frozenset(plan.features[name].columns[0] for name in ids) - others


def _key(schema: Mapping[str, pl.DataType], name: str) -> pl.Expr:
    """Return a column that predictions carry: whole numbers of any width except UInt64 as Int64, categories and nulls as text.

    Raises:
        ValueError: the column holds lists, objects or bytes.
    """
    dtype, value = schema[name], pl.col(name)
    if dtype.is_integer() and dtype != pl.UInt64:
        value = value.cast(pl.Int64)
    elif dtype in (pl.Categorical, pl.Enum, pl.Null):
        value = value.cast(pl.String)
    elif dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        raise ValueError(f"column {name} holds {dtype}; expected texts, numbers or times (--keep)")
    return value.alias(key_column(name))


def _fault(block: Block, row: int, name: str, made: Made, plan: Plan, divide: SplitRule) -> str:
    """Describe a bad row: its line, column and value, and the expected value."""
    if has_weights(name):
        feature = staged_name(name)
        recipe = plan.features[feature]
        return f"{block.unit} {block.lines[row]}, feature {feature}: {fault(recipe, block.frame[row : row + 1], recipe.pooling)}"
    if name == LABEL:
        read = [plan.comparison.column]
    elif name in (GROUP, WEIGHT, SPLIT):
        read = [{GROUP: plan.group, WEIGHT: plan.weight, SPLIT: divide.column}[name]]
    elif name.startswith(_ONE_HOT):
        read = [name.removeprefix(_ONE_HOT)]
    else:
        read = list(plan.features[staged_name(name)].inputs)
    value = block.frame[read[0]][row] if len(read) == 1 else {column: block.frame[column][row] for column in read}
    shown = "nothing" if value is None or value == "" else repr(value)[:60]
    what = f"{name}, column {read[0]}" if name in (LABEL, WEIGHT) else f"column {', '.join(read)}"
    return f"{block.unit} {block.lines[row]}, {what}: {shown}, expected {made.expected}"
