"""Reading a table's files into staging: every value checked, bad rows said with file, line, column and value."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from tqdm import tqdm

from dataloading.contract import DatasetError
from preproc.resume import Progress
from preproc.stores import Source, release
from preproc.table_columns import Plan
from preproc.table_files import FormFlags, form_of
from preproc.table_reading import Block, TableFile
from preproc.table_splits import ROWS, TRAIN, Rule
from preproc.table_staging import GROUP, LABEL, SPLIT, TableStaging, feature_column, key_column
from utils.encoding import columns
from utils.encoding.columns import Made


@dataclass
class Tally:
    """What was read of a group of files."""

    files: list[str]
    rows: int = 0
    bad_lines: int = 0


@dataclass(frozen=True)
class Reading:
    """How files are read.

    `keep` are columns that predictions carry; `block_bytes` of text are parsed at once; rows of the group `unlabelled` have no label,
    and `unlabelled_names` are those of its columns, where files have no header and these differ.
    """

    form: FormFlags = field(default_factory=FormFlags)
    skip_bad_lines: bool = False
    block_bytes: int = 32 << 20
    keep: tuple[str, ...] = ()
    unlabelled: str | None = None
    unlabelled_names: tuple[str, ...] | None = None


def stage(
    files: Mapping[str, Sequence[Source]], plan: Plan, rule: Rule, reading: Reading, staging: TableStaging, progress: Progress
) -> dict[str, Tally]:
    """Read every file once, but those that an earlier run has read.

    Args:
        files: of each group.
        plan: what is made of them.
        rule: how those of the group `train` are divided.
        reading: how they are read.
        staging: where the rows go.
        progress: knows which files are read already.

    Returns:
        what was found in each group.

    Raises:
        DatasetError: a file lacks a column, a row is bad and is not skipped, or a group has no sound row.
    """
    tallies = {group: Tally([path.name for path in paths]) for group, paths in files.items()}
    total = sum(path.stat().st_size for paths in files.values() for path in paths)
    with tqdm(total=total, desc="reading", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        for group, paths in files.items():
            tally, divide = tallies[group], rule if group == TRAIN else Rule()
            made = replace(plan, label=None) if group == reading.unlabelled else plan
            wanted = list(dict.fromkeys([*made.columns, *reading.keep, *([divide.column] if divide.column else [])]))
            form = replace(reading.form, names=reading.unlabelled_names or reading.form.names) if group == reading.unlabelled else reading.form
            fresh = False  # whether a file was read anew: what was staged behind it is then not in its place
            for place, path in enumerate(paths):
                if not fresh and (known := progress.done(f"read {group} {place}")):
                    tally.rows, tally.bad_lines, blocks = known["value"]
                    staging.restore(group, blocks)
                    bar.update(path.stat().st_size)
                    continue
                fresh, first_block = True, staging.count(group)
                file = TableFile(path, form_of(path, form), reading.skip_bad_lines)
                bad_lines, first_fault = 0, ""
                for block in _ahead(file.blocks(wanted, plan.list_columns, reading.block_bytes, bar.update)):
                    faults = list(block.faults)
                    rows = _staged(path, block, made, divide, reading, faults)
                    if divide.by == ROWS:
                        rows = rows.with_columns(divide.places(tally.rows, rows.height))
                    if rows.height:
                        staging.append(group, rows, path)
                    tally.rows += rows.height
                    bad_lines, first_fault = bad_lines + len(faults), first_fault or next(iter(faults), "")
                release(path)
                if bad_lines:
                    bar.write(f"preproc.table: {path}: bad lines skipped: {bad_lines}, the first: {first_fault}", file=sys.stderr)
                tally.bad_lines += bad_lines
                value = [tally.rows, tally.bad_lines, staging.count(group)]
                progress.complete(f"read {group} {place}", staging.blocks(group, first_block), value)
            if not tally.rows:
                why = f"; {tally.bad_lines:,} bad lines were skipped" if tally.bad_lines else ""
                raise DatasetError(f"the {group} files hold no rows: {', '.join(tally.files)}{why}")
    return tallies


def _ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same blocks, the next one read while one is worked on."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, blocks, None)
        while (block := waiting.result()) is not None:
            waiting = pool.submit(next, blocks, None)
            yield block


def _staged(path: Source, block: Block, plan: Plan, divide: Rule, reading: Reading, faults: list[str]) -> pl.DataFrame:
    """The staged columns of the sound rows of a block; what is wrong with the others is added to `faults`, or raised."""
    try:
        found = _expressions(block.frame.schema, plan, divide)
        keys = [_key(block.frame.schema, name) for name in reading.keep]
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from None
    checks = {name: made.bad for name, made in found.items() if made.bad is not None}
    values = [made.value.alias(name) for name, made in found.items()]
    bad = [check.alias(f"bad {i}") for i, check in enumerate(checks.values())]
    try:
        frame = block.frame.select(*values, *keys, *bad)
    except pl.exceptions.PolarsError as error:  # a type that has no texts, a form of times that is none
        raise DatasetError(f"{path}: {' '.join(str(error).split())[:200]}; --config says what becomes of each column") from None
    if not bad:
        return frame
    wrong = frame.select(pl.any_horizontal(f"bad {i}" for i in range(len(bad)))).to_series().fill_null(False)
    rows = frame.drop(f"bad {i}" for i in range(len(bad)))
    if not wrong.any():
        return rows
    for row in wrong.arg_true():
        name = next(name for i, name in enumerate(checks) if frame[f"bad {i}"][row])
        faults.append(_fault(block, row, name, found[name], plan, divide))
        if not reading.skip_bad_lines:
            raise DatasetError(f"{path}, {faults[0]}; --bad_lines skip leaves such rows out")
    return rows.filter(~wrong)


def _expressions(schema: Mapping[str, Any], plan: Plan, divide: Rule) -> dict[str, Made]:
    """What is staged, by the name it is staged under. Raises ValueError where a column's type does not fit."""
    found = {feature_column(name): columns.made(recipe, schema) for name, recipe in plan.features.items()}
    if plan.label is not None:
        found[LABEL] = columns.label(plan.comparison, schema[plan.comparison.column])
    if plan.group is not None:
        found[GROUP] = columns.group(plan.group, schema[plan.group])
    split = divide.staged(schema)
    return found if split is None else found | {SPLIT: split}


def _key(schema: Mapping[str, pl.DataType], name: str) -> pl.Expr:
    """A column that predictions carry: whole numbers of any width as Int64, what is no number, text or time as text."""
    dtype, value = schema[name], pl.col(name)
    if dtype.is_integer() and dtype != pl.UInt64:
        value = value.cast(pl.Int64)
    elif dtype in (pl.Categorical, pl.Enum, pl.Null):
        value = value.cast(pl.String)
    elif dtype.is_nested() or dtype in (pl.Binary, pl.Object):
        raise ValueError(f"column {name} holds {dtype}; expected texts, numbers or times (--keep)")
    return value.alias(key_column(name))


def _fault(block: Block, row: int, name: str, made: Made, plan: Plan, divide: Rule) -> str:
    """Line, column and value of a bad row, and what was expected."""
    if name == LABEL:
        read = [plan.comparison.column]
    elif name in (GROUP, SPLIT):
        read = [plan.group if name == GROUP else divide.column]
    else:
        read = list(plan.features[name[2:]].inputs)
    value = block.frame[read[0]][row] if len(read) == 1 else {column: block.frame[column][row] for column in read}
    shown = "nothing" if value is None or value == "" else repr(value)[:60]
    what = f"label, column {read[0]}" if name == LABEL else f"column {', '.join(read)}"
    return f"{block.unit} {block.lines[row]}, {what}: {shown}, expected {made.expected}"
