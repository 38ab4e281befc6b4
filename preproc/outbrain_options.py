"""The command line of preproc.outbrain."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dataloading.tfrecord_spec import OUTBRAIN_TABLES
from dataloading.tfrecord_writer import DEFAULT_FILES
from preproc.engines.spark_settings import add_engine_flags, spark_settings
from preproc.outbrain_fit import Thresholds
from preproc.outbrain_split import SplitRule
from preproc.outbrain_tfrecords import FORMATS, TF_RAW
from utils.errors import UserError
from utils.flags import Parser

NAME = "preproc.outbrain"
_MOST = 2**62


def parse_arguments(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Parse the command line; `spark` holds the settings of a run by Spark, None without. Raises UserError."""
    parser = Parser(prog=f"python -m {NAME}", description=description)
    add = parser.add_argument
    add("--src", type=Path, required=True, metavar="FOLDER", help="folder of the raw files: clicks_train.csv, events.csv, …; plain, gzip or zstd")
    add("--dst", type=Path, required=True, metavar="FOLDER", help="folder of the dataset; needs free space for it and for staging files")
    add("--format", choices=FORMATS, default=TF_RAW, help="what to write; both: the TFRecords in its folder tfrecords (default: %(default)s)")
    add("--num_files", type=_whole(1), metavar="N", help=f"files of TFRecords of a split (default: {DEFAULT_FILES})")
    add("--bad_lines", choices=("error", "skip"), default="error", help="stop at a bad row, or leave it out (default: error)")
    add("--block_bytes", type=_whole(1), default=8 << 20, metavar="N", help="text parsed at once, in bytes (default: %(default)s)")
    add(
        "--table_sizes",
        type=Path,
        default=OUTBRAIN_TABLES,
        metavar="FILE",
        help=f"rows and columns of the tables (default: dataloading/{OUTBRAIN_TABLES.name})",
    )
    add("--overwrite", action="store_true", help="replace a dataset that is already in the folder (default: refuse)")
    add = parser.add_argument_group("split").add_argument
    add("--eval_fraction", type=_share, default=0.2, metavar="X", help="share of the earlier displays for evaluation (default: %(default)s)")
    add("--eval_from_day", type=_whole(0), default=11, metavar="N", help="from this day on, counted from 0, all are (default: %(default)s)")
    add("--seed", type=_whole(0), default=0, metavar="N", help="of what is drawn by a hash (default: %(default)s)")
    add = parser.add_argument_group("thresholds", "of the training rows").add_argument
    add("--min_views", type=_whole(0), default=5, metavar="N", help="ads and documents shown more often have rates and views (default: %(default)s)")
    add(
        "--min_group_views",
        type=_whole(0),
        default=10,
        metavar="N",
        help="publishers, sources, advertisers and campaigns shown more often have rates (default: %(default)s)",
    )
    add(
        "--min_events", type=_whole(0), default=10, metavar="N", help="countries, states and places of at least so many events have ids (default: 10)"
    )
    add_engine_flags(parser)
    args = parser.parse_strictly(argv)
    args.spark = spark_settings(args, NAME)
    if args.src.resolve() == args.dst.resolve():
        raise UserError(f"--dst {args.dst}: is the folder of the raw files; choose another one")
    if args.num_files is not None and args.format == TF_RAW:
        print(f"{NAME}: warning: --num_files has no effect with --format {TF_RAW}", file=sys.stderr)
    return args


def thresholds_of(args: argparse.Namespace) -> Thresholds:
    """From when on something is known well enough."""
    return Thresholds(args.min_views, args.min_group_views, args.min_events)


def rule_of(args: argparse.Namespace) -> SplitRule:
    """Which displays are for evaluation."""
    return SplitRule(args.seed, args.eval_fraction, args.eval_from_day)


def _whole(least: int):
    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if not least <= value < _MOST:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
        return value

    return read


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share of at least 0 and below 1, found {text!r}")
    return value
