"""Turn synthetic data, CSV files, NVIDIA's TFRecords or another tf_raw dataset into a tf_raw dataset, or into TFRecords.

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

    # the first rows of a tf_raw dataset
    python -m dataloading.transcribe --src_dataset_path /data/criteo --dst_dataset_path /data/criteo_small --max_batches_train 10

The dataset appears complete or not at all: files are written to a hidden folder, and the feature specification is moved in place last.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from dataloading.bayes import bayes_metrics
from dataloading.blocks import RowBlock, drawn_rows, in_order, stored_blocks
from dataloading.contract import TFRECORD, TFRECORDS, check_quick, split_files
from dataloading.csv_files.source import check_csv_files, csv_paths, read_csv_split
from dataloading.csv_files.spec import read_csv_spec
from dataloading.feature_spec import DEFAULT_FILE_NAME, SPLITS, FeatureSpec
from dataloading.features import DatasetError
from dataloading.keys import KEYS, check_keys, copy_keys, stored_keys
from dataloading.split_dataset import split_spec, write_split_spec
from dataloading.synthetic.split import DEFAULT_SIGNAL, SyntheticSplit
from dataloading.tf_raw import TfRawSplit, TfRawWriter
from dataloading.tfrecord.source import check_tfrecords, read_tfrecords, tfrecord_folders
from dataloading.tfrecord.spec import split_records, tfrecord_spec, unread_features
from dataloading.tfrecord.split import TfRecordSplit
from dataloading.tfrecord.writer import DEFAULT_FILES, TfRecordWriter
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.signals import EndedBySignals

NAME = "dataloading.transcribe"
SPLIT = "split"
DEFAULT_BATCH_SIZE = 65536
DEFAULT_SEED = 0


_NO_EFFECT = {  # flags of NVIDIA's transcriber that its scripts pass
    "--dst_prebatch_size": "tf_raw files are not divided into batches",
    "--src_synthetic_dataset_use_feature_spec": "synthetic data always follows the feature specification",
}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; flags that only some sources use default to None, so that `warn_needless` can detect them."""
    parser = Parser(prog=NAME, description="Write a tf_raw dataset from synthetic data, CSV files, TFRecords or another one.")
    add = parser.add_argument
    add(
        "--src_dataset_type",
        choices=("synthetic", "tf_raw", "csv", SPLIT, TFRECORDS, TFRECORD),
        default="tf_raw",
        help="type of the source (default: tf_raw)",
    )
    add("--src_dataset_path", type=Path, default=Path("."), help="folder of the source (default: the working directory)")
    add("--src_feature_spec", default=DEFAULT_FILE_NAME, help=f"file name of the source's specification (default: {DEFAULT_FILE_NAME})")
    add("--src_batch_size", type=int, default=DEFAULT_BATCH_SIZE, help=f"rows per batch, the unit of --max_batches_* (default: {DEFAULT_BATCH_SIZE})")
    add("--dst_dataset_type", choices=("tf_raw", TFRECORD), default="tf_raw", help="type of the written dataset (default: tf_raw)")
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
    add("--dst_prebatch_size", type=int, help="accepted for NVIDIA's command lines, has no effect")
    add("--src_synthetic_dataset_use_feature_spec", action="store_true", help="accepted for NVIDIA's command lines, has no effect")
    return parser.parse_strictly(sys.argv[1:] if argv is None else argv)


def warn_needless(args: argparse.Namespace) -> None:
    """Print a warning for each given flag that has no effect in this mode."""
    reasons = {}
    if args.src_dataset_type != "synthetic":
        reasons |= dict.fromkeys(("--seed", "--signal"), f"with --src_dataset_type {args.src_dataset_type}")
    if args.dst_dataset_type != TFRECORD:
        reasons["--num_files"] = f"with --dst_dataset_type {args.dst_dataset_type}"
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
    if args.dst_dataset_type == TFRECORD and args.src_dataset_type in ("csv", TFRECORDS):
        raise UserError(
            f"--dst_dataset_type {TFRECORD}: the number of rows of {args.src_dataset_type} is not known in advance; transcribe it to tf_raw first"
        )
    if args.src_batch_size < 1:
        raise UserError(f"--src_batch_size is {args.src_batch_size}, expected at least 1 row")
    if Path(args.dst_feature_spec).name != args.dst_feature_spec or args.dst_feature_spec in ("", ".", ".."):
        raise UserError(f"--dst_feature_spec is {args.dst_feature_spec!r}, expected a file name; it is written into --dst_dataset_path")
    for split in ("train",) if args.train_only or args.splits == "train" else ("train", "test"):
        if batches[split] < 1 and batches[split] != -1:
            hint = "; --train_only writes no test split" if split == "test" else ""
            raise UserError(f"--max_batches_{split} is {batches[split]}, expected -1 (all) or at least 1{hint}")
        if args.src_dataset_type == "synthetic" and batches[split] == -1:
            raise UserError(f"synthetic data has no end: give --max_batches_{split} (batches of {args.src_batch_size} rows)")
    if args.signal is not None and not 0 <= args.signal < 100:
        raise UserError(f"--signal is {args.signal}, expected a number from 0 to 100")


def splits_of(args: argparse.Namespace, spec: FeatureSpec) -> tuple[str, ...]:
    """Return the splits to write: train, valid and test first, then the others in the order of the specification.

    Raises:
        UserError: `--splits` names a split that the source lacks, or names one twice.
    """
    if args.src_dataset_type == "synthetic":
        known, all_of_them = SPLITS, ("train", "test")
    elif args.src_dataset_type == TFRECORDS:
        known = all_of_them = tuple(name for name in SPLITS if name != "valid" or (spec.base_directory / name).is_dir())
    elif spec.sources is None:
        known = all_of_them = ("train", "test")
    else:
        known = all_of_them = tuple(sorted(spec.sources, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS)))
    if args.train_only:
        all_of_them = ("train",)
    if args.splits is None:
        return all_of_them
    chosen = args.splits.split(",")
    for split in chosen:
        if split not in known or chosen.count(split) > 1:
            raise UserError(f"--splits {args.splits}: expected names of {', '.join(known)}, each once and separated by commas, found {split!r}")
    return tuple(split for split in known if split in chosen)


def refuse_own_files(args: argparse.Namespace, spec: FeatureSpec, splits: Sequence[str]) -> None:
    """Raise DatasetError if writing would replace files of the source."""
    destination = args.dst_dataset_path.resolve()
    if args.src_dataset_type in ("tf_raw", TFRECORD) and args.src_dataset_path.resolve() == destination:
        raise DatasetError(f"{args.dst_dataset_path} is source and destination; choose another --dst_dataset_path")
    for split in splits:
        readers = {
            "tf_raw": lambda s: split_files(spec, s).all(),
            "csv": lambda s: csv_paths(spec, s),
            TFRECORDS: lambda s: tfrecord_folders(spec, s),
            TFRECORD: lambda s: split_records(spec, s),
        }
        for path in readers.get(args.src_dataset_type, lambda s: ())(split):
            for written in splits:
                if path.resolve().is_relative_to(destination / written):
                    raise DatasetError(f"{path} is a source file and would be replaced; choose another --dst_dataset_path")


def source_rows(args: argparse.Namespace, spec: FeatureSpec, split: str, batches: int) -> tuple[Iterator[RowBlock], int | None]:
    """Return the rows of a split in batches, and their number (None if it is known only after reading)."""
    size = args.src_batch_size
    if args.src_dataset_type == "csv":
        blocks = islice(read_csv_split(spec, split, size), None if batches == -1 else batches)
        return (RowBlock(numerical, ids, labels, groups=groups) for numerical, ids, labels, groups in blocks), None
    if args.src_dataset_type == TFRECORDS:
        return (RowBlock(*rows) for rows in read_tfrecords(spec, split, None if batches == -1 else batches * size)), None
    if args.src_dataset_type in ("tf_raw", TFRECORD):
        stored = TfRawSplit(spec, split) if args.src_dataset_type == "tf_raw" else TfRecordSplit(spec, split)
        rows = stored.num_samples if batches == -1 else min(stored.num_samples, batches * size)
        return stored_blocks(stored, rows, size), rows
    drawn = SyntheticSplit(spec, split, batches * size, args.seed, args.signal)
    return in_order(drawn_rows(drawn), drawn.num_samples, size, workers=min(os.cpu_count() or 1, 8)), drawn.num_samples


def writer_of(args: argparse.Namespace, spec: FeatureSpec, rows: Mapping[str, int | None], unlabelled: Sequence[str]) -> TfRawWriter | TfRecordWriter:
    """Return the writer of the destination; `rows` is the number of rows of each split, which TFRecords need in advance."""
    if args.dst_dataset_type == "tf_raw":
        return TfRawWriter(args.dst_dataset_path, spec, tuple(rows), args.dst_feature_spec, args.overwrite, unlabelled)
    for split in rows if args.src_dataset_type == "tf_raw" else ():
        if keys := stored_keys(spec, split):
            print(f"{NAME}: warning: {keys} is not copied: TFRecords cannot hold it", file=sys.stderr)
    files = DEFAULT_FILES if args.num_files is None else args.num_files
    return TfRecordWriter(args.dst_dataset_path, spec, rows, files, args.dst_feature_spec, args.overwrite, unlabelled)


def write_split(writer: TfRawWriter | TfRecordWriter, split: str, blocks: Iterator[RowBlock], total: int | None) -> dict[str, Any]:
    """Append all rows, and return `samples`, `click_rate` and, for a test split with known P(click), the Bayes metrics."""
    samples, clicks = 0, 0
    known: list[tuple[np.ndarray, np.ndarray]] = []
    with tqdm(total=total, unit=" rows", unit_scale=True, desc=split, disable=not sys.stderr.isatty()) as bar:
        for numerical, ids, labels, probabilities, groups in (RowBlock(*rows) for rows in blocks):
            writer.append(split, numerical, ids, labels, groups)
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


def generator_metadata(spec: FeatureSpec, args: argparse.Namespace, statistics: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the metadata of synthetic data for the written specification: the parameters to draw it again, and the best possible score."""
    alphas = [feature.alpha or 0.0 for feature in spec.categorical]
    metadata: dict[str, Any] = {
        "generator": {
            "seed": args.seed,
            "signal": args.signal,
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

    if args.src_dataset_type == SPLIT:
        spec, args.src_dataset_type = split_spec(args.src_dataset_path), "tf_raw"
    elif args.src_dataset_type == TFRECORD:
        spec = tfrecord_spec(args.src_dataset_path, args.src_feature_spec)
        if unread := unread_features(spec):
            print(f"{NAME}: features of the records that {spec.path} does not list are ignored: {', '.join(unread)}", file=sys.stderr)
    else:
        read = read_csv_spec if args.src_dataset_type == "csv" else FeatureSpec.from_yaml
        spec = read(args.src_dataset_path / args.src_feature_spec, "--src_dataset_path and --src_feature_spec")
    splits = splits_of(args, spec)
    batches = {split: batches["train" if split == "train" else "test"] for split in splits}
    if args.src_dataset_type == "tf_raw":
        for split, count in check_quick(spec, splits).items():
            check_keys(spec, split, count)
    refuse_own_files(args, spec, splits)
    if args.src_dataset_type == "csv":
        for split in splits:
            check_csv_files(spec, split)
    if args.src_dataset_type == TFRECORDS:
        check_tfrecords(spec, splits)
        if spec.sources:
            print(f"{NAME}: warning: source_spec of {spec.path} is ignored: the paths of {TFRECORDS} files are fixed", file=sys.stderr)

    started = time.perf_counter()
    statistics = {}
    unlabelled = [split for split in splits if args.src_dataset_type in ("tf_raw", "csv", TFRECORD) and not spec.labelled(split)]
    sources = {split: source_rows(args, spec, split, batches[split]) for split in splits}
    with writer_of(args, spec, {split: total for split, (_, total) in sources.items()}, unlabelled) as writer:
        for split, (blocks, total) in sources.items():
            statistics[split] = write_split(writer, split, blocks, total)
            if args.src_dataset_type == "tf_raw" and args.dst_dataset_type == "tf_raw":
                copy_keys(spec, split, statistics[split]["samples"], writer.folder / split / KEYS)
        if args.src_dataset_type != "synthetic":
            writer.copy_vocabularies(spec)
        metadata = generator_metadata(spec, args, statistics) if args.src_dataset_type == "synthetic" else dict(spec.metadata)
        written = writer.publish(metadata)
    seconds = time.perf_counter() - started

    rows = sum(values["samples"] for values in statistics.values())
    size = sum((written.base_directory / file).stat().st_size for split in splits for chunk in written.sources[split] for file in chunk.files)
    shares = ", ".join(f"{split} {values['samples']:,} rows" for split, values in statistics.items())
    print(f"wrote {args.dst_dataset_path}: {shares}, {size / 1e6:,.1f} MB in {seconds:.1f} s, {rows / seconds:,.0f} samples/s")
    return 0


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
