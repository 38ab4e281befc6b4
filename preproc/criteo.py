"""Raw Criteo click logs to a tf_raw dataset.

    python -m preproc.criteo --train day_0.gz day_1.gz --test day_2.gz --dst criteo_t15 --frequency_threshold 15

Dictionaries come from the training days only: ids from 1 by falling frequency (equal counts by rising value), and 0 for
values that are missing, rare or not in the training days. Rows keep the order of the logs.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tqdm import tqdm

from dataloading.contract import VOCABULARY, DatasetError
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec, generator_spec
from dataloading.tf_raw import TfRawWriter, refuse_dataset
from preproc.clicklog import CATEGORICAL, LABEL, NUMERICAL, Rows, read_rows
from preproc.staging import Staging
from utils.encoding import numerical, transforms
from utils.encoding.vocabulary import build_vocabulary, write_ids
from utils.errors import run_command
from utils.flags import Parser
from utils.interrupt import EndedBySignals
from utils.naming import naming

NAME = "preproc.criteo"
SPLITS = ("train", "test")


@dataclass
class Tally:
    """What was read into one split."""

    files: list[str]
    rows: int = 0
    clicks: int = 0
    bad_lines: int = 0

    def statistics(self) -> dict[str, Any]:
        """The split's part of the dataset's metadata."""
        return {"files": self.files, "rows": self.rows, "click_rate": round(self.clicks / self.rows, 6), "bad_lines_skipped": self.bad_lines}


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line. Raises UserError where it is wrong."""
    parser = Parser(prog="python -m preproc.criteo", description=__doc__)
    log = "40 tab-separated fields a line, no header; plain, gzip or zstd, told by the content"
    parser.add_argument("--train", type=Path, nargs="+", required=True, metavar="DAY", help=f"log files of the training split, in order: {log}")
    parser.add_argument("--test", type=Path, nargs="+", required=True, metavar="DAY", help="log files of the test split, in order; same form")
    parser.add_argument(
        "--dst", type=Path, required=True, metavar="FOLDER", help="folder of the dataset; needs free space for it and for staging files"
    )
    parser.add_argument(
        "--frequency_threshold",
        type=_natural,
        required=True,
        metavar="T",
        help="keep a value that occurs at least T times in the training days, give the others id 0; 0 and 1 keep all",
    )
    parser.add_argument(
        "--numerical_transform",
        choices=numerical.TRANSFORMS,
        default="log",
        help="log: log(x + 3), and 0 where x is missing or below -2; none: x, and 0 where it is missing, an error beyond ±65504 (default: log)",
    )
    parser.add_argument(
        "--bad_lines", choices=("error", "skip"), default="error", help="stop at a malformed line, or leave it out and report it (default: error)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset that is already in the folder (default: refuse)")
    parser.add_argument(
        "--block_bytes",
        type=_positive,
        default=32 << 20,
        metavar="BYTES",
        help="text parsed at once, in bytes; memory grows with it (default: %(default)s, 32 MiB)",
    )
    return parser.parse_strictly(sys.argv[1:] if argv is None else argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    Raises:
        UserError: a log that is missing, empty, damaged or malformed, a destination that holds a dataset, a value that
            does not fit. Nothing is left at the destination then.
    """
    arguments = parse_arguments(argv)
    started = time.monotonic()
    logs = {"train": arguments.train, "test": arguments.test}
    for path in (*arguments.train, *arguments.test):
        _check_log(path, arguments.dst)
    refuse_dataset(arguments.dst, DEFAULT_FILE_NAME, arguments.overwrite)

    with Staging(arguments.dst, SPLITS) as staging:
        tallies = _stage(logs, staging, arguments)
        folder = staging.folder / VOCABULARY
        folder.mkdir()
        cardinalities = []
        for feature in tqdm(CATEGORICAL, desc="dictionaries", unit="feature", disable=None):
            vocabulary = build_vocabulary(staging.values("train", feature), arguments.frequency_threshold)
            path = folder / f"{feature}.parquet"
            with naming(path):
                vocabulary.write_parquet(path)
            cardinalities.append(vocabulary.height + 1)

        with TfRawWriter(arguments.dst, generator_spec(cardinalities, len(NUMERICAL), alpha=0.0), SPLITS, overwrite=arguments.overwrite) as writer:
            _write_columns(staging, writer)
            folder.rename(writer.folder / VOCABULARY)
            spec = writer.publish(_metadata(tallies, arguments))
    print(_summary(arguments.dst, spec, tallies, time.monotonic() - started))
    return 0


def _check_log(path: Path, destination: Path) -> None:
    """Find out before anything is written, and not after an hour of work, that a log cannot be read."""
    if not path.is_file():
        raise DatasetError(f"{path}: {'not a file' if path.exists() else 'no such file'}; expected a click log (--train, --test)")
    path.open("rb").close()
    for folder in (*SPLITS, VOCABULARY):
        if path.resolve().is_relative_to((destination / folder).resolve()):  # publishing replaces these folders, the log with them
            raise DatasetError(f"{path} lies in {destination / folder}, which the dataset will replace; choose another --dst")


def _stage(logs: dict[str, list[Path]], staging: Staging, arguments: argparse.Namespace) -> dict[str, Tally]:
    """Read every log once; returns what was found in each split."""
    tallies = {split: Tally([path.name for path in paths]) for split, paths in logs.items()}
    total_bytes = sum(path.stat().st_size for paths in logs.values() for path in paths)
    with tqdm(total=total_bytes, desc="reading", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        for split, paths in logs.items():
            tally = tallies[split]
            for path in paths:
                bad_lines, first_fault = 0, ""
                for rows in read_rows(path, arguments.block_bytes, arguments.bad_lines == "skip", bar.update):
                    first_fault = first_fault or next(iter(rows.faults), "")
                    bad_lines += len(rows.faults)
                    if rows.lines:
                        labels = rows.frame[LABEL].to_numpy()
                        staging.append(split, labels, _transformed(path, rows, arguments.numerical_transform), rows.frame.select(CATEGORICAL))
                        tally.rows += rows.frame.height
                        tally.clicks += int(labels.sum())
                if bad_lines:
                    bar.write(f"preproc.criteo: {path}: bad lines skipped: {bad_lines}, the first: {first_fault}", file=sys.stderr)
                tally.bad_lines += bad_lines
            if not tally.rows:
                raise DatasetError(f"the {split} split holds no rows: every line of {', '.join(tally.files)} is malformed")
    staging.flush()
    return tallies


def _transformed(path: Path, rows: Rows, transform: str) -> np.ndarray:
    """The numerical features of a block, `[n, M]` float16."""
    numbers = rows.frame.select(NUMERICAL)
    if transform == "log":
        return numerical.log_plus_3(numbers)
    if found := numerical.beyond_float16(numbers):
        # An error under --bad_lines skip too: the line is sound, and large values are too common to be dropped unseen.
        row, name, value = found
        where = f"{path}: line {rows.lines[row]}: field {rows.frame.columns.index(name) + 1} ({name})"
        raise DatasetError(f"{where} is {value}, expected at most ±{numerical.FLOAT16_MAX}, what float16 holds; use --numerical_transform log")
    return numerical.unchanged(numbers)


def _write_columns(staging: Staging, writer: TfRawWriter) -> None:
    """Fill the dataset's files: labels and numerical features are moved, ids are written column by column."""
    for split in SPLITS:
        files = writer.files(split)
        staging.labels(split).rename(files.label)
        staging.numerical(split).rename(files.numerical)
    for i, feature in enumerate(tqdm(writer.spec.categorical, desc="ids", unit="feature", disable=None)):
        vocabulary = pl.read_parquet(staging.folder / VOCABULARY / f"{feature.name}.parquet", columns=["value", "id"])
        for split in SPLITS:
            write_ids(staging.values(split, feature.name), vocabulary, feature.dtype, writer.files(split).categorical[i])


def _metadata(tallies: dict[str, Tally], arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "source": "criteo",
        **{split: tally.statistics() for split, tally in tallies.items()},
        "frequency_threshold": arguments.frequency_threshold,
        "numerical_transform": arguments.numerical_transform,
        transforms.NAME: transforms.criteo_transforms(NUMERICAL, CATEGORICAL, arguments.numerical_transform),
        "vocabulary": f"{VOCABULARY}/<feature>.parquet",
    }


def _summary(destination: Path, spec: FeatureSpec, tallies: dict[str, Tally], seconds: float) -> str:
    rows = sum(tally.rows for tally in tallies.values())
    splits = ", ".join(f"{split} {tally.rows:,} rows (click rate {tally.clicks / tally.rows:.4f})" for split, tally in tallies.items())
    skipped = sum(tally.bad_lines for tally in tallies.values())
    tables = f"{len(spec.categorical)} categorical features with {sum(spec.cardinalities):,} table rows"
    return f"{destination}: {splits}; {tables}; {skipped:,} bad lines skipped; {seconds:.1f} s, {rows / seconds:,.0f} rows/s"


def _natural(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, found {text!r}")
    return value


def _positive(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError("expected a whole number of at least 1, found 0")
    return int(text)


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
