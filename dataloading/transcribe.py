"""Turn synthetic data, CSV files, NVIDIA's TFRecords and Parquet files or another tf_raw dataset into a tf_raw dataset, or into TFRecords.

    # synthetic, from a specification that generate_feature_spec wrote
    python -m dataloading.transcribe --src_dataset_type synthetic --src_dataset_path . --dst_dataset_path /data/synthetic \\
        --max_batches_train 1000 --max_batches_test 100

    # CSV files with a header, or in NVIDIA's generic form without a header: the columns are in the order of source_spec
    python -m dataloading.transcribe --src_dataset_type csv --src_dataset_path /data/logs --dst_dataset_path /data/logs_raw

    # a dataset of NVIDIA's DLRM for PyTorch (model_size.json): its files are a tf_raw dataset's, so only feature_spec.yaml is written
    python -m dataloading.transcribe --src_dataset_type split --src_dataset_path /data/split

    # pre-batched TFRecords, which NVIDIA's transcriber writes by default
    python -m dataloading.transcribe --src_dataset_type split_tfrecords --src_dataset_path /data/records --dst_dataset_path /data/records_raw

    # the TFRecords of NVIDIA's Wide & Deep, which dlrm.py reads directly (--dataset_type tfrecord): to TFRecords, and back
    python -m dataloading.transcribe --src_dataset_path /data/outbrain --dst_dataset_path /data/tfrecords --dst_dataset_type tfrecord --num_files 40
    python -m dataloading.transcribe --src_dataset_type tfrecord --src_dataset_path /data/tfrecords --dst_dataset_path /data/outbrain_raw

    # the Parquet files of NVIDIA's Wide & Deep (its current release), which dlrm.py reads directly, too (--dataset_type parquet)
    python -m dataloading.transcribe --src_dataset_type parquet --src_dataset_path /outbrain/data --dst_dataset_path /data/outbrain_raw

    # the first rows of a tf_raw dataset
    python -m dataloading.transcribe --src_dataset_path /data/criteo --dst_dataset_path /data/criteo_small --max_batches_train 10

The dataset appears complete or not at all: files are written to a hidden folder, and the feature specification is moved in place last.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from dataloading.bayes import bayes_metrics
from dataloading.blocks import RowBlock
from dataloading.contract import PARQUET, SPLIT, TFRECORD, TFRECORDS, check_quick
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import NUMERICAL_DTYPE, NUMERICAL_DTYPES, DatasetError
from dataloading.keys import KEYS, copy_keys, stored_keys
from dataloading.split_dataset import write_split_spec
from dataloading.synthetic.split import DEFAULT_SIGNAL
from dataloading.tf_raw import TfRawWriter
from dataloading.tfrecord.batch_writer import BatchRecordWriter
from dataloading.tfrecord.writer import DEFAULT_FILES, TfRecordWriter, folder_of
from dataloading.transcribe_sources import CRITEO_ROWS, CSV, FACEBOOK, SYNTHETIC, TF_RAW, TYPES, Options, Source, open_source
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.signals import EndedBySignals

Writer = TfRawWriter | TfRecordWriter | BatchRecordWriter

NAME = "dataloading.transcribe"
DEFAULT_BATCH_SIZE = 65536
DEFAULT_SEED = 0


_NO_EFFECT = {  # flags of NVIDIA's transcriber that its scripts pass
    "--src_synthetic_dataset_use_feature_spec": "synthetic data always follows the feature specification",
}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; flags that only some sources use default to None, so that `warn_needless` can detect them."""
    parser = Parser(prog=NAME, description="Write a tf_raw dataset from synthetic data, CSV files, TFRecords or another one.")
    add = parser.add_argument
    add(
        "--src_dataset_type",
        choices=TYPES,
        default="tf_raw",
        help="type of the source (default: tf_raw)",
    )
    add("--src_dataset_path", type=Path, default=Path("."), help="folder of the source (default: the working directory)")
    add("--src_feature_spec", default=DEFAULT_FILE_NAME, help=f"file name of the source's specification (default: {DEFAULT_FILE_NAME})")
    add("--src_batch_size", type=int, default=DEFAULT_BATCH_SIZE, help=f"rows per batch, the unit of --max_batches_* (default: {DEFAULT_BATCH_SIZE})")
    add("--dst_dataset_type", choices=(TF_RAW, TFRECORDS, TFRECORD), default=TF_RAW, help="type of the written dataset (default: tf_raw)")
    add("--num_files", type=int, help=f"{TFRECORD}: files per split, at most one per record of 4,096 rows (default: {DEFAULT_FILES})")
    add(
        "--dst_dataset_path",
        type=Path,
        help="folder to write, created if missing (default with source type split: the source's; otherwise required)",
    )
    add("--dst_feature_spec", default=DEFAULT_FILE_NAME, help=f"file name of the written specification (default: {DEFAULT_FILE_NAME})")
    add("--max_batches_train", type=int, default=-1, help="batches of the training split; -1: all (default: -1)")
    add("--max_batches_test", type=int, help="batches of every other split; -1: all (default: -1)")
    add("--splits", metavar="A,B,…", help="splits to write (default: all of the source; for synthetic data, train and test)")
    add("--train_only", action="store_true", help="write the training split only, like --splits train")
    add("--seed", type=int, help=f"synthetic: seed of all random numbers (default: {DEFAULT_SEED})")
    add("--signal", type=float, help=f"synthetic: standard deviation of the planted logit; 0: labels are noise (default: {DEFAULT_SIGNAL})")
    add("--overwrite", action="store_true", help="replace a dataset in the destination (default: refuse)")
    add("--dst_prebatch_size", type=int, help=f"{TFRECORDS}: rows per record (default: --src_batch_size)")
    add("--drop_remainder", action="store_true", help=f"{TFRECORDS}: leave out the rows that do not fill a record (default: an error)")
    add(
        "--max_ind_range", type=int, help=f"{FACEBOOK}: ids modulo this number, the --max-ind-range of the run to carry over (default: ids as stored)"
    )
    about = f"{' and '.join(CRITEO_ROWS)}: type of the numerical values; NVIDIA's applications read float16 only"
    add("--numerical_dtype", choices=NUMERICAL_DTYPES, help=f"{about} (default: {NUMERICAL_DTYPE})")
    add("--src_synthetic_dataset_use_feature_spec", action="store_true", help="accepted for NVIDIA's command lines, has no effect")
    return parser.parse_strictly(sys.argv[1:] if argv is None else argv)


def warn_needless(args: argparse.Namespace) -> None:
    """Print a warning for each given flag that has no effect in this mode."""
    reasons = {}
    if args.src_dataset_type != "synthetic":
        reasons |= dict.fromkeys(("--seed", "--signal"), f"with --src_dataset_type {args.src_dataset_type}")
    if args.src_dataset_type != FACEBOOK:
        reasons["--max_ind_range"] = f"with --src_dataset_type {args.src_dataset_type}"
    if args.src_dataset_type not in CRITEO_ROWS:
        reasons["--numerical_dtype"] = f"with --src_dataset_type {args.src_dataset_type}"
    if args.dst_dataset_type != TFRECORD:
        reasons["--num_files"] = f"with --dst_dataset_type {args.dst_dataset_type}"
    if args.dst_dataset_type != TFRECORDS:
        hint = f"; --dst_dataset_type {TFRECORDS}, NVIDIA's default, writes records" if args.dst_dataset_type == TF_RAW else ""
        reasons |= dict.fromkeys(("--dst_prebatch_size", "--drop_remainder"), f"with --dst_dataset_type {args.dst_dataset_type}{hint}")
    if args.train_only or args.splits == "train":
        reasons["--max_batches_test"] = "with --train_only" if args.train_only else "with --splits train"
    reasons |= {flag: f"here: {reason}" for flag, reason in _NO_EFFECT.items()}
    for flag, reason in reasons.items():
        value = getattr(args, flag.removeprefix("--"))
        if value is not None and value is not False:  # 0 is a given value, too
            print(f"{NAME}: warning: {flag} has no effect {reason}", file=sys.stderr)


def check_arguments(args: argparse.Namespace, batches: dict[str, int]) -> None:
    """Raise UserError for values that no mode accepts."""
    if args.train_only and args.splits:
        raise UserError("--train_only and --splits: expected one of them")
    if args.num_files is not None and args.num_files < 1:
        raise UserError(f"--num_files is {args.num_files}, expected at least 1")
    if args.dst_dataset_type == TFRECORD and args.src_dataset_type == CSV:
        raise UserError(
            f"--dst_dataset_type {TFRECORD}: the number of rows of {args.src_dataset_type} is not known in advance; transcribe it to tf_raw first"
        )
    for flag in ("--dst_prebatch_size", "--max_ind_range"):
        if (value := getattr(args, flag.removeprefix("--"))) is not None and value < 1:
            raise UserError(f"{flag} is {value}, expected at least 1")
    if args.src_batch_size < 1:
        raise UserError(f"--src_batch_size is {args.src_batch_size}, expected at least 1 row")
    if Path(args.dst_feature_spec).name != args.dst_feature_spec or args.dst_feature_spec in ("", ".", ".."):
        raise UserError(f"--dst_feature_spec is {args.dst_feature_spec!r}, expected a file name; it is written into --dst_dataset_path")
    for split in _limited(args):
        if batches[split] < 1 and batches[split] != -1:
            hint = "; --train_only writes no test split" if split == "test" else ""
            raise UserError(f"--max_batches_{split} is {batches[split]}, expected -1 (all) or at least 1{hint}")
        if args.src_dataset_type == "synthetic" and batches[split] == -1:
            raise UserError(f"synthetic data has no end: give --max_batches_{split} (batches of {args.src_batch_size} rows)")
    if args.signal is not None and not 0 <= args.signal < 100:
        raise UserError(f"--signal is {args.signal}, expected 0 or more, and less than 100")


def _limited(args: argparse.Namespace) -> list[str]:
    """Return which of --max_batches_train and --max_batches_test concern a split that is written."""
    chosen = args.splits.split(",") if args.splits else ["train"] if args.train_only else ["train", "test"]
    return [flag for flag, used in (("train", "train" in chosen), ("test", {*chosen} - {"train"})) if used]


def splits_of(args: argparse.Namespace, source: Source) -> tuple[str, ...]:
    """Return the splits to write: train, valid and test first, then the others in the order of the specification.

    Raises:
        UserError: `--splits` names a split that the source lacks, or names one twice.
    """
    if args.splits is None:
        return ("train",) if args.train_only else source.all_of_them
    chosen, known = args.splits.split(","), source.known
    for split in chosen:
        if split not in known or chosen.count(split) > 1:
            raise UserError(f"--splits {args.splits}: expected names of {', '.join(known)}, each once and separated by commas, found {split!r}")
    return tuple(split for split in known if split in chosen)


def refuse_own_files(args: argparse.Namespace, source: Source, splits: Sequence[str]) -> None:
    """Raise DatasetError if writing would replace files of the source."""
    destination = args.dst_dataset_path.resolve()
    if args.src_dataset_type in (TF_RAW, SPLIT, TFRECORD, PARQUET) and args.src_dataset_path.resolve() == destination:
        raise DatasetError(f"{args.dst_dataset_path} is source and destination; choose another --dst_dataset_path")
    for path in (path.resolve() for split in splits for path in source.paths(split)):
        if any(path.is_relative_to(destination / written) for written in splits):
            raise DatasetError(f"{path} is a source file and would be replaced; choose another --dst_dataset_path")


def writer_of(args: argparse.Namespace, source: Source, rows: Mapping[str, int | None]) -> Writer:
    """Return the writer of the destination; `rows` is the number of rows of each split, None where it is known only after reading."""
    spec, unlabelled = source.spec, [split for split in rows if not source.spec.labelled(split)]
    if args.dst_dataset_type == TF_RAW:
        return TfRawWriter(args.dst_dataset_path, spec, tuple(rows), args.dst_feature_spec, args.overwrite, unlabelled)
    for split in rows if args.src_dataset_type == TF_RAW else ():
        if keys := stored_keys(spec, split):
            print(f"{NAME}: warning: {keys} is not copied: TFRecords cannot hold it", file=sys.stderr)
    if args.dst_dataset_type == TFRECORDS:
        if unlabelled:
            raise DatasetError(f"split {unlabelled[0]} has no labels, which {TFRECORDS} must have; leave it out with --splits, or write tf_raw")
        size = args.dst_prebatch_size or args.src_batch_size
        return BatchRecordWriter(args.dst_dataset_path, spec, rows, size, args.drop_remainder, args.dst_feature_spec, args.overwrite)
    files = DEFAULT_FILES if args.num_files is None else args.num_files
    return TfRecordWriter(args.dst_dataset_path, spec, rows, files, args.dst_feature_spec, args.overwrite, unlabelled)


def write_split(writer: Writer, split: str, blocks: Iterator[RowBlock], total: int | None) -> dict[str, Any]:
    """Append all rows, and return `samples`, `click_rate` and, for a test split with known P(click), the Bayes metrics."""
    samples, clicks = 0, 0
    known: list[tuple[np.ndarray, np.ndarray]] = []
    with tqdm(total=total, unit=" rows", unit_scale=True, desc=split, disable=not sys.stderr.isatty()) as bar:
        for numerical, ids, labels, probabilities, groups, weights in (RowBlock(*rows) for rows in blocks):
            writer.append(split, numerical, ids, labels, groups, weights)
            samples += len(numerical)
            clicks += 0 if labels is None else int(np.count_nonzero(labels))
            if probabilities is not None and split == "test":
                known.append((probabilities, labels))
            bar.update(len(numerical))
    statistics: dict[str, Any] = {"samples": samples, "click_rate": round(clicks / max(samples, 1), 6)}
    if known:
        metrics = bayes_metrics(*(np.concatenate(column) for column in zip(*known, strict=True)))
        statistics |= {name: round(value, 6) for name, value in metrics.items() if np.isfinite(value)}
    return statistics


def generator_metadata(spec: FeatureSpec, seed: int, signal: float, statistics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata of synthetic data for the written specification: the parameters to draw it again, and the best possible score."""
    alphas = [feature.alpha or 0.0 for feature in spec.categorical]
    metadata: dict[str, Any] = {
        "generator": {
            "seed": seed,
            "signal": signal,
            "alpha": alphas[0] if len(set(alphas)) == 1 else alphas,
        },
        "click_rate": {split: values["click_rate"] for split, values in statistics.items()},
    }
    return metadata | {name: value for name, value in statistics.get("test", {}).items() if name.startswith("bayes_")}


def _describe(args: argparse.Namespace) -> int:
    """Write the specification beside the source's files, which stay in place."""
    if args.src_feature_spec != DEFAULT_FILE_NAME:
        raise UserError(f"--src_feature_spec {args.src_feature_spec}: a source of type {SPLIT} has none; drop the flag")
    for flag in ("--max_batches_train", "--max_batches_test", "--splits", "--train_only"):
        if getattr(args, flag.removeprefix("--")) not in (None, -1, False):
            raise UserError(f"{flag} needs a separate --dst_dataset_path: the files of {args.src_dataset_path} are not changed")
    if args.dst_dataset_type != TF_RAW:
        raise UserError(f"--dst_dataset_type {args.dst_dataset_type} needs a separate --dst_dataset_path")
    spec = write_split_spec(args.src_dataset_path, args.dst_feature_spec, args.overwrite)
    samples = check_quick(spec, tuple(spec.sources))
    shares = ", ".join(f"{split} {count:,} rows" for split, count in samples.items())
    print(f"wrote {spec.path}: {shares}, {len(spec.categorical)} categorical and {len(spec.numerical)} numerical features")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and check the flags, transcribe each split, publish the dataset, and print a summary."""
    args = parse_arguments(argv)
    batches = {"train": args.max_batches_train, "test": -1 if args.max_batches_test is None else args.max_batches_test}
    if args.dst_dataset_path is None and args.src_dataset_type != SPLIT:
        raise UserError("--dst_dataset_path is missing; give the folder to write")
    warn_needless(args)
    check_arguments(args, batches)
    if args.src_dataset_type == SPLIT and args.dst_dataset_path in (None, args.src_dataset_path):
        return _describe(args)
    args.seed = DEFAULT_SEED if args.seed is None else args.seed
    args.signal = DEFAULT_SIGNAL if args.signal is None else args.signal
    options = Options(args.seed, args.signal, args.max_ind_range, args.numerical_dtype or NUMERICAL_DTYPE)
    source = open_source(args.src_dataset_type, args.src_dataset_path, args.src_feature_spec, options)
    splits = splits_of(args, source)
    batches = {split: batches["train" if split == "train" else "test"] for split in splits}
    source.check(splits)
    refuse_own_files(args, source, splits)
    for line in source.notes():
        print(f"{NAME}: {line}", file=sys.stderr)

    started = time.perf_counter()
    sources = {split: source.rows(split, batches[split], args.src_batch_size) for split in splits}
    with writer_of(args, source, {split: total for split, (_, total) in sources.items()}) as writer:
        statistics = {}
        for split, (blocks, total) in sources.items():
            statistics[split] = write_split(writer, split, blocks, total)
            if args.src_dataset_type == args.dst_dataset_type == TF_RAW:
                copy_keys(source.spec, split, statistics[split]["samples"], writer.folder / split / KEYS)
        if args.src_dataset_type != SYNTHETIC:
            writer.copy_vocabularies(source.spec)
        synthetic = args.src_dataset_type == SYNTHETIC
        writer.publish(generator_metadata(source.spec, args.seed, args.signal, statistics) if synthetic else dict(source.spec.metadata))
    _report(args, writer, statistics, time.perf_counter() - started)
    return 0


def _report(args: argparse.Namespace, writer: Writer, statistics: Mapping[str, Mapping[str, Any]], seconds: float) -> None:
    """Print what was written, and the rows that were left out."""
    dropped = writer.dropped if isinstance(writer, BatchRecordWriter) else {}
    for split, count in dropped.items():
        if count:
            print(f"{NAME}: split {split}: the last {count:,} rows, which do not fill a record, are left out (--drop_remainder)", file=sys.stderr)
    counts = {split: values["samples"] - dropped.get(split, 0) for split, values in statistics.items()}
    size = sum(
        path.stat().st_size
        for split in counts
        for path in (args.dst_dataset_path / (folder_of(split) if args.dst_dataset_type == TFRECORD else split)).rglob("*")
        if path.is_file()
    )
    shares, rows = ", ".join(f"{split} {count:,} rows" for split, count in counts.items()), sum(counts.values())
    print(f"wrote {args.dst_dataset_path}: {shares}, {size / 1e6:,.1f} MB in {seconds:.1f} s, {rows / seconds:,.0f} samples/s")


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
