"""The command line of `preproc.criteo`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preproc.criteo.clicklog import LogForm
from preproc.criteo.row_order import INPUT, ORDERINGS
from preproc.reading.stores import Source, stored_files
from preproc.shared.engine_flags import SPARK, SparkSettings, add_engine_flags, spark_settings
from preproc.shared.flag_types import rate
from preproc.shared.into_store import Destination, folder_or_url
from utils.config.flags import Parser
from utils.encoding import numerical
from utils.errors import UserError
from utils.urls import is_url

NAME = "preproc.criteo"
NEW = "new"  # the split of rows without labels
SPLITS = ("train", "valid", "test", NEW)
ALL = "all"


@dataclass(frozen=True)
class Thresholds:
    """Least numbers of occurrences for a value to be kept: one for each feature named, `default` for the others."""

    default: int
    features: Mapping[str, int]

    def of(self, feature: str) -> int:
        """Return the threshold of a feature."""
        return self.features.get(feature, self.default)

    def described(self) -> Any:
        """Return the form for the metadata: a number, or a mapping where features have their own."""
        return {"default": self.default, **self.features} if self.features else self.default


@dataclass(frozen=True)
class Options:
    """The options of a run.

    Attributes:
        logs: log files of each given split, in order.
        target: destination of the dataset.
        form: fields of a log line.
        thresholds: frequency thresholds of new values; None if no new value can get an id.
        transform: transform of the integers; None for that of the dataset `vocabulary`.
        halve: whether the last test day is cut into a test and a valid half.
        ordering: order of the training rows.
        negative_rate: probability with which each negative of the training split is kept, above 0 and below 1; None to keep all.
        seed: seed of that order, and of the draw of negatives.
        vocabulary: folder of the dataset whose ids are used; None to make new dictionaries.
        extend: whether values that it lacks get ids behind its own.
        leak: whether dictionaries are made from the rows of all splits.
        skip_bad_lines: skip malformed lines, or stop at the first.
        overwrite: whether an existing dataset may be replaced.
        block_bytes: text parsed at once, in bytes.
        resume: whether complete stages are recorded, and not repeated by the next run.
        spark: Spark configuration; None for Polars on this machine.
        only_dictionaries: whether the dataset gets vocabularies and no rows.
    """

    logs: Mapping[str, list[Source]]
    target: Destination
    form: LogForm
    thresholds: Thresholds | None
    transform: str | None
    halve: bool
    ordering: str
    negative_rate: float | None
    seed: int
    vocabulary: Path | None
    extend: bool
    leak: bool
    skip_bad_lines: bool
    overwrite: bool
    block_bytes: int
    resume: bool
    spark: SparkSettings | None
    only_dictionaries: bool = False

    @property
    def destination(self) -> Path:
        """The local folder of the dataset."""
        return self.target.folder

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the dataset, in order."""
        found = {*self.logs, *(["valid"] if self.halve else [])}
        return tuple(split for split in SPLITS if split in found)

    def of_the_bytes(self) -> dict[str, Any]:
        """Return all that the dataset's bytes depend on besides the logs, by flag."""
        return {
            "num_numerical": self.form.num_numerical,
            "num_categorical": self.form.num_categorical,
            "frequency_threshold": self.thresholds and self.thresholds.described(),
            "numerical_transform": self.transform,
            "halve_test": self.halve,
            "output_ordering": self.ordering,
            "negative_rate": self.negative_rate,
            "seed": self.seed,
            "extend_vocabulary": self.extend,
            "dictionary_days": self.leak,
            "bad_lines": self.skip_bad_lines,
            "number of files of each split": {split: len(paths) for split, paths in self.logs.items()},
        }


def parse(argv: Sequence[str] | None, description: str) -> Options:
    """Parse the command line. Raises UserError where it is wrong."""
    given = _parser(description).parse_strictly(sys.argv[1:] if argv is None else argv)
    form = LogForm(given.num_numerical, given.num_categorical)
    _check_together(given)
    target = Destination.of(given)
    frozen = given.vocabulary is not None and not given.extend_vocabulary
    if frozen and given.frequency_threshold is not None:
        print(f"{NAME}: warning: --frequency_threshold has no effect with --vocabulary, unless --extend_vocabulary", file=sys.stderr)
    sampled = given.negative_rate not in (None, 1)
    if given.negative_rate == 1:
        print(f"{NAME}: warning: --negative_rate 1 has no effect: it keeps every negative", file=sys.stderr)
    if given.seed is not None and given.output_ordering == INPUT and not sampled:
        print(f"{NAME}: warning: --seed has no effect with --output_ordering {INPUT} and without --negative_rate", file=sys.stderr)
    return Options(
        logs={split: _logs(paths) for split in SPLITS if (paths := given.unlabelled if split == NEW else getattr(given, split))},
        target=target,
        form=form,
        thresholds=None if frozen else _thresholds(given.frequency_threshold, form),
        transform=given.numerical_transform or (None if given.vocabulary else numerical.TRANSFORMS[0]),
        halve=given.halve_test,
        ordering=given.output_ordering,
        negative_rate=given.negative_rate if sampled else None,
        seed=given.seed or 0,
        vocabulary=given.vocabulary,
        extend=given.extend_vocabulary,
        leak=given.dictionary_days == ALL,
        skip_bad_lines=given.bad_lines == "skip",
        overwrite=given.overwrite,
        block_bytes=given.block_bytes,
        resume=given.resume and given.engine != SPARK,
        spark=spark_settings(given, NAME),
    )


def _parser(description: str) -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=description)
    add = parser.add_argument
    log = "tab-separated fields, no header; plain, gzip or zstd, detected by the content; files, or URLs of object stores"
    add("--train", nargs="+", metavar="DAY", help=f"log files of the training split, in order: 40 {log}")
    add("--valid", nargs="+", metavar="DAY", help="log files of the valid split, for choosing models; same form")
    add("--test", nargs="+", metavar="DAY", help="log files of the test split, in order; same form")
    add("--unlabelled", nargs="+", metavar="DAY", help=f"log files of rows to be scored, without the label; they form the split {NEW}")
    add("--halve_test", action="store_true", help="halve the last day of --test, as NVIDIA does: the first half is test, the second valid")
    add(
        "--dst",
        type=folder_or_url,
        required=True,
        metavar="FOLDER|URL",
        help="folder of the dataset, with free space for it and for staging files; or a folder in an object store (s3://…), with --staging",
    )
    add(
        "--frequency_threshold",
        metavar="T|FIELD:T,…,T",
        help="keep a value that occurs at least T times in the training days, give the others id 0; 0 and 1 keep all. By field, counted from 0 as "
        "NVIDIA does: 20:7,21:3,15 is 7 for field 20 (cat_6), 3 for field 21 (cat_7) and 15 for the others",
    )
    add(
        "--numerical_transform",
        choices=numerical.TRANSFORMS,
        help="log: log(x + 3), and 0 where x is missing or below -2; none: x, and 0 where it is missing, an error beyond ±65504 (default: log, or "
        "that of --vocabulary)",
    )
    add("--num_numerical", type=_natural, default=13, metavar="M", help="number of integers a line (default: %(default)s)")
    add("--num_categorical", type=_positive, default=26, metavar="F", help="number of categorical values a line (default: %(default)s)")
    add(
        "--output_ordering",
        choices=ORDERINGS,
        default=INPUT,
        help="order of the training rows: that of the logs, random within each day, or random (default: %(default)s)",
    )
    add(
        "--negative_rate",
        type=_negative_rate,
        metavar="RATE",
        help="keep each negative of the training split with this probability, above 0 and below 1; training makes up for it (default: keep all)",
    )
    add("--seed", type=_natural, metavar="N", help="seed of --output_ordering and of --negative_rate (default: 0)")
    add("--vocabulary", type=Path, metavar="DATASET", help="existing dataset of this command whose ids are used; values that it lacks get id 0")
    add("--extend_vocabulary", action="store_true", help="append the training days' new values to those of --vocabulary")
    add(
        "--dictionary_days",
        choices=("train", ALL),
        default="train",
        help="days from which dictionaries are made; all leaks the test rows into them, as NVIDIA's does, for comparison (default: train)",
    )
    add("--bad_lines", choices=("error", "skip"), default="error", help="stop at a malformed line, or leave it out and report it (default: error)")
    add("--resume", action="store_true", help="continue an interrupted run of the same command, and keep completed stages if this run is interrupted")
    add("--overwrite", action="store_true", help="replace an existing dataset in the folder (default: refuse)")
    add(
        "--block_bytes",
        type=_positive,
        default=32 << 20,
        metavar="BYTES",
        help="text parsed at once, in bytes; memory grows with it (default: %(default)s, 32 MiB)",
    )
    add_engine_flags(parser)
    return parser


def _check_together(given: argparse.Namespace) -> None:
    """Raise UserError for flags that conflict, or that lack another one."""
    frozen = given.vocabulary is not None and not given.extend_vocabulary
    if given.extend_vocabulary and given.vocabulary is None:
        raise UserError("--extend_vocabulary needs --vocabulary, the dataset to extend")
    if given.train is None and not frozen:
        why = "--extend_vocabulary takes new values from them" if given.extend_vocabulary else "only runs with --vocabulary need none"
        raise UserError(f"--train is missing; give the log files of the training days ({why})")
    if given.test is None and given.vocabulary is None:
        raise UserError("--test is missing; give the log files of the test days")
    if not (given.train or given.valid or given.test or given.unlabelled):
        raise UserError("--train, --valid, --test and --unlabelled are missing; give log files for at least one of them")
    if given.frequency_threshold is None and not frozen:
        raise UserError("--frequency_threshold is missing; give the number of occurrences from which a value gets an id (0 keeps all)")
    if given.halve_test and (given.test is None or given.valid):
        raise UserError(f"--halve_test: {'--valid is given too; drop one of them' if given.valid else '--test is missing, whose last day is halved'}")
    if given.output_ordering != INPUT and given.train is None:
        raise UserError(f"--output_ordering {given.output_ordering}: --train is missing, whose rows would be put into that order")
    if given.negative_rate is not None and given.train is None:
        raise UserError("--negative_rate needs --train, the files of the rows whose negatives are sampled")
    if given.dictionary_days == ALL and frozen:
        raise UserError("--dictionary_days all: no dictionary is made with --vocabulary but without --extend_vocabulary; drop the flag")


def _logs(given: Sequence[str]) -> list[Source]:
    """Return local files as paths, and the stored files that URLs of object stores name."""
    return [source for text in given for source in (stored_files(text) if is_url(text) else [Path(text)])]


def _thresholds(text: str, form: LogForm) -> Thresholds:
    default, features = None, {}
    first = 1 + form.num_numerical
    for part in text.split(","):
        field, colon, count = part.rpartition(":")
        if colon:
            if not _is_natural(field) or not first <= int(field) < len(form.fields):
                found = f"expected a categorical field, {first} to {len(form.fields) - 1} counted from 0, before the colon of {part!r}"
                raise UserError(f"--frequency_threshold: {found}")
            name = form.fields[int(field)]
            if name in features:
                raise UserError(f"--frequency_threshold: field {field} ({name}) is given twice")
            features[name] = _threshold(count)
        elif default is not None:
            raise UserError(f"--frequency_threshold {text}: expected one number without a field, for all others")
        else:
            default = _threshold(part)
    return Thresholds(default or 0, features)


def _threshold(text: str) -> int:
    if not _is_natural(text):
        raise UserError(f"--frequency_threshold: expected a whole number of at least 0, found {text!r}")
    return int(text)


def _is_natural(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _natural(text: str) -> int:
    if not _is_natural(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, found {text!r}")
    return int(text)


def _negative_rate(text: str) -> float:
    """Parse a number above 0 and below 1, or 1, which keeps all."""
    try:
        return 1.0 if float(text) == 1 else rate(text)
    except ValueError:
        return rate(text)


def _positive(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError("expected a whole number of at least 1, found 0")
    return int(text)
