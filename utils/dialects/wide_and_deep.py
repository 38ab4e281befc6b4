"""The flags of NVIDIA's Wide & Deep for TensorFlow 2, translated into this application's flags."""

import argparse
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from utils.config.config import OPTIONS
from utils.config.data import PARQUET, TFRECORD
from utils.config.flags import Parser
from utils.config.options import EVAL, EXPORT, PLAN, TRAIN, WIDE_AND_DEEP
from utils.config.per_feature import MULTI_HOT, ONE_HOT
from utils.errors import UserError
from utils.flag_names import Translated

TRAIN_PATTERN, EVAL_PATTERN = "/outbrain/tfrecords/train/part*", "/outbrain/tfrecords/eval/part*"
DATASET_PATH, SPEC, WIDTHS = "/outbrain/data", "feature_spec.yaml", "data/outbrain/embedding_sizes.json"  # of the current release
_MODEL_DIR, _RESULTS_DIR, _LOG = "/outbrain/checkpoints", "/results", "log.json"
_BENCHMARK_STEPS, _BENCHMARK_WARMUP = 1000, 500
_FOREVER = 2**31 - 1  # epochs, or seconds
_AFFINITIES = {  # names of the current release -> the names here, which are those of the first release
    "all": "socket",
    "unique_interleaved": "socket_unique_interleaved",
    "unique_contiguous": "socket_unique_continuous",
}
# Flags that only the current release has: with one of them, the data is not the TFRecords of the first release.
_CURRENT = ("fspec_file", "embedding_sizes_file", "combiner", "num_auc_thresholds", "disable_map_calculation")
# Defaults of this application's flags in wide_and_deep.py: the values of NVIDIA's Wide & Deep.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "interaction": WIDE_AND_DEEP,
        "top_mlp_dims": (1024,) * 5 + (1,),
        "optimizer": "rmsprop",
        "rho": 0.5,
        "epsilon_outside_root": True,
        "learning_rate": 0.00012,
        "linear_learning_rate": 0.02,
        "deep_warmup_epochs": 6.0,
        "dropout": 0.1,
        "loss_scale": "dynamic",
        "batch_size": 131072,
        "valid_batch_size": 131072,
        "epochs": 20,
        "checkpoint_every_epoch": True,
        "keep_checkpoints": 1,
        "affinity": "socket_unique_interleaved",
        "model_name": WIDE_AND_DEEP,
    }
)


class Flag(NamedTuple):
    """One of NVIDIA's flags.

    Attributes:
        help: its help text.
        default: its default value; None for a flag in `RENAMED`, which has the default of its option.
        reads: arguments of argparse's `add_argument`.
    """

    help: str
    default: Any = None
    reads: Mapping[str, Any] = MappingProxyType({})


RENAMED = {other: name for name, option in OPTIONS.items() for other in option.metadata["wide_and_deep"]}  # their name -> the name here; same values
_SWITCH: Mapping[str, Any] = {"action": "store_true"}
_WORDS: Mapping[str, Any] = {"nargs": "+"}
_COUNT: Mapping[str, Any] = {"type": int}
FLAGS = {
    "fspec_file": Flag("name of the feature specification in --dataset_path", SPEC),
    "num_auc_thresholds": Flag("thresholds of an approximate AUC; NVIDIA's default is 8000, here the AUC is exact unless this is given"),
    "disable_map_calculation": Flag("compute no MAP, like --ranking_metrics none", False, reads=_SWITCH),
    "affinity": Flag(f"as --affinity below; also the names of the current release: {', '.join(_AFFINITIES)}", "unique_interleaved"),
    "train_data_pattern": Flag("TFRecords to train on", TRAIN_PATTERN, reads=_WORDS),
    "eval_data_pattern": Flag("TFRecords to evaluate on", EVAL_PATTERN, reads=_WORDS),
    "transformed_metadata_path": Flag("no effect: the features are read from the records", "/outbrain/tfrecords"),
    "use_checkpoint": Flag("resume from the checkpoint in --model_dir, or evaluate it", False, reads=_SWITCH),
    "model_dir": Flag("folder of the checkpoints, in its subfolder checkpoint", _MODEL_DIR),
    "results_dir": Flag("folder of the log and of args.json, which holds all flags", _RESULTS_DIR),
    "log_filename": Flag("name of the log in --results_dir", _LOG),
    "training_set_size": Flag("rows per epoch; sets --steps_per_epoch; the default is the number of rows in the files", None, reads=_COUNT),
    "global_batch_size": Flag("global training batch, over all workers"),
    "eval_batch_size": Flag("global evaluation batch, over all workers"),
    "num_epochs": Flag("passes over the training data"),
    "deep_learning_rate": Flag("learning rate of the deep part"),
    "deep_hidden_units": Flag("widths of the deep part's layers", "1024 1024 1024 1024 1024", reads=_WORDS),
    "deep_dropout": Flag("fraction of the hidden units to drop in a step"),
    "evaluate": Flag("evaluate only; with --benchmark, measure the forward pass", False, reads=_SWITCH),
    "evaluation": Flag("same as --evaluate", False, reads=_SWITCH),
    "benchmark": Flag("measure training, or with --evaluate the forward pass; nothing is saved", False, reads=_SWITCH),
    "benchmark_steps": Flag("steps of --benchmark", _BENCHMARK_STEPS, reads=_COUNT),
    "benchmark_warmup_steps": Flag("first steps of --benchmark to leave out of the measurement", _BENCHMARK_WARMUP, reads=_COUNT),
}


def flags_help() -> str:
    """Return the help text of NVIDIA's flags, for `--help`."""
    lines = []
    for name, flag in FLAGS.items():
        here = RENAMED.get(name)
        value = DEFAULTS.get(here, flag.default)
        default = f" (default: {value})" if value not in (None, False) else ""
        lines.append(f"  --{name:<27} {flag.help}{default}{f'; --{here} here' if here else ''}")
    return "NVIDIA's flags:\n" + "\n".join(lines)


def translated(arguments: Sequence[str]) -> Translated:
    """Translate a command line of NVIDIA's and this application's flags into the latter, with a line for each flag without effect.

    Raises:
        UserError: a value is invalid, or two flags mean the same or contradict each other.
    """
    if {"-h", "--help"} & set(arguments):
        return Translated(["--help"], [])
    parser = Parser(prog="", add_help=False)
    for name, flag in FLAGS.items():
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS, **flag.reads)
    found, rest = parser.parse_known_args(list(arguments))
    given, others = vars(found), {word.lstrip("-").partition("=")[0] for word in rest if word.startswith("-")}
    words, notes = _renamed(given, others)
    benchmark, evaluate = given.get("benchmark", False), given.get("evaluate", False) or given.get("evaluation", False)
    words += _measured(given, evaluate) if benchmark else _not_measured(given)
    words += _implied(others, "mode", EVAL) if evaluate and not benchmark else []
    mode = _value([*words, *rest], "mode") or TRAIN
    if given.get("disable_map_calculation") and mode in (TRAIN, EVAL):
        words += _implied(others, "ranking_metrics", "none")
    words = _data(given, others, rest, mode) + words
    words += _checkpoints(given, others, mode, benchmark)
    folder, goes_on = _folder(given), given.get("use_checkpoint", False)
    if goes_on and mode == PLAN:
        notes.append("--use_checkpoint has no effect with --mode plan")
    if goes_on and mode == TRAIN and not any(folder.glob("step-*")):
        notes.append(f"--use_checkpoint: there is no checkpoint in {folder}; a new run starts")
    results = Path(given.get("results_dir", _RESULTS_DIR))
    if "log_path" not in others:
        words += ["--log_path", str(results / given.get("log_filename", _LOG))]
        words += ["--args_path", str(results / "args.json")] if "args_path" not in others and mode not in (PLAN, EXPORT) else []
    elif {"results_dir", "log_filename"} & set(given):
        raise UserError("--log_path and --results_dir or --log_filename set the same option; drop one of them")
    return Translated([*words, *rest], notes, _names(given, others, mode))


def _names(given: Mapping[str, Any], others: set[str], mode: str) -> dict[str, str]:
    """Map this application's flags to NVIDIA's flags that they were translated from, or whose defaults they are, for messages."""
    names = {here: name for name, here in RENAMED.items() if name in given}
    names |= {"log_path": "results_dir", "args_path": "results_dir"} if "log_path" not in others else {}
    benchmark, evaluation = given.get("benchmark", False), next((name for name in ("evaluate", "evaluation") if name in given), None)
    if mode == TRAIN and not benchmark:
        names |= {"save_checkpoint_path": "model_dir"}  # --restore_checkpoint_path keeps its name: it is another folder, with initial weights
    else:
        names |= {"restore_checkpoint_path": "model_dir" if given.get("use_checkpoint") else "use_checkpoint"}
        names |= {} if benchmark else {"save_checkpoint_path": "model_dir"}
    names |= {"resume auto": "use_checkpoint"} if "resume" not in others else {}
    names |= {"top_mlp_dims": "deep_hidden_units"} if "deep_hidden_units" in given else {}
    names |= {"ranking_metrics none": "disable_map_calculation"} if "disable_map_calculation" in given else {}
    names |= {"mode eval": evaluation} if evaluation and not benchmark else {}
    if benchmark:
        names |= {"max_steps": "benchmark_steps", "inference_benchmark_steps": "benchmark_steps"}
    return {here: name for here, name in names.items() if here not in others}


def _renamed(given: Mapping[str, Any], others: set[str]) -> tuple[list[str], list[str]]:
    words, notes = [], []
    for name, value in given.items():
        if here := RENAMED.get(name):
            if here in others:
                raise UserError(f"--{name} and --{here} set the same option; drop one of them")
            if name == "num_epochs" and given.get("benchmark"):
                if not value.isdigit() or not int(value):
                    raise UserError(f"--num_epochs {value}: expected a whole number of at least 1")
                notes.append(f"--num_epochs {value} has no effect with --benchmark, which takes --benchmark_steps steps")
                continue
            words += [f"--{here}", value]
    if "deep_hidden_units" in given:
        units = [unit for word in given["deep_hidden_units"] for unit in word.split()]
        if not units or not all(unit.isdigit() and int(unit) for unit in units):
            raise UserError(f"--deep_hidden_units {' '.join(units)}: expected positive layer widths separated by blanks")
        words += _implied(others, "top_mlp_dims", ",".join([*units, "1"]))
    if "affinity" in given:
        words += ["--affinity", _AFFINITIES.get(given["affinity"], given["affinity"])]
    if "transformed_metadata_path" in given:
        notes.append("--transformed_metadata_path has no effect: the features are read from the records")
    return words, notes


def _data(given: Mapping[str, Any], others: set[str], rest: Sequence[str], mode: str) -> list[str]:
    """Return the flags of the data: where neither a dataset nor its type is named, that of the release whose flags are given; none for an export."""
    words = []
    patterns = {"train_data_pattern", "eval_data_pattern"} & set(given)
    if patterns and "dataset_path" in others:
        raise UserError(f"--{min(patterns)} and --dataset_path exclude each other: TFRecords, or a dataset of another type; drop one of them")
    current = [name for name in _CURRENT if name in given or name in others]
    if patterns and (files := [name for name in ("fspec_file", "embedding_sizes_file") if name in current]):
        raise UserError(f"--{min(patterns)} and --{files[0]} exclude each other: TFRecords, or Parquet files in --dataset_path; drop one of them")
    unnamed = mode != EXPORT and not {"dataset_path", "dataset_type", "feature_spec", "config"} & others
    if not patterns and unnamed and (current or (_is_file(Path(DATASET_PATH, SPEC)) and not Path(TRAIN_PATTERN).parent.exists())):
        words += ["--dataset_path", DATASET_PATH, "--dataset_type", PARQUET]
    elif patterns or unnamed:
        for name, usual in (("train_data_pattern", TRAIN_PATTERN), ("eval_data_pattern", EVAL_PATTERN)):
            words += [f"--{name}", ",".join(given.get(name, [usual]))]
        words += [] if "dataset_type" in others else ["--dataset_type", TFRECORD]
    elif "dataset_type" not in others and (folder := _value(rest, "dataset_path")):
        name = given.get("fspec_file") or _value(rest, "feature_spec") or SPEC
        words += ["--dataset_type", PARQUET] if _lists_parquet(Path(folder, name)) else []
    reads_parquet = _value([*words, *rest], "dataset_type") == PARQUET
    if reads_parquet and not {"embedding_sizes_file", "embedding_dim", "config"} & others and _is_file(Path(WIDTHS)):
        words += ["--embedding_sizes_file", WIDTHS]
    return words + _epoch(given, others)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # unlike Path.is_file, returns False for a name that is too long


def _lists_parquet(path: Path) -> bool:
    """Return whether a file is a feature specification of the current release; the reader of the dataset reports a file that cannot be read."""
    from utils.yaml_file import load_yaml  # imported only where a dataset is given

    try:
        content = load_yaml(path) if _is_file(path) else None
    except UserError:
        return False
    content = content if isinstance(content, dict) else {}
    channels, sources = content.get("channel_spec"), content.get("source_spec")
    if isinstance(channels, dict) and {ONE_HOT, MULTI_HOT} & set(channels):
        return True
    splits = sources.values() if isinstance(sources, dict) else ()
    chunks = [chunk for split in splits if isinstance(split, list) for chunk in split]
    return bool(chunks) and all(isinstance(chunk, dict) and chunk.get("type") == PARQUET for chunk in chunks)


def _epoch(given: Mapping[str, Any], others: set[str]) -> list[str]:
    """Return the flags of the length of an epoch."""
    words: list[str] = []
    if "training_set_size" in given:
        size, batch = given["training_set_size"], _number(given.get("global_batch_size"), DEFAULTS["batch_size"])
        if "batch_size" in others:
            raise UserError(
                "--training_set_size and --batch_size exclude each other; give --global_batch_size in place of --batch_size, or --steps_per_epoch"
            )
        if size < batch:
            raise UserError(f"--training_set_size {size}: expected at least --global_batch_size {batch}, one step per epoch")
        words += _implied(others, "steps_per_epoch", str(size // batch))
    return words


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() and int(text) else default  # the flag's own check reports any other text


def _measured(given: Mapping[str, Any], evaluate: bool) -> list[str]:
    steps, warmup = given.get("benchmark_steps", _BENCHMARK_STEPS), given.get("benchmark_warmup_steps", _BENCHMARK_WARMUP)
    if not 0 <= warmup < steps:
        raise UserError(f"--benchmark_warmup_steps {warmup}: expected 0 or more, and less than --benchmark_steps {steps}")
    warmup = max(warmup, 1)
    if evaluate:
        seconds = ["--inference_seconds", str(_FOREVER)]
        limits = ["--benchmark_warmup_steps", str(warmup), "--inference_benchmark_steps", str(max(steps - warmup, 1)), *seconds]
        return ["--mode", "inference", *limits, "--log_steps"]
    limits = ["--max_steps", str(steps), "--epochs", str(_FOREVER), "--benchmark_warmup_steps", str(warmup)]
    return [*limits, "--evals_per_epoch", "0", "--log_steps"]


def _not_measured(given: Mapping[str, Any]) -> list[str]:
    if "benchmark_steps" in given:
        raise UserError("--benchmark_steps needs --benchmark")
    return ["--benchmark_warmup_steps", str(given["benchmark_warmup_steps"])] if "benchmark_warmup_steps" in given else []


def _value(words: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag on a command line of this application; the last one counts. None where it is not given."""
    found = None
    for word, following in itertools.pairwise([*words, ""]):
        name, _, value = word.partition("=")
        found = (value or following) if name == f"--{flag}" else found
    return found


def _folder(given: Mapping[str, Any]) -> Path:
    return Path(given.get("model_dir", _MODEL_DIR)) / "checkpoint"


def _checkpoints(given: Mapping[str, Any], others: set[str], mode: str, benchmark: bool) -> list[str]:
    folder, goes_on = str(_folder(given)), given.get("use_checkpoint", False)
    for name in sorted({"save_checkpoint_path", "restore_checkpoint_path"} & others):
        restores = name == "restore_checkpoint_path"
        begins = restores and mode == TRAIN and not benchmark  # training starts from those weights and saves to --model_dir
        if ("model_dir" in given and not begins) or (goes_on and restores):
            raise UserError(f"--{'model_dir' if 'model_dir' in given else 'use_checkpoint'} and --{name} set the same option; drop one of them")
    if mode == EVAL and not goes_on and "restore_checkpoint_path" not in others:
        raise UserError("--evaluate needs a trained model: --use_checkpoint evaluates the one in --model_dir")
    if mode == TRAIN and not benchmark:
        words = [] if "save_checkpoint_path" in others else ["--save_checkpoint_path", folder]
        return words + (_implied(others, "resume", "auto") if goes_on else [])
    restored = ["--restore_checkpoint_path", folder] if goes_on and mode != PLAN else []
    return restored + (["--resume", "weights"] if restored and mode == TRAIN else [])


def _implied(others: set[str], name: str, value: str) -> list[str]:
    if name in others:
        raise UserError(f"--{name}: another flag sets it to {value}; drop --{name}")
    return [f"--{name}", value]
