"""The command line of preproc.outbrain."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dataloading.tfrecord.spec import OUTBRAIN_TABLES
from dataloading.tfrecord.writer import DEFAULT_FILES
from preproc.outbrain.fit import Thresholds
from preproc.outbrain.split import SplitRule
from preproc.outbrain.tfrecords import FORMATS, TF_RAW
from preproc.shared.engine_flags import add_engine_flags, spark_settings
from preproc.shared.flag_types import share, whole
from utils.config.flags import Parser
from utils.errors import UserError

NAME = "preproc.outbrain"
_MOST = 2**62 - 1


def parse_arguments(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Parse the command line; `spark` of the result holds the settings of a run on Spark, else None. Raises UserError."""
    parser = Parser(prog=f"python -m {NAME}", description=description)
    add = parser.add_argument
    add("--src", type=Path, required=True, metavar="FOLDER", help="folder of the raw files: clicks_train.csv, events.csv, …; plain, gzip or zstd")
    add("--dst", type=Path, required=True, metavar="FOLDER", help="folder of the dataset; needs free space for it and for staging files")
    add("--format", choices=FORMATS, default=TF_RAW, help="format to write; both: TFRecords in the dataset's folder tfrecords (default: %(default)s)")
    add("--num_files", type=whole(1, _MOST), metavar="N", help=f"number of TFRecord files of a split (default: {DEFAULT_FILES})")
    add("--bad_lines", choices=("error", "skip"), default="error", help="stop at a bad row, or leave it out (default: error)")
    add("--block_bytes", type=whole(1, _MOST), default=8 << 20, metavar="N", help="text parsed at once, in bytes (default: %(default)s)")
    add(
        "--table_sizes",
        type=Path,
        default=OUTBRAIN_TABLES,
        metavar="FILE",
        help=f"JSON file with the rows and columns of the tables (default: dataloading/{OUTBRAIN_TABLES.name})",
    )
    add("--overwrite", action="store_true", help="replace an existing dataset in the folder (default: refuse)")
    add = parser.add_argument_group("split").add_argument
    add("--eval_fraction", type=share, default=0.2, metavar="X", help="share of earlier displays held out for evaluation (default: %(default)s)")
    _number(add, "--eval_from_day", 11, "first day, counted from 0, of which all displays are held out")
    _number(add, "--seed", 0, "seed of the hash that draws earlier displays")
    add = parser.add_argument_group("thresholds", "counted in the training rows").add_argument
    _number(add, "--min_views", 5, "views above which an ad or document gets a click rate and a view count")
    _number(add, "--min_group_views", 10, "views above which a publisher, source, advertiser or campaign gets a click rate")
    _number(add, "--min_events", 10, "events from which a country, state or place gets an id")
    add_engine_flags(parser)
    args = parser.parse_strictly(argv)
    args.spark = spark_settings(args, NAME)
    if args.src.resolve() == args.dst.resolve():
        raise UserError(f"--dst {args.dst}: is the folder of the raw files; choose another one")
    if args.num_files is not None and args.format == TF_RAW:
        print(f"{NAME}: warning: --num_files has no effect with --format {TF_RAW}", file=sys.stderr)
    return args


def _number(add: Callable[..., Any], name: str, default: int, text: str) -> None:
    """Add a flag that takes a whole number, 0 or more."""
    add(name, type=whole(0, _MOST), default=default, metavar="N", help=f"{text} (default: %(default)s)")


def thresholds_of(args: argparse.Namespace) -> Thresholds:
    """Return the thresholds that the flags give."""
    return Thresholds(args.min_views, args.min_group_views, args.min_events)


def rule_of(args: argparse.Namespace) -> SplitRule:
    """Return the split rule that the flags give."""
    return SplitRule(args.seed, args.eval_fraction, args.eval_from_day)
