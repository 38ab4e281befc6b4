"""Conversion of the raw files of Outbrain's click prediction to a dataset of the 26 features of Wide & Deep.

    python -m preproc.outbrain --src RAW --dst DATASET
    python -m preproc.outbrain --src RAW --dst DATASET --seed 1 --bad_lines skip --overwrite
    python -m preproc.outbrain --src RAW --dst RECORDS --format tfrecord --num_files 40
    python -m preproc.outbrain --engine spark --spark_master spark://HOST:7077 --src RAW --dst DATASET

Clicks are joined with events, promoted content and documents. All displays of the last two days and a fifth of the others are for evaluation (the
split `test`); rates, views, dictionaries and ranges of scales come from the training rows only. Rows keep the order of the clicks; those of `test`
are in the order of their displays. `python -m dataloading.generate_outbrain` draws raw files. See docs/wide_and_deep.md.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from tqdm import tqdm

from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import VOCABULARY, DatasetError
from dataloading.synthetic.outbrain_truth import TRUTH_ROWS, read_truth
from dataloading.tf_raw import TfRawWriter, refuse_dataset
from dataloading.vocabulary import read_vocabulary
from preproc.outbrain.features import read_sizes, spec_of
from preproc.outbrain.files import CLICKS, RawFiles, find_files
from preproc.outbrain.fit import Fitted, Thresholds, fitted
from preproc.outbrain.joined import Documents, read_documents, read_events, read_promoted
from preproc.outbrain.learning import Found, Joined, Learner, RunningStatistics
from preproc.outbrain.on_spark import SparkFiles, write_features
from preproc.outbrain.options import NAME, parse_arguments, rule_of, thresholds_of
from preproc.outbrain.rows import features
from preproc.outbrain.staging import StagedClicks
from preproc.outbrain.tfrecords import RECORDS, record_folders, written_as
from preproc.shared.in_order import in_order
from preproc.spark.engine import SparkEngine
from utils.naming import naming

TRAIN, TEST = SPLITS = ("train", "test")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    Raises:
        UserError: a file is missing or damaged, a value is invalid, or the destination holds a dataset. Nothing is left there then.
    """
    args = parse_arguments(sys.argv[1:] if argv is None else argv, __doc__)
    started = time.monotonic()
    sizes, thresholds = read_sizes(args.table_sizes), thresholds_of(args)
    paths = find_files(args.src)
    _refuse_within(paths, args.dst)
    refuse_dataset(args.dst, DEFAULT_FILE_NAME, args.overwrite)
    with (
        written_as(args.format, args.dst, args.num_files, args.overwrite) as folder,
        StagedClicks(args.staging or folder, sorted_splits=(TEST,)) as staging,
        _spark(args, staging) as spark,
    ):
        reading = paths, args.bad_lines == "skip", args.block_bytes
        files = RawFiles(*reading) if spark is None else SparkFiles(spark, *reading)
        joined = _joined(args, files)
        tally = _learned(files, joined, staging)
        _check(tally)
        rows = {name: count for name, (count, _) in sizes.items()}
        found, dictionaries = fitted(joined, tally, thresholds, rows)
        with TfRawWriter(folder, spec_of(sizes, tally.last_display), SPLITS, overwrite=args.overwrite) as writer:
            if spark is None:
                _write(writer, staging, found, joined.documents, tally)
            else:
                write_features(spark, writer, staging, SPLITS, found, joined.documents)
            metadata = _metadata(args, files, joined, tally, found, thresholds)
            metadata["vocabularies"] = _write_dictionaries(dictionaries, rows, writer.folder)
            spec = writer.publish(metadata | _truth(args.src, joined, tally))
    print(_summary(args.dst, spec, files.bad_lines, time.monotonic() - started))
    return 0


@contextlib.contextmanager
def _spark(args: argparse.Namespace, staging: StagedClicks) -> Iterator[SparkEngine | None]:
    """Yield a running Spark engine if that is the engine, else None."""
    if args.spark is None:
        yield None
        return
    with SparkEngine(args.spark, staging.folder) as engine:
        yield engine


def _refuse_within(paths: Mapping[str, Path], destination: Path) -> None:
    """Raise DatasetError where publishing the dataset would replace a raw file."""
    for path in paths.values():
        for folder in (*SPLITS, VOCABULARY, RECORDS, *record_folders()):
            if path.resolve().is_relative_to((destination / folder).resolve()):
                raise DatasetError(f"{path} lies in {destination / folder}, which the dataset will replace; choose another --dst")


def _joined(args: argparse.Namespace, files: RawFiles) -> Joined:
    promoted, events = read_promoted(files), read_events(files)
    return Joined(events, promoted, read_documents(files, events, promoted), rule_of(args))


def _learned(files: RawFiles, joined: Joined, staging: StagedClicks) -> RunningStatistics:
    """Read the clicks once: stage them, and collect the statistics of the training rows."""
    learner, tally = Learner(joined), RunningStatistics(len(joined.events.places))

    def work(rows: pl.DataFrame) -> tuple[pl.DataFrame, Found]:
        return rows, learner.found(rows)

    for rows, found in files.blocks(CLICKS, work):
        tally.add(rows, found)
        staging.append(TRAIN, rows.filter(~found.evaluates))
        staging.append(TEST, rows.filter(found.evaluates))
    return tally


def _check(tally: RunningStatistics) -> None:
    """Raise DatasetError where a split is empty; warn of displays without exactly one click, and of rows that tables lack."""
    for split, evaluates in ((TRAIN, False), (TEST, True)):
        rows, displays, clicks = tally.rows[evaluates], tally.displays(evaluates), tally.clicks[evaluates]
        if not rows:
            raise DatasetError(
                f"the {split} split holds no rows: {sum(tally.rows.values()):,} clicks were read, {tally.missing['displays']:,} of them of displays "
                "that events.csv lacks, which are always for training; set the rows to hold out with --eval_fraction and --eval_from_day"
            )
        if clicks != displays:
            _warn(
                f"the {split} split: {clicks:,} clicks in {displays:,} displays; expected one in each; ranking metrics leave out displays without one"
            )
    tables = {"displays": "events.csv", "ads": "promoted_content.csv"}
    if missing := [f"{tally.missing[name]:,} rows of {name} that {table} lacks" for name, table in tables.items() if tally.missing[name]]:
        _warn(f"{' and '.join(missing)} are kept; their unknown features count as missing")


def _write(writer: TfRawWriter, staging: StagedClicks, found: Fitted, documents: Documents, tally: RunningStatistics) -> None:
    """Write the dataset's files of features, labels and groups."""
    ad_rows = writer.spec.categorical[0].cardinality
    with tqdm(total=sum(tally.rows.values()), desc="features", unit="row", unit_scale=True, disable=None) as bar:
        for split in SPLITS:
            tasks = (partial(features, rows, found, documents, ad_rows) for rows in staging.blocks(split))
            for rows in in_order(tasks):
                writer.append(split, rows.numerical, rows.ids, rows.labels, rows.groups)
                bar.update(len(rows.labels))


def _write_dictionaries(dictionaries: Mapping[str, pl.DataFrame], rows: Mapping[str, int], folder: Path) -> dict[str, Any]:
    """Write the dictionaries of countries, states and places; return a digest of each."""
    (folder / VOCABULARY).mkdir()
    digests = {}
    for name, frame in dictionaries.items():
        with naming(path := folder / VOCABULARY / f"{name}.parquet"):
            frame.write_parquet(path)
        digests[name] = asdict(read_vocabulary(path, 0, rows[name])[0])
        if frame.is_empty():
            _warn(f"feature {name}: no value is kept, so every row has id 0; is --min_events too high?")
    return digests


def _metadata(
    args: argparse.Namespace, files: RawFiles, joined: Joined, tally: RunningStatistics, found: Fitted, thresholds: Thresholds
) -> dict[str, Any]:
    """Return the metadata of the specification: counts of the files and splits, options, and fitted scales."""
    splits = {}
    for split, evaluates in ((TRAIN, False), (TEST, True)):
        rows, clicks = tally.rows[evaluates], tally.clicks[evaluates]
        splits[split] = {"rows": rows, "displays": tally.displays(evaluates), "click_rate": round(clicks / rows, 6)}
    return {
        "source": "outbrain",
        **splits,
        "files": {table: {"name": files.paths[table].name, "rows": rows} for table, rows in files.rows.items()},
        "bad_lines_skipped": files.bad_lines,
        "rows_without": {name: count for name, count in tally.missing.items() if count},
        "split": {"seed": args.seed, "eval_fraction": args.eval_fraction, "eval_from_day": args.eval_from_day},
        "thresholds": asdict(thresholds),
        "log_scales": {name: asdict(scale) for name, scale in found.scales.items()},
        "documents": {"total": joined.documents.total, "named": len(joined.documents.places)},
        "aspects": {kind: aspects.num_aspects for kind, aspects in joined.documents.aspects.items()},
        "vocabulary": f"{VOCABULARY}/<feature>.parquet",
    }


def _truth(folder: Path, joined: Joined, tally: RunningStatistics) -> dict[str, Any]:
    """Return metadata about generated raw files, none for real ones.

    They are the best expected MAP@12 of a model on the displays for evaluation, and the MAP@12 of the true order.
    """
    displays = joined.events.places.ids[tally.events[True][:-1]]
    truth = read_truth(folder, displays)
    if truth is None:
        return {}
    if truth.displays != len(displays):
        _warn(f"{folder / TRUTH_ROWS}: has {truth.displays:,} of the {len(displays):,} displays for evaluation, so the best MAP@12 is not known")
        return {}
    best = {"bayes_map_at_12": round(truth.expected, 6), "map_at_12_of_the_true_order": round(truth.reached, 6)}
    return {"generated": truth.generated} | best


def _summary(destination: Path, spec: FeatureSpec, skipped: int, seconds: float) -> str:
    splits = {split: spec.metadata[split] for split in SPLITS}
    shares = ", ".join(f"{split} {found['rows']:,} rows of {found['displays']:,} displays" for split, found in splits.items())
    best = f"; best possible MAP@12 {spec.metadata['bayes_map_at_12']:.4f}" if "bayes_map_at_12" in spec.metadata else ""
    rows = sum(found["rows"] for found in splits.values())
    tables = f"{len(spec.numerical)} numerical and {len(spec.categorical)} categorical features with {sum(spec.cardinalities):,} ids"
    return f"{destination}: {shares}; {tables}{best}; {skipped:,} bad lines skipped; {seconds:.1f} s, {rows / seconds:,.0f} rows/s"


def _warn(message: str) -> None:
    print(f"{NAME}: warning: {message}", file=sys.stderr)
