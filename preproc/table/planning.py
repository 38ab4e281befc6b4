"""The plan of a run, which sets the use of each column: from an older dataset, from a configuration, or inferred from the first rows."""

import argparse
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from preproc.reading.files import form_of
from preproc.reading.stores import Source
from preproc.reading.table_file import TableFile
from preproc.table import flags as table_flags
from preproc.table.columns import Plan, plan_of_dataset, plan_of_file, undecided
from preproc.table.extra_columns import RECORD, ExtraColumns
from preproc.table.inference import Named, inferred
from preproc.table.reading import Reading, form_flags
from preproc.table.side_tables import listed
from preproc.table.splits import TRAIN

_SAMPLE_BYTES = 4 << 20  # of text, from which kinds are inferred


def planned(
    args: argparse.Namespace,
    old: FeatureSpec | None,
    files: Mapping[str, Sequence[Source]],
    reading: Reading,
    folder: Path,
    warn: Callable[[str], None],
) -> tuple[Plan, Reading]:
    """Return the plan of the columns, and the reading options with the side tables read and the patterns of lists matched.

    Args:
        args: the command line.
        old: the specification of the older dataset whose columns are taken; None where there is none.
        files: the files of each group.
        reading: the options for reading them.
        folder: for side tables.
        warn: called with each message.

    Raises:
        DatasetError: a flag names a column that does not exist, or does not fit the rows.
    """
    group = TRAIN if TRAIN in files else next(iter(files))
    first = _first_file(files[group][0], group, reading)
    sample = None
    if reading.extra.joins or reading.extra.lists or (old is None and args.config is None):
        sample = _first_rows(files[group], group, reading)
        reading = replace(reading, extra=reading.extra.resolved(folder, sample.columns, str(first.path)))
        sample = _with_extra(sample, reading.extra, warn)
    names = [*first.names, *reading.extra.names] if first.names else []
    if old is not None:
        plan = plan_of_dataset(old)
        _check_label(plan, files, reading, f"--vocabulary {args.vocabulary}: its metadata name no label; expected a dataset made with --label")
        needless = plan.unread.difference(reading.keep) if set(files) <= {reading.unlabelled} else frozenset()
        _check_added(args.vocabulary, plan, old, [*names, *needless] if names else [])
    else:
        _check_columns(args, names)
        if args.config is not None:
            plan = undecided(_of_file(args, files, reading, names, first, warn))
        else:
            plan = undecided(inferred(sample, _named(args, reading.extra), warn))
    if plan.label is not None:
        for one in reading.extra.lists:
            if plan.comparison.column in one.columns and one.name in plan.columns:
                raise DatasetError(
                    f"{one.label}: matches {plan.comparison.column}, the label's column, so the list would reveal the label; change the pattern"
                )
    for one in reading.extra.lists:
        if plan.weight in one.columns and one.name in plan.columns:
            raise DatasetError(f"{one.label}: matches {plan.weight}, the weight's column, which is no feature; change the pattern")
    return plan, reading


def _named(args: argparse.Namespace, extra: ExtraColumns) -> Named:
    """Return the columns that the flags name; keys of side tables are ids unless a flag says otherwise, and one-hot columns are no features."""
    named = table_flags.named_of(args)
    said = {*named.categorical, *named.numerical, *named.lists, *named.times, *named.ignored, *named.not_features, named.group, named.weight}
    said |= {*named.id_weights, *named.id_weights.values()}
    keys = dict.fromkeys(join.key for join in extra.joins if join.key not in said)
    return replace(named, categorical=(*named.categorical, *keys), not_features=(*named.not_features, *extra.one_hot))


def _first_file(path: Source, group: str, reading: Reading) -> TableFile:
    return TableFile(path, form_of(path, form_flags(group, reading)), skip_bad_lines=True)


def _of_file(
    args: argparse.Namespace,
    files: Mapping[str, Sequence[Source]],
    reading: Reading,
    names: Sequence[str],
    first: TableFile,
    warn: Callable[[str], None],
) -> Plan:
    """Return the plan of --config, with a warning about the columns of the first file that it does not name."""
    plan, sources = plan_of_file(args.config), reading.extra.sources
    _check_label(plan, files, reading, f"{args.config}: label: missing; expected a column, or a comparison such as 'rating >= 4'")
    if names and (unknown := [name for name in plan.ignored if name not in names]):
        warn(f"{args.config}: ignore: no column {', '.join(unknown[:8])} in {first.path}")
    known = {*plan.columns, *plan.ignored, args.split_by, args.split_key, args.split_column, *reading.keep, *sources}
    if left := [name for name in names if name not in known]:
        warn(f"{args.config} does not name the columns {', '.join(left[:8])}{', …' if len(left) > 8 else ''}, which are left out")
    return plan


def _check_label(plan: Plan, files: Mapping[str, Sequence[Source]], reading: Reading, fault: str) -> None:
    """Raise DatasetError where some rows have labels but the plan names no label."""
    if plan.label is None and set(files) - {reading.unlabelled}:
        raise DatasetError(fault)


def _check_added(folder: Path, plan: Plan, old: FeatureSpec, names: Sequence[str]) -> None:
    """Raise DatasetError where the rows lack a column that --join or --list added when the older dataset was made."""
    record: Mapping[str, Any] = old.metadata.get(RECORD) or {}
    for flag, columns in record.items():
        if lacking := [name for name in columns if name in plan.columns and names and name not in names]:
            raise DatasetError(f"{folder} was made with {flag}, which added column {lacking[0]}; give the same flag here, or rows with this column")


def _check_columns(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise DatasetError where a flag names a column that the first file lacks. JSON lines, which have no header, are not checked."""
    for flag in ("split_by", "split_key", "split_column", "keep"):
        given = getattr(args, flag) or ()
        for name in [given] if isinstance(given, str) else given:
            if names and name not in names:
                raise DatasetError(f"--{flag} {name}: no such column; the columns are {listed(names)}")


def _first_rows(paths: Sequence[Source], group: str, reading: Reading) -> pl.DataFrame:
    """Return the first rows, with all columns, of the first file that has rows. Raises DatasetError, with the fault, where no file has any."""
    for path in paths:
        block = next(itertools.islice(_first_file(path, group, reading).blocks(None, frozenset(), _SAMPLE_BYTES), 1), None)
        if block is not None and not block.frame.width:
            raise DatasetError(f"{path}: no line is a JSON object; expected one a line")
        if block is not None and block.frame.height:
            return block.frame
        if block is not None and block.faults:
            raise DatasetError(f"{path}, {block.faults[0]}; none of the first lines is valid: check --format, --separator and --columns")
    raise DatasetError(f"{paths[0]}: holds no rows; expected rows from which to infer the column types")


def _with_extra(sample: pl.DataFrame, extra: ExtraColumns, warn: Callable[[str], None]) -> pl.DataFrame:
    """Add the columns to the first rows, and warn of a side table that has nothing for any of them."""
    try:
        found, lacking = extra.add(sample, extra.names)
    except ValueError as error:
        raise DatasetError(f"{error} (--join, --list)") from None
    for join in extra.joins:
        if join.label in lacking and lacking[join.label].all():
            first = found[join.key].unique(maintain_order=True).head(3)
            keys = f"the rows have {_shown(first)}, the side table {_shown(join.some_keys())}"
            warn(f"{join.label}: the side table has none of the keys of the first {found.height:,} rows: {keys}")
    return found


def _shown(keys: Iterable[Any]) -> str:
    return ", ".join(repr(key) for key in keys)
