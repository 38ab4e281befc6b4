"""Conversion of a table of any shape to a tf_raw dataset, with vocabularies by which new rows can be encoded.

    python -m preproc.table --train events_*.parquet --test last_day.parquet --dst DATASET --label clicked
    python -m preproc.table --train ratings.csv.gz --split_by time --test_fraction 0.1 --dst DATASET --label "rating >= 4" --categorical user,item
    python -m preproc.table --train clicks.csv --test_fraction 0.1 --label click --data today.csv --dst DATASET
    python -m preproc.table --train tomorrow.parquet --test day_after.parquet --dst NEW --vocabulary DATASET --extend_vocabulary
    python -m preproc.table --mode encode --data new_rows.csv --vocabulary DATASET --keep user,item --dst ROWS
    python -m preproc.table --engine spark --spark_master spark://HOST:7077 --train day_*.csv --test last.csv --label clicked --dst DATASET

Columns hold numbers, ids, lists or times. Their types are inferred and written to columns.yaml in the dataset, which can be edited and passed back
(--config). Nothing is learned from validation and test rows. Rows keep the order of the files. See docs/tables.md.
"""

import argparse
import contextlib
import itertools
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from dataloading.feature_spec import DEFAULT_FILE_NAME, NEGATIVE_RATE, FeatureSpec
from dataloading.features import VOCABULARY, DatasetError
from dataloading.keys import TAKEN
from dataloading.spec_parsing import check_tables
from dataloading.tf_raw import TfRawWriter, refuse_dataset
from dataloading.vocabulary import read_vocabulary
from preproc.reading.files import files_of
from preproc.reading.stores import Source, fetch_to
from preproc.shared.engine_flags import SparkSettings, spark_settings
from preproc.shared.into_store import made
from preproc.shared.resume import DATASET, Progress, dataset_files
from preproc.spark.engine import SparkEngine
from preproc.table import flags as table_flags
from preproc.table import training_only
from preproc.table import writing as table_write
from preproc.table.columns import FILE, Plan
from preproc.table.extra_columns import ExtraColumns
from preproc.table.far_values import far_lines
from preproc.table.fit import vocabulary_path
from preproc.table.flags import ALL, ENCODE, NAME
from preproc.table.idle import say_idle
from preproc.table.negatives import sampled
from preproc.table.on_polars import PolarsTable
from preproc.table.on_spark import SparkTable
from preproc.table.planning import planned
from preproc.table.reading import FileCounts, Reading, rows_of
from preproc.table.splits import SPLITS, TRAIN, SplitRule
from preproc.table.staging import Split, StagedRows, TableStaging
from preproc.table.steps import Counted, TableSteps, write_keys
from preproc.table.unknown import UNKNOWN, unknown_lines, unknown_shares
from utils.encoding import transforms
from utils.errors import UserError
from utils.naming import naming

_SAMPLE_BYTES = 4 << 20  # text from which column types are inferred


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: a file is missing or damaged, a value is invalid, flags contradict each other, or the destination holds a dataset already.
            Nothing is left at the destination then.
    """
    args = table_flags.parse_arguments(sys.argv[1:] if argv is None else argv, __doc__)
    rule, reading, settings = table_flags.rule_of(args), table_flags.reading_of(args), spark_settings(args, NAME)
    files = _files(args, reading.unlabelled)
    _check_flags(args, files, rule)
    progress = _progress(args, files, reading.extra)
    make = partial(make_dataset, args, files, rule, reading, settings, progress)
    print(f"{args.target}: {made(NAME, args.target, make, progress.run, args.overwrite)}")
    return 0


def make_dataset(
    args: argparse.Namespace, files: dict[str, list[Source]], rule: SplitRule, reading: Reading, settings: SparkSettings | None, progress: Progress
) -> str:
    """Make the dataset in a local folder and return a summary of it."""
    started = time.monotonic()
    refuse_dataset(args.dst, DEFAULT_FILE_NAME, args.overwrite)
    old = None if args.vocabulary is None else FeatureSpec.from_yaml(args.vocabulary / DEFAULT_FILE_NAME, "--vocabulary")
    with _staging_errors(args), TableStaging(args.staging or args.dst, tuple(files), progress) as staging, ExitStack() as ending:
        progress.start(staging.folder)
        fetch_to(staging.folder, [*files.values(), reading.extra.files])
        plan, reading = planned(args, old, files, reading, staging.folder, _warn)
        say_idle(args, plan, rule, reading, itertools.chain(*files.values()), _warn)
        table_write.check_names(plan)
        training_only.check(plan)
        steps = ending.enter_context(_steps(settings, staging, progress, reading.unlabelled))
        tallies = steps.stage(files, plan, rule, reading)
        _say_unmatched(reading.extra, tallies)
        splits = {split: Split(TRAIN, rows) for split, rows in rule.bounds(steps.split_counts).items()} if TRAIN in files else {}
        splits |= {group: Split(group, None) for group in files if group != TRAIN}
        splits = {split: splits[split] for split in sorted(splits, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS))}
        leak = args.dictionary_days == ALL and TRAIN in splits
        learned = [name for name in splits if name == TRAIN or (leak and name != reading.unlabelled)]
        counted = steps.learn(plan, splits, learned, makes=TRAIN in splits and (old is None or args.extend_vocabulary))
        plans = {name: rows_of(split.group, plan, rule, reading).plan for name, split in splits.items()}
        statistics = {name: statistics_of(name, counted[name], tallies[split.group], plans[name]) for name, split in splits.items()}
        if leak:
            _warn("--dictionary_days all: values of test rows are in the vocabularies, means and boundaries, so test scores are too optimistic")
        kept = None
        if args.negative_rate is not None:
            of_training = StagedRows(staging, [splits[TRAIN]])
            kept = sampled(args.negative_rate, args.seed or 0, of_training, plan.weight is not None, staging.folder, _warn)
            statistics[TRAIN] = kept.described(statistics[TRAIN])
        said, plan = plan, plan if old is not None else steps.fitted(plan)
        folder = staging.folder / DATASET
        folder.mkdir(exist_ok=True)
        rows = steps.vocabularies(plan, args.vocabulary, folder)
        if empty := [name for name, recipe in plan.features.items() if recipe.has_vocabulary and rows[name] == 1]:
            _warn(f"features {', '.join(empty[:8])}: no value is kept, so every row has id 0; is --frequency_threshold too high?")
        dtype = old.numerical_dtype if old is not None else args.numerical_dtype or "float32"
        spec = training_only.with_served(table_write.spec_of(plan, rows, dtype), plan, old, folder, _warn)
        check_tables(spec.categorical)
        unlabelled = filter(None, [reading.unlabelled])
        within = folder if args.staging is None else None  # then the dataset is built inside the staging folder, on the destination's disk
        with TfRawWriter(args.dst, spec, tuple(splits), overwrite=args.overwrite, unlabelled=unlabelled, within=within) as writer:
            filled = steps.write(plan, splits, writer, folder, kept)
            unknown = unknown_shares(plan, filled, old)
            for line in unknown_lines(plan, filled, unknown, lambda name: StagedRows(staging, [splits[name]]), folder):
                _warn(line)
            if spec.numerical:
                for line in far_lines(plan, spec.numerical, dtype, {name: writer.files(name).numerical for name in splits}):
                    _warn(line)
            if reading.keep:
                write_keys(staging, splits, counted, reading.keep, writer.folder, progress, kept)
            if within is None:
                shutil.move(folder / VOCABULARY, writer.folder / VOCABULARY)
            with naming(writer.folder / FILE):
                (writer.folder / FILE).write_text(said.to_yaml(), encoding="utf-8")
            metadata = _metadata(plan, statistics, writer, rows, args) | reading.extra.recorded() | ({} if unknown is None else {UNKNOWN: unknown})
            progress.publishing(folder)
            spec = writer.publish(metadata)
    return _summary(spec, statistics, sum(tally.bad_lines for tally in tallies.values()), time.monotonic() - started)


@contextlib.contextmanager
def _staging_errors(args: argparse.Namespace) -> Iterator[None]:
    """Raise DatasetError where the staging files of an earlier run cannot be read."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        if not args.resume:
            raise
        why = " ".join(str(error).split())[:120]
        raise DatasetError(f"{args.dst}: staging files of an earlier run are damaged ({why}); start again without --resume") from None


def _files(args: argparse.Namespace, unlabelled: str | None) -> dict[str, list[Source]]:
    """Return the files of each split that has files of its own. Raises DatasetError where a file lies in a folder that the dataset replaces."""
    given = {split: getattr(args, split) for split in SPLITS} | {unlabelled: args.data}
    files = {group: files_of(paths) for group, paths in given.items() if paths}
    places: dict[str, str] = {}
    for group, paths in files.items():
        for path in paths:
            if (other := places.setdefault(str(path.resolve()) if isinstance(path, Path) else path.identity, group)) != group:
                _warn(f"{path} is given for {other} and for {group}: the same rows are in both")
            path.open("rb").close()
            if not isinstance(path, Path):
                continue
            for folder in (*SPLITS, group, VOCABULARY):
                if path.resolve().is_relative_to((args.dst / folder).resolve()):  # publishing replaces these folders and would delete the table
                    raise DatasetError(f"{path} lies in {args.dst / folder}, which the dataset will replace; choose another --dst")
    return files


def _check_flags(args: argparse.Namespace, files: dict[str, list[Source]], rule: SplitRule) -> None:
    """Raise UserError for the faults that can be found before a file is read."""
    for column in args.keep:
        if column in TAKEN:
            raise UserError(f"--keep {column}: predictions have a column of this name; rename it in the files")
    if rule.made and TRAIN not in files:
        raise UserError(f"--{rule.made[0]}_fraction takes rows from the training files, and there are none; give --train, or remove it")
    if args.mode == ENCODE or args.vocabulary is not None:
        return
    if "test" not in files and "test" not in rule.made:
        raise UserError(
            "no test rows are given; expected --test FILES, --test_fraction 0.1 (with --split_by TIME or --split_key COLUMN), or --split_column"
        )


@contextlib.contextmanager
def _steps(settings: SparkSettings | None, staging: TableStaging, progress: Progress, unlabelled: str | None) -> Iterator[TableSteps]:
    """Yield the steps of the run on the requested engine; close the engine on exit."""
    if settings is None:
        yield PolarsTable(staging, progress, unlabelled, _warn)
        return
    with SparkEngine(settings, staging.folder) as engine:
        yield SparkTable(engine, staging, progress, unlabelled, _warn)


def _progress(args: argparse.Namespace, files: dict[str, list[Source]], extra: ExtraColumns) -> Progress:
    """Return the record of completed stages, identified by all input files and by the flags that affect the dataset's bytes."""
    command = {flag: value for flag, value in vars(args).items() if flag not in table_flags.NOT_OF_THE_BYTES}
    command |= {"seed": args.seed or 0, "quote": args.quote or "double"}
    command |= {"joins": [(join.key, join.side_key, join.names, len(join.files)) for join in extra.joins]}
    read = [*itertools.chain(*files.values()), *extra.files, *filter(None, [args.config])]
    read += dataset_files(args.vocabulary) if args.vocabulary is not None else []
    groups = {group: len(paths) for group, paths in files.items()}
    return Progress(NAME, command | {"number of files of each split": groups}, read, args.dst, args.resume)


def _say_unmatched(extra: ExtraColumns, tallies: Mapping[str, FileCounts]) -> None:
    """Warn of the rows whose keys the side tables lack."""
    rows = sum(tally.rows for tally in tallies.values())
    for join in extra.joins:
        if count := sum(tally.unmatched[join.label] for tally in tallies.values()):
            _warn(f"{join.label}: {count:,} of {rows:,} rows have a value of {join.key} that the side table lacks; its columns are missing there")


def statistics_of(name: str, counted: Counted, tally: FileCounts, plan: Plan) -> dict[str, Any]:
    """Return a split's entry in the dataset's metadata; `plan` is of its rows. Raises DatasetError where the split holds no rows."""
    if not counted.rows:
        raise DatasetError(f"the {name} split holds no rows: {tally.rows:,} were read; hold out other fractions, or check --split_by")
    labelled = plan.label is not None
    if labelled and counted.clicks in (0, counted.rows):
        _warn(f"the {name} split: every label is {1 if counted.clicks else 0}; is --label right?")
    if counted.weightless == counted.rows:
        _warn(f"the {name} split: every weight is 0; is --weight right?")
    if counted.vanished:
        _warn(f"the {name} split: column {plan.weight}: {counted.vanished:,} weights are too small for float32 and became 0")
    rate = {"click_rate": round(counted.clicks / counted.rows, 6)} if labelled else {}
    weightless = {} if plan.weight is None else {"rows_of_weight_0": counted.weightless}
    return {"files": tally.files, "rows": counted.rows, **rate, **weightless, "bad_lines_skipped": tally.bad_lines}


def _metadata(plan: Plan, statistics: dict[str, Any], writer: TfRawWriter, rows: dict[str, int], args: argparse.Namespace) -> dict[str, Any]:
    digests = {
        name: asdict(read_vocabulary(vocabulary_path(writer.folder, name), 0, rows[name])[0])
        for name, recipe in plan.features.items()
        if recipe.has_vocabulary
    }
    return {
        "source": transforms.TABLE,
        **statistics,
        "label": plan.label,
        "group": plan.group,
        **({} if plan.weight is None else {"weight": plan.weight}),
        **({} if args.negative_rate is None else {NEGATIVE_RATE: args.negative_rate}),
        transforms.NAME: {name: recipe.to_dict() for name, recipe in plan.features.items()},
        "vocabulary": f"{VOCABULARY}/<feature>.parquet",
        "vocabularies": digests,
        **({"dictionary_days": ALL} if args.dictionary_days == ALL else {}),
    }


def _summary(spec: FeatureSpec, statistics: dict[str, Any], skipped: int, seconds: float) -> str:
    rows = sum(found.get("rows_before_sampling", found["rows"]) for found in statistics.values())
    shares = ", ".join(f"{split} {found['rows']:,} rows{_rates(found, spec.negative_rate)}" for split, found in statistics.items())
    tables = f"{len(spec.numerical)} numerical and {len(spec.categorical)} categorical features with {sum(spec.cardinalities):,} ids"
    return f"{shares}; {tables}; {skipped:,} bad lines skipped; {seconds:.1f} s, {rows / seconds:,.0f} rows/s"


def _rates(found: Mapping[str, Any], negative_rate: float) -> str:
    """Return the figures of a split besides its rows, for the summary."""
    rate = [f"click rate {found['click_rate']:.4f}"] if "click_rate" in found else []
    weightless = [f"{found['rows_of_weight_0']:,} of weight 0"] if "rows_of_weight_0" in found else []
    before = [f"of {found['rows_before_sampling']:,}, negatives kept at {negative_rate:g}"] if "rows_before_sampling" in found else []
    said = rate + weightless + before
    return f" ({', '.join(said)})" if said else ""


def _warn(message: str) -> None:
    print(f"{NAME}: warning: {message}", file=sys.stderr)
