"""The command line of preproc.table."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from dataloading.features import VOCABULARY
from preproc.reading.files import FORMATS, FormFlags, files_of
from preproc.shared.engine_flags import FLAGS, SPARK, add_engine_flags
from preproc.shared.flag_types import rate, share, whole
from preproc.shared.into_store import Destination, folder_or_url
from preproc.table.extra_columns import ExtraColumns, OneHotList
from preproc.table.inference import Named
from preproc.table.reading import Reading
from preproc.table.side_tables import Join
from preproc.table.splits import COLUMN, FILES, KEY, ROWS, SPLITS, TIME, SplitRule
from utils.config.flags import Parser
from utils.csv_rows import BACKSLASH, DOUBLE
from utils.encoding.recipe import STANDARDISE, TRANSFORMS, UNITS
from utils.errors import UserError

NAME = "preproc.table"
ALL = "all"
FIT, ENCODE = MODES = ("fit", "encode")
_UNLABELLED = "new"  # default name of the split of rows without a label
_NAMED = ("label", "group", "weight", "categorical", "numerical", "lists", "times", "ignore", "frequency_threshold", "max_ids", "list_separator")
_OF_LISTS = ("max_hotness", "pooling", "id_weights")
_QUOTE_HELP = (
    'double: " may enclose values, and a quote inside is doubled; backslash: or has \\ before it, as any character may; none: " is ordinary text '
    "(default: double)"
)
# set by a configuration or an older dataset in place of the flags
_PLANNED = (*_NAMED, *_OF_LISTS, "training_only", "time_unit", "numerical_transform")
# flags that do not affect the dataset's bytes, or that name files, whose identities are compared instead
_READ = ("train", "valid", "test", "data", "config", "vocabulary", "join", "join_columns")  # files
NOT_OF_THE_BYTES = (*_READ, "dst", "target", "block_bytes", "resume", "overwrite", *FLAGS)


def parse_arguments(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Parse the command line; `target` is the destination of --dst. Raises UserError where flags are invalid or contradict each other."""
    parser = Parser(prog=f"python -m {NAME}", description=description)
    parser.add_argument(
        "--mode", choices=MODES, default=FIT, help="fit: make a dataset to train with; encode: encode rows without a label (default: fit)"
    )
    parser.add_argument(
        "--dst",
        type=folder_or_url,
        required=True,
        metavar="FOLDER|URL",
        help="folder of the dataset, with free space for it and for staging files; or a folder in an object store (s3://…), with --staging",
    )
    _add_files(parser)
    _add_columns(parser)
    _add_splits(parser)
    group = parser.add_argument_group("vocabularies")
    group.add_argument("--vocabulary", type=Path, metavar="DATASET", help="existing dataset whose columns, vocabularies and transforms are used")
    group.add_argument("--extend_vocabulary", action="store_true", help="append the training rows' new values to those of --vocabulary")
    group.add_argument(
        "--frequency_threshold", type=whole(0), metavar="T", help="keep values that occur T times or more in training rows (default: 0)"
    )
    group.add_argument(
        "--dictionary_days",
        choices=("train", ALL),
        default="train",
        help="rows from which vocabularies, means and boundaries are made; all leaks the test rows into them, for comparison (default: train)",
    )
    group.add_argument("--max_ids", type=whole(1), metavar="N", help="keep the N most frequent values of a column (default: all)")
    parser.add_argument(
        "--resume", action="store_true", help="continue an interrupted run of the same command, and keep completed stages if this run is interrupted"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing dataset in the folder (default: refuse)")
    add_engine_flags(parser)
    args = parser.parse_strictly(argv)
    _check(args)
    args.target = Destination.of(args)
    args.dst, args.staging, args.resume = args.target.folder, args.target.staging, args.resume and args.engine != SPARK
    return args


def _add_files(parser: Parser) -> None:
    group = parser.add_argument_group(
        "files", "CSV, JSON lines, Parquet or Arrow; text may be gzip or zstd; detected by the content; files, folders and globs, in order"
    )
    group.add_argument("--train", nargs="+", default=[], metavar="PATH", help="files of the training rows")
    group.add_argument("--valid", nargs="+", default=[], metavar="PATH", help="files of the validation rows")
    group.add_argument("--test", nargs="+", default=[], metavar="PATH", help="files of the test rows")
    group.add_argument("--data", nargs="+", default=[], metavar="PATH", help="files of rows without a label, for predictions")
    group.add_argument("--split_name", default=None, metavar="NAME", help="name of the split of --data (default: new)")
    group.add_argument("--format", choices=FORMATS, help="format of all files (default: detected by their content)")
    group.add_argument("--separator", type=_separator, metavar="TEXT", help=r"separator of values: , or \t or | or :: or \x01 (default: inferred)")
    group.add_argument("--quote", choices=(DOUBLE, BACKSLASH, "none"), help=_QUOTE_HELP)
    group.add_argument("--columns", type=_names, metavar="A,B,…", help="names of all columns of files without a header")
    group.add_argument("--data_columns", type=_names, metavar="A,B,…", help="the same for --data, if its columns differ: without the label")
    group.add_argument(
        "--join",
        nargs="+",
        action="extend",
        type=_join,
        default=[],
        metavar="PATH:KEY",
        help="side tables, such as users.csv:user_id, whose other columns are added to the rows by the key; PATH:KEY=COLUMN if the side table names "
        "it COLUMN",
    )
    group.add_argument(
        "--join_columns",
        nargs="+",
        action="extend",
        type=_join_columns,
        default=[],
        metavar="PATH:A,B,…",
        help="names of all columns of a side table without a header",
    )
    group.add_argument("--bad_lines", choices=("error", "skip"), default="error", help="stop at a bad row, or leave it out (default: error)")
    group.add_argument("--block_bytes", type=whole(1), default=16 << 20, metavar="N", help="text parsed at once, in bytes (default: %(default)s)")
    group.add_argument("--keep", type=_names, default=(), metavar="A,B,…", help="columns to keep for the predictions, in SPLIT/keys.parquet")


def _add_columns(parser: Parser) -> None:
    group = parser.add_argument_group("columns", "types of other columns are inferred; all are written to columns.yaml in the dataset")
    group.add_argument("--config", type=Path, metavar="FILE", help="columns.yaml with the use of each column, in place of the flags below")
    group.add_argument("--label", metavar="TEXT", help="column of 0 and 1, true and false, or yes and no; or a comparison: 'rating >= 4'")
    for name, text in (
        ("categorical", "columns of ids: texts, whole numbers, booleans"),
        ("numerical", "columns of numbers"),
        ("lists", "columns of several ids a row: lists, or texts with a separator"),
        ("times", "columns of times; each gives the features hour and weekday"),
        ("ignore", "columns to leave out"),
    ):
        group.add_argument(f"--{name}", type=_names, metavar="A,B,…", help=text)
    group.add_argument(
        "--list",
        nargs="+",
        action="extend",
        type=_one_hot_list,
        default=[],
        metavar="NAME=PATTERN",
        help="make a list of one-hot columns: genres=genre_*, or genres=Action,Comedy; its values are the texts matched by *, or the columns' names",
    )
    group.add_argument("--group", metavar="COLUMN", help="column whose equal values form a group of rows, for ranking metrics")
    group.add_argument("--weight", metavar="COLUMN", help="column of numbers of at least 0: how much a row counts in the loss and in the metrics")
    group.add_argument(
        "--list_separator",
        metavar="TEXT",
        help="separator of the values of a list in a text, or json for JSON lists (default: json where all of a column are, else |)",
    )
    group.add_argument(
        "--max_hotness", type=whole(1), metavar="N", help="keep the first N values of a list (default: length of the longest in training)"
    )
    group.add_argument("--pooling", choices=("sum", "mean"), help="pooling of the vectors of a list (default: sum)")
    group.add_argument(
        "--id_weights",
        type=_id_weights,
        metavar="LIST=COLUMN,…",
        help="columns with a weight for each value of a list: tags=tag_weights; read as the list is, by the same separator (default: none)",
    )
    group.add_argument(
        "--training_only",
        type=_training_only,
        metavar="COLUMN=VALUE,…",
        help="features for training only, such as a position: scores take this value of the log wherever a model is used: position=1 (default: none)",
    )
    group.add_argument("--time_format", metavar="FORM", help="strftime format of times that are not ISO 8601, such as %%y%%m%%d%%H")
    group.add_argument("--time_unit", choices=tuple(UNITS), help="unit of times that are numbers (default: inferred from their size)")
    group.add_argument("--numerical_transform", choices=TRANSFORMS, help=f"transform of numerical features (default: {STANDARDISE})")
    group.add_argument(
        "--numerical_dtype", choices=("float16", "float32"), help="dtype of numerical features; NVIDIA's reader takes only float16 (default: float32)"
    )


def _add_splits(parser: Parser) -> None:
    group = parser.add_argument_group("splits", "division of the training files' rows, if --valid or --test is not given")
    group.add_argument("--split_by", metavar="COLUMN", help="column of times: the latest rows are held out")
    group.add_argument("--split_key", metavar="COLUMN", help="column whose equal values stay in one split; a hash draws the values held out")
    group.add_argument("--split_column", metavar="COLUMN", help="column that names the split of each row: train, valid, test, or the values given")
    group.add_argument("--valid_fraction", type=share, default=0.0, metavar="X", help="share of the rows or keys for validation (default: 0)")
    group.add_argument("--test_fraction", type=share, default=0.0, metavar="X", help="share of the rows or keys for testing (default: 0)")
    group.add_argument(
        "--valid_values", type=_names, metavar="A,B,…", help="values of --split_column for validation (default: valid; none with --test_values)"
    )
    group.add_argument(
        "--test_values", type=_names, metavar="A,B,…", help="values of --split_column for testing (default: test; none with --valid_values)"
    )
    group.add_argument("--seed", type=whole(0), metavar="N", help="seed of the hashes that draw rows, keys and negatives (default: 0)")
    group.add_argument(
        "--negative_rate",
        type=rate,
        metavar="R",
        help="keep each negative of the training split with this probability, above 0 and below 1; training makes up for it (default: keep all)",
    )


def rule_of(args: argparse.Namespace) -> SplitRule:
    """Return the rule that divides the training files' rows. Raises UserError where flags contradict each other."""
    given = [flag for flag in ("split_by", "split_key", "split_column") if getattr(args, flag)]
    if len(given) > 1:
        raise UserError(f"--{given[0]} and --{given[1]}: expected only one of them")
    held_out = args.valid_fraction + args.test_fraction
    if held_out >= 1:
        raise UserError(f"--valid_fraction and --test_fraction add up to {held_out:g}, expected less than 1")
    for split in ("valid", "test"):
        if getattr(args, split) and (getattr(args, f"{split}_fraction") or getattr(args, f"{split}_values")):
            raise UserError(
                f"--{split} gives the {split} split, and --{split}_fraction or --{split}_values takes it from the training files: expected one"
            )
    if args.split_column:
        if held_out:
            raise UserError(
                "--split_column: the column says which rows are held out; --valid_fraction and --test_fraction have no effect, remove them"
            )
        values = {f"{split}_values": getattr(args, f"{split}_values") or () for split in ("valid", "test")}
        by_name = not any(values.values())
        if by_name:
            values = {f"{split}_values": () if getattr(args, split) else (split,) for split in ("valid", "test")}
        return SplitRule(COLUMN, args.split_column, **values, by_name=by_name)
    for flag in ("valid_values", "test_values"):
        if getattr(args, flag):
            raise UserError(f"--{flag} needs --split_column, the column that holds the values")
    if not held_out:
        if given:
            raise UserError(f"--{given[0]} needs --test_fraction or --valid_fraction, the share of rows to hold out")
        return SplitRule()
    by = TIME if args.split_by else KEY if args.split_key else ROWS
    fractions = {"valid_fraction": args.valid_fraction, "test_fraction": args.test_fraction}
    return SplitRule(by, args.split_by or args.split_key, **fractions, form=args.time_format if by == TIME else None, seed=args.seed or 0)


def named_of(args: argparse.Namespace) -> Named:
    """Return the columns and options of features that the flags name."""
    given = lambda **options: {name: value for name, value in options.items() if value is not None}  # noqa: E731
    ids = given(frequency_threshold=args.frequency_threshold, max_ids=args.max_ids)
    of_lists = given(separator=args.list_separator, max_hotness=args.max_hotness, pooling=args.pooling)
    of_times = given(format=args.time_format if args.times else None, unit=args.time_unit)
    not_features = tuple(name for name in (args.split_by, args.split_column) if name)
    columns = (args.categorical or (), args.numerical or (), args.lists or (), args.times or (), args.ignore or ())
    transform = args.numerical_transform or STANDARDISE
    by_column = args.id_weights or {}, args.training_only or {}
    return Named(args.label, args.group, *columns, not_features, ids, of_lists, of_times, transform, args.weight, *by_column)


def reading_of(args: argparse.Namespace) -> Reading:
    """Return the options for reading the files."""
    form = FormFlags(args.format, args.separator, None if args.quote == "none" else args.quote or DOUBLE, args.columns)
    unlabelled = (args.split_name or _UNLABELLED) if args.data else None
    return Reading(form, args.bad_lines == "skip", args.block_bytes, args.keep, unlabelled, args.data_columns, _extra_of(args))


def _extra_of(args: argparse.Namespace) -> ExtraColumns:
    """Return the columns that flags add to rows. Raises UserError where two flags are the same, or one fits no other."""
    names = dict(args.join_columns)
    for flag, given in (("join_columns", args.join_columns), ("list", args.list), ("join", args.join)):
        found = [one[0] if flag != "join" else one for one in given]
        if twice := [one for one in found if found.count(one) > 1]:
            raise UserError(f"--{flag}: {twice[0] if flag != 'join' else ':'.join(twice[0][:2])} is given twice; expected it once")
    if unknown := [path for path in names if path not in {path for path, _, _ in args.join}]:
        raise UserError(f"--join_columns {unknown[0]}: no --join has this path; expected a path as given to --join")
    joins = []
    for path, key, side_key in args.join:
        label = f"--join {path}:{key}" + (f"={side_key}" if side_key != key else "")
        if names.get(path) and side_key not in names[path]:
            raise UserError(f"{label}: --join_columns has no {side_key}; it has {', '.join(names[path])}")
        joins.append(Join(label, tuple(files_of([path])), key, side_key, names.get(path), BACKSLASH if args.quote == BACKSLASH else DOUBLE))
    return ExtraColumns(tuple(joins), tuple(OneHotList(name, patterns) for name, patterns in args.list))


def _check(args: argparse.Namespace) -> None:
    """Raise UserError where flags contradict each other, before a file is read."""
    if args.mode == ENCODE:
        of_labelled = ("train", "valid", "test", "extend_vocabulary", "valid_fraction", "test_fraction", "split_by", "split_key", "split_column")
        for flag in (*of_labelled, "negative_rate"):
            if getattr(args, flag):
                raise UserError(f"--{flag} has no effect with --mode encode, which takes --data; remove it")
        if not args.data or args.vocabulary is None:
            raise UserError("--mode encode needs --data, the rows, and --vocabulary, the dataset that the model was trained on")
    if args.quote == BACKSLASH and args.separator == "\\":
        raise UserError("--quote backslash: the separator cannot be a backslash, too")
    for flag in ("split_name", "data_columns"):
        if getattr(args, flag) and not args.data:
            raise UserError(f"--{flag} needs --data, the files of rows without a label")
    if args.split_name and (not re.fullmatch(r"\w[\w-]*", args.split_name) or args.split_name == VOCABULARY):
        raise UserError(
            f"--split_name {args.split_name}: expected letters, digits, _ and -, and not {VOCABULARY}, which is another folder of the dataset"
        )
    if args.split_name in SPLITS:
        raise UserError(f"--split_name {args.split_name}: splits of that name have labels; choose another name")
    if args.mode == FIT and not args.train and (args.vocabulary is None or args.extend_vocabulary or not (args.test or args.valid)):
        raise UserError("--train is missing; give the files of the training rows (or --vocabulary with --test or --valid)")
    if args.negative_rate is not None and not args.train:
        raise UserError("--negative_rate needs --train, the files of the rows whose negatives are sampled")
    if args.config is not None and args.vocabulary is not None:
        raise UserError("--config and --vocabulary: the existing dataset already sets the use of each column; remove --config")
    if args.time_format and not (args.times or args.split_by):
        raise UserError("--time_format needs --times or --split_by, the columns that hold times")
    if args.extend_vocabulary and args.vocabulary is None:
        raise UserError("--extend_vocabulary needs --vocabulary, the dataset to extend")
    if args.dictionary_days == ALL and args.vocabulary is not None and not args.extend_vocabulary:
        raise UserError("--dictionary_days all: nothing is learned with --vocabulary but without --extend_vocabulary; remove the flag")
    source = "--config" if args.config is not None else "--vocabulary" if args.vocabulary is not None else None
    for flag in (*_PLANNED, *(("numerical_dtype",) if args.vocabulary is not None else ())):
        if source and getattr(args, flag) is not None:
            raise UserError(f"--{flag} and {source}: {source} already sets the use of each column; remove --{flag}, or change it there")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, each once, found {text!r}")
    return names


def _join(text: str) -> tuple[str, str, str]:
    path, _, keys = text.rpartition(":")
    key, _, side_key = keys.partition("=")
    if not path or not key or keys.endswith("=") or "/" in keys:
        raise argparse.ArgumentTypeError(f"expected PATH:KEY, such as users.csv:user_id, or PATH:KEY=COLUMN, found {text!r}")
    return path, key, side_key or key


def _join_columns(text: str) -> tuple[str, tuple[str, ...]]:
    path, _, names = text.rpartition(":")
    if not path:
        raise argparse.ArgumentTypeError(f"expected PATH:A,B,…, such as users.dat:user_id,age, found {text!r}")
    return path, _names(names)


def _one_hot_list(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, patterns = text.partition("=")
    found = _names(patterns) if patterns.strip() else ()
    if not name.strip() or not found or any(pattern.count("*") > 1 for pattern in found):
        raise argparse.ArgumentTypeError(f"expected NAME=PATTERN, such as genres=genre_*, with at most one * in a pattern, found {text!r}")
    return name.strip(), found


def _id_weights(text: str) -> dict[str, str]:
    pairs = [pair.split("=") for pair in _names(text)]
    found = {pair[0].strip(): pair[-1].strip() for pair in pairs}
    if any(len(pair) != 2 for pair in pairs) or not all((*found, *found.values())) or len(found) < len(pairs):
        raise argparse.ArgumentTypeError(f"expected LIST=COLUMN, such as tags=tag_weights, separated by commas, each list once, found {text!r}")
    if same := next((name for name, column in found.items() if name == column), None):
        raise argparse.ArgumentTypeError(f"{same}={same}: expected another column than the list's own")
    return found


def _training_only(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    found = {column.strip(): value.strip() for column, _, value in pairs}
    if not all((*found, *found.values())) or len(found) < len(pairs):
        raise argparse.ArgumentTypeError(
            f"expected COLUMN=VALUE, such as position=1, separated by commas, each column once, found {text!r}; a value with a comma, or with blanks "
            "at its ends, stands in columns.yaml (--config)"
        )
    return found


def _separator(text: str) -> str:
    found = re.sub(r"\\x([0-7][0-9a-fA-F])", lambda code: chr(int(code[1], 16)), text.replace("\\t", "\t"))
    if not found or "\n" in found or "\r" in found or found == '"':
        raise argparse.ArgumentTypeError(f"expected the text that separates values, found {text!r}")
    return found


__all__ = ["ENCODE", "FILES", "FIT", "NAME", "named_of", "parse_arguments", "reading_of", "rule_of"]
