"""Criteo logs to a dataset in NVIDIA's steps: dictionaries of some days, then the rows of some days by these dictionaries, split by split.

    spark-submit preproc/spark_data_utils.py --mode generate_models --days 0-23 --input_folder RAW --model_folder OUT/models --frequency_limit 15
    spark-submit preproc/spark_data_utils.py --mode transform --days 0-22 --input_folder RAW --model_folder OUT/models --output_folder OUT/train
    spark-submit preproc/spark_data_utils.py --mode transform --days 23-23 --input_folder HALF --model_folder OUT/models --output_folder OUT/test \\
        --output_ordering input

The output folder is named train, test or validation, and its parent becomes a dataset with this split: `--dataset_path OUT` of dlrm.py. In place of
Parquet files the output folder has those of tf_raw. NVIDIA's values follow from the flags: --frequency_limit is --frequency_threshold of
preproc.criteo, which does the work.
"""

import argparse
import filecmp
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dataloading.feature_spec import DEFAULT_FILE_NAME, SPLITS, FeatureSpec
from dataloading.features import VOCABULARY
from preproc.criteo import command
from preproc.criteo.clicklog import LogForm
from preproc.criteo.known_vocabulary import known_vocabularies
from preproc.criteo.options import NAME, parse
from preproc.criteo.row_order import INPUT, ORDERINGS
from preproc.shared.engine_flags import FLAGS as ENGINE_FLAGS
from preproc.shared.engine_flags import SPARK, add_engine_flags
from utils.checkpoint.durable import write_text
from utils.config.flags import Parser
from utils.errors import UserError
from utils.flag_names import spoken
from utils.scratch import Scratch

PROGRAM = "spark_data_utils.py"
GENERATE, TRANSFORM = MODES = ("generate_models", "transform")
_FOLDERS = {"train": "train", "test": "test", "validation": "valid", "valid": "valid", "val": "valid"}  # name of --output_folder -> split
_OVERWRITE, _REFUSE = "overwrite", "errorifexists"
_FIRST_FIELD = 14  # of the categorical values, as in the keys of the file of sizes
# Flags without effect here, and the reasons.
_IGNORED = {
    "low_mem": "memory does not grow with the dictionaries",
    "dict_build_shuffle_parallel_per_day": "the tasks follow from the cores",
    "apply_shuffle_parallel_per_day": "the tasks follow from the cores",
    "skew_broadcast_pct": "ids are looked up, not joined",
    "debug_mode": "--spark_log has Spark's own log",
    "output_partitioning": "a column of a split is one file",
}
_NAMES = {
    "vocabulary": "model_folder",
    "frequency_threshold": "frequency_limit",
    "dst": "output_folder",
    "overwrite": "write_mode overwrite",
    "train": "input_folder",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    Raises:
        UserError: a flag is wrong, a log or the dictionaries are missing or damaged, or the output exists.
    """
    given = _parser().parse_strictly(sys.argv[1:] if argv is None else argv)
    logs = _logs(given)
    _warn_of_flags(given)
    try:
        return (_generate if given.mode == GENERATE else _transform)(given, logs)
    except UserError as error:
        error.args = (spoken(str(error), _NAMES | ({"dst": "model_folder"} if given.mode == GENERATE else {})),)
        raise


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, description=__doc__)
    add = parser.add_argument
    add("--mode", choices=MODES, required=True, help="make the dictionaries, or give rows the ids of their values")
    add("--days", type=_days, required=True, metavar="A-B", help="the days to read, day_A to day_B")
    add("--input_folder", type=Path, required=True, help="folder of the logs day_N; each may end in .gz, .zst or .tsv")
    add("--model_folder", type=Path, required=True, help="folder of the dictionaries")
    add("--output_folder", type=Path, help=f"folder of the rows: DATASET/{{{','.join(_FOLDERS)}}}")
    add("--model_size_file", type=Path, help="JSON file for the greatest id of each categorical feature")
    add("--write_mode", choices=(_OVERWRITE, _REFUSE), default=_REFUSE, help="replace an existing output, or refuse (default: %(default)s)")
    add("--frequency_limit", default="0", metavar="T|FIELD:T,…,T", help="give values that occur fewer than T times the id 0 (default: keep all)")
    add("--no_numeric_log_col", action="store_true", help="leave the integers as they are; to be given in both modes")
    add("--output_ordering", choices=(*ORDERINGS, "any"), default="total_random", help="order of the rows (default: %(default)s)")
    for name, reason in _IGNORED.items():
        add(f"--{name}", **({"action": "store_true"} if name in ("low_mem", "debug_mode") else {}), help=f"no effect: {reason}")
    add_engine_flags(parser)
    parser.set_defaults(engine=SPARK)
    return parser


def _days(text: str) -> range:
    found = re.fullmatch(r"([0-9]{1,4})-([0-9]{1,4})", text)
    if not found or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"expected the first and the last day, such as 0-22, found {text!r}")
    return range(int(found[1]), int(found[2]) + 1)


def _logs(given: argparse.Namespace) -> list[Path]:
    """Return the logs of the days. Raises UserError for a day without a file."""
    if given.mode == TRANSFORM and given.output_folder is None:
        raise UserError("--output_folder is missing; give DATASET/train, DATASET/test or DATASET/validation")
    if not given.input_folder.is_dir():
        raise UserError(f"--input_folder {given.input_folder}: no such folder; expected the logs, day_{given.days[0]} to day_{given.days[-1]}")
    logs = []
    for day in given.days:
        paths = [given.input_folder / f"day_{day}{end}" for end in ("", ".gz", ".zst", ".tsv")]
        if (path := next(filter(Path.is_file, paths), None)) is None:
            asked = f"--days {given.days[0]}-{given.days[-1]}"
            raise UserError(f"{paths[0]}: no such file (also with .gz, .zst or .tsv); expected a log for each of {asked}")
        logs.append(path)
    return logs


def _warn_of_flags(given: argparse.Namespace) -> None:
    lines = [f"--{name} has no effect: {reason}" for name, reason in _IGNORED.items() if getattr(given, name)]
    if given.mode == TRANSFORM and given.frequency_limit != "0":
        lines.append(f"--frequency_limit has no effect with --mode {TRANSFORM}: the dictionaries decide")
    if given.mode == GENERATE and given.output_folder is not None:
        lines.append(f"--output_folder has no effect with --mode {GENERATE}: no rows are written")
    for line in lines:
        print(f"{PROGRAM}: warning: {line}", file=sys.stderr)


def _words(given: argparse.Namespace) -> list[str]:
    """Return the flags of preproc.criteo that both modes have."""
    words = ["--bad_lines", "skip"]
    for flag in ENGINE_FLAGS:
        value = getattr(given, flag)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            words += [f"--{flag}", str(one)]
    return words


def _generate(given: argparse.Namespace, logs: list[Path]) -> int:
    """Write the dictionaries: a dataset of vocabularies without rows."""
    days = list(map(str, logs))
    words = ["--train", *days, "--test", days[-1], "--dst", str(given.model_folder), "--frequency_threshold", given.frequency_limit]
    words += ["--numerical_transform", "none"] if given.no_numeric_log_col else []
    words += ["--overwrite"] if given.write_mode == _OVERWRITE else []
    options = parse([*words, *_words(given)], "")
    summary = command.run(replace(options, logs={"train": options.logs["train"]}, only_dictionaries=True))
    _write_sizes(given, FeatureSpec.from_yaml(given.model_folder / DEFAULT_FILE_NAME))
    print(f"{given.model_folder}: dictionaries of {summary.removeprefix('train ')}")
    return 0


def _transform(given: argparse.Namespace, logs: list[Path]) -> int:
    """Write the rows of a split, and the specification of the dataset beside them."""
    output, models = given.output_folder.absolute(), given.model_folder
    if output.name not in _FOLDERS:
        raise UserError(
            f"--output_folder {given.output_folder}: expected a folder named {', '.join(_FOLDERS)}, a split of the dataset in its parent; "
            f"python -m {NAME} --vocabulary {models} writes others"
        )
    if given.write_mode == _REFUSE and (output.is_file() or (output.is_dir() and any(output.iterdir()))):
        raise UserError(f"--output_folder {given.output_folder}: exists; choose another one, or give --write_mode overwrite")
    spec = _dictionaries(models, given.no_numeric_log_col)
    before = _dataset(output.parent, models, spec, given.write_mode == _OVERWRITE)
    scratch = Scratch(output.parent, "writing")
    try:
        made = scratch.folder / "dataset"
        ordering = INPUT if given.output_ordering == "any" else given.output_ordering
        words = ["--vocabulary", str(models), "--train", *map(str, logs), "--output_ordering", ordering, "--dst", str(made)]
        summary = command.run(parse([*words, *_words(given)], ""))
        _put(FeatureSpec.from_yaml(made / DEFAULT_FILE_NAME), before, output)
    finally:
        scratch.remove()
    _write_sizes(given, spec)
    print(f"{given.output_folder}: {summary.removeprefix('train ')}; split {_FOLDERS[output.name]} of {given.output_folder.parent}")
    return 0


def _dictionaries(folder: Path, plain_numbers: bool) -> FeatureSpec:
    """Return the specification of the dictionaries. Raises UserError where there are none that this command made, or the transforms differ."""
    if not (folder / DEFAULT_FILE_NAME).is_file():
        raise UserError(f"--model_folder {folder}: holds no dictionaries of this command; make them with --mode {GENERATE}")
    known = known_vocabularies(folder, LogForm().categorical)
    if plain_numbers != (known.numerical_transform == "none"):
        raise UserError(
            f"--model_folder {folder}: was made {'without' if plain_numbers else 'with'} --no_numeric_log_col; give the flag in both modes or in none"
        )
    return known.spec


def _dataset(folder: Path, models: Path, spec: FeatureSpec, overwrite: bool) -> FeatureSpec | None:
    """Return the specification of the dataset that the split is added to; None where it is the first split by these dictionaries."""
    if not (folder / DEFAULT_FILE_NAME).is_file():
        return None
    before = FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME)
    pairs = [(models / VOCABULARY / f"{name}.parquet", folder / VOCABULARY / f"{name}.parquet") for name in LogForm().categorical]
    if before.cardinalities == spec.cardinalities and all(other.is_file() and filecmp.cmp(one, other, False) for one, other in pairs):
        return before
    if not overwrite:
        raise UserError(f"{folder}: holds a dataset of other dictionaries than --model_folder {models}; choose another --output_folder, or remove it")
    said = "its other splits were made with other dictionaries, and leave the dataset; make them again"
    print(f"{PROGRAM}: warning: {folder}: {said}", file=sys.stderr)
    return None


def _put(made: FeatureSpec, before: FeatureSpec | None, output: Path) -> None:
    """Move the rows in place, and write the specification of the dataset with the new split, last."""
    split, folder, own = _FOLDERS[output.name], output.parent, dict(made.metadata)
    about, order = own.pop("train"), own.pop("output_ordering", None)
    chunks = tuple(replace(chunk, files=tuple(f"{output.name}/{Path(file).name}" for file in chunk.files)) for chunk in made.sources["train"])
    sources, kept = {**(before.sources if before else {}), split: chunks}, dict(before.metadata) if before else {}
    orders = {name: value for name, value in kept.pop("output_ordering", {}).items() if name not in (split, "seed")}
    orders |= {split: order["train"]} if order else {}
    metadata: dict[str, Any] = {**own, **kept, split: about, **({"output_ordering": {**orders, "seed": 0}} if orders else {})}
    spec = replace(made, sources={name: sources[name] for name in SPLITS if name in sources}, metadata=metadata)
    if before is None:
        (folder / DEFAULT_FILE_NAME).unlink(missing_ok=True)
        shutil.rmtree(folder / VOCABULARY, ignore_errors=True)
        (made.base_directory / VOCABULARY).rename(folder / VOCABULARY)
    if output.is_dir():
        shutil.rmtree(output)
    (made.base_directory / "train").rename(output)
    write_text(folder / DEFAULT_FILE_NAME, spec.to_yaml())


def _write_sizes(given: argparse.Namespace, spec: FeatureSpec) -> None:
    if given.model_size_file is None:
        return
    sizes = {f"_c{number}": cardinality - 1 for number, cardinality in enumerate(spec.cardinalities, _FIRST_FIELD)}
    given.model_size_file.parent.mkdir(parents=True, exist_ok=True)
    write_text(given.model_size_file, json.dumps(sizes) + "\n")
