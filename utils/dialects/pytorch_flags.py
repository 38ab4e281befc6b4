"""Flags of NVIDIA's DLRM for PyTorch: accepted and translated, each with a line that names its equivalent here."""

import math
from collections.abc import Collection, Sequence

from utils.config.config import OPTIONS
from utils.config.flags import FALSE, TRUE
from utils.errors import UserError

# Flags of NVIDIA's application that do not change the result here: accepted with a warning.
LEGACY = {
    "use_mde_embeddings": "there is one embedding implementation",
    "concat_embedding": "lookups are fused where that is faster",
    "tfdata_debug": "the input pipeline does not use tf.data",
    "row_slice_threshold": "tables are cut by columns (--column_slice_threshold), not by rows",
    "data_parallel_input": "every worker reads the ids that its tables need",
}
RENAMED = {other: name for name, option in OPTIONS.items() for other in option.metadata["pytorch"]}  # their name -> the name here; same values
# Flags with the same name and other values: their value -> the value here.
VALUES = {
    "mode": {"test": "eval", "inference_benchmark": "inference"},
    "interaction": {"dot_tensorflow": "dot", "dot_custom_cuda": "dot"},
    "dataset_type": {"synthetic_gpu": "synthetic", "synthetic_disk": "synthetic", "parametric": "tf_raw"},
}
# Types of datasets that are transcribed first, and the reader of each. NVIDIA's help names memmap, and its program never took it.
_TRANSCRIBED = {"binary": "binary", "memmap": "binary"}
_DISK_FOLDER = "/tmp/dlrm_sythetic_dataset"  # NVIDIA's default of --synthetic_dataset_dir, spelt so
# Flags whose values translate to other flags here; None where the value is the default behaviour.
SWITCHES: dict[str, dict[str, tuple[str, ...] | None]] = {
    "hash_indices": {"true": ("--out_of_range", "hash"), "false": None},
    "freeze_embeddings": {"true": ("--embedding_trainable", "false"), "false": None},
    "Adam_embedding_optimizer": {"true": ("--embedding_optimizer", "adam"), "false": None},
    "freeze_mlps": {"false": None},
    "Adam_MLP_optimizer": {"true": ("--optimizer", "adam"), "false": None},
    "interaction_op": {"dot": None, "cuda_dot": None, "cat": ("--interaction", "cat")},
    "fp16": {"true": ("--amp",), "false": ("--noamp",)},
    "synthetic_dataset": {"true": ("--dataset_type", "synthetic"), "false": None},
    "self_interaction": {"false": None},
    "base_device": {"cpu": ("--cpu",), "cuda": None},
}
# Flags without effect here, and the reason.
IGNORED = {
    "embedding_type": "there is one embedding implementation",
    "optimized_mlp": "there is one MLP implementation",
    "cuda_graphs": "--xla compiles the dense layers",
    "auc_device": "the AUC is computed on the host",
    "backend": "Horovod chooses",
    "output_dir": "checkpoints go to --save_checkpoint_path",
    "bottom_features_ordered": "checkpoints do not depend on the devices",
}
_BOOLEAN = {"shuffle", "hash_indices", "freeze_embeddings", "Adam_embedding_optimizer", "Adam_MLP_optimizer"} | {
    "optimized_mlp",
    "cuda_graphs",
    "bottom_features_ordered",
    "freeze_mlps",
    "fp16",
    "synthetic_dataset",
    "self_interaction",
}
_ENTRIES, _DEFAULT_ENTRIES, _BATCH = "synthetic_dataset_num_entries", 33554432, 65536
KNOWN = {*RENAMED, *SWITCHES, *IGNORED, _ENTRIES}


def translated(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Translate a command line into this application's flags, with a line for each flag that was translated.

    Raises:
        UserError: a flag asks for a feature that does not exist here, is given together with its equivalent, or lacks its value.
    """
    words, notes, meant = [], [], {}
    given = {word.lstrip("-").split("=")[0] for word in arguments if word.startswith("-")}
    left = list(arguments)
    while left:
        word = left.pop(0)
        name, is_set, value = _split(word)
        if name in VALUES:
            if not is_set and not left:
                words.append(word)
                continue
            value = value if is_set else left.pop(0)
            found, note = _valued(name, value, given, arguments)
            words += found
            notes += [note] if note else []
            continue
        if name not in KNOWN:
            words.append(word)
            continue
        if not is_set and name not in _BOOLEAN:
            if not left:
                raise UserError(f"--{name}: expected a value")
            value = left.pop(0)
        elif not is_set and left and left[0].lower() in TRUE + FALSE:
            value = left.pop(0)
        found, note = _here(name, value, arguments)
        for flag in (other.lstrip("-") for other in found if other.startswith("--")):
            if flag in given or meant.get(flag, name) != name:  # of one flag given twice the last counts
                raise UserError(f"--{name} and --{meant.get(flag, flag)} set the same option; drop one of them")
            meant[flag] = name
        words += found
        notes.append(note)
    if meant.get("optimizer") == "Adam_MLP_optimizer" and not {"embedding_optimizer"} & (given | set(meant)):
        words += ["--embedding_optimizer", "sgd"]  # NVIDIA's default for the tables; here they would follow --optimizer
    return words, notes


def _split(word: str) -> tuple[str, bool, str]:
    """Return a flag's name, whether the word includes a value, and that value; `-shuffle`, `--noshuffle` and `--shuffle=true` are one flag."""
    name, equals, value = word.lstrip("-").partition("=") if word.startswith("-") else ("", "", "")
    if name.startswith("no") and name[2:] in _BOOLEAN and not equals:
        return name[2:], True, "false"
    return name, bool(equals), value if equals else "true"


def _here(name: str, value: str, arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return the flags here that are equivalent to a flag, and the line about it."""
    if name in RENAMED:
        return [f"--{RENAMED[name]}", value], f"--{name} is --{RENAMED[name]} here"
    if name == "self_interaction" and value.lower() in TRUE:
        raise UserError("--self_interaction is not supported: the interaction takes pairs of different vectors")
    if name == "freeze_mlps" and value.lower() in TRUE:
        raise UserError("--freeze_mlps is not supported; --embedding_trainable false freezes the tables")
    if name in IGNORED:
        return [], f"--{name} has no effect: {IGNORED[name]}"
    if name == _ENTRIES:
        if not value.isdigit() or not int(value):
            raise UserError(f"--{name} {value}: expected a positive number of samples")
        batches = str(math.ceil(int(value) / _size_of(("batch_size",), arguments)))
        return ["--synthetic_dataset_train_batches", batches], f"--{name} {value} is --synthetic_dataset_train_batches {batches} here"
    if name in _BOOLEAN:
        value = "true" if value.lower() in TRUE else "false" if value.lower() in FALSE else value
    if value not in SWITCHES[name]:
        raise UserError(f"--{name} {value}: expected {' or '.join(SWITCHES[name])}")
    found = SWITCHES[name][value]
    return list(found or ()), f"--{name} {value} is {' '.join(found) if found else 'the default'} here"


def _valued(name: str, value: str, given: Collection[str], arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return the flags here for a flag of the same name whose values differ, and the line about it, empty where nothing differs."""
    if name == "dataset_type" and value in _TRANSCRIBED:
        folder = _value_of(("dataset", "dataset_path"), arguments) or "FOLDER"
        command = f"python -m dataloading.transcribe --src_dataset_type {_TRANSCRIBED[value]} --src_dataset_path {folder} --dst_dataset_path DATASET"
        raise UserError(f"--dataset_type {value} is not read directly; make a dataset of it with {command}, then train with --dataset_path DATASET")
    words = [f"--{name}", VALUES[name].get(value, value)]
    if value == "synthetic_disk":
        words += _on_disk(given, arguments)
    last = _value_of(("mode",), arguments)  # of a flag given twice the last counts
    if (name, value, last) == ("mode", "test", "test") and not {"load_checkpoint_path", "restore_checkpoint_path"} & set(given):
        words.append("--untrained")  # NVIDIA's program evaluates the model that it has initialised
    return words, f"--{name} {value} is {' '.join(words)} here" if words[1:] != [value] else ""


def _on_disk(given: Collection[str], arguments: Sequence[str]) -> list[str]:
    """Return the flags for NVIDIA's defaults of a synthetic dataset on disk: its folder, and as many rows to train on as to evaluate."""
    entries = _value_of((_ENTRIES,), arguments)
    rows = int(entries) if entries.isdigit() and int(entries) else _DEFAULT_ENTRIES
    words = [] if "synthetic_dataset_dir" in given else ["--synthetic_dataset_dir", _DISK_FOLDER]
    for name, sizes in (("train", ("batch_size",)), ("valid", ("test_batch_size", "valid_batch_size"))):
        flag = f"synthetic_dataset_{name}_batches"
        if flag not in given and not (name == "train" and entries):  # --synthetic_dataset_num_entries itself sets the training batches
            words += [f"--{flag}", str(math.ceil(rows / _size_of(sizes, arguments)))]
    return words


def _value_of(names: Collection[str], arguments: Sequence[str]) -> str:
    """Return the last value of a flag on the command line, empty if it is not given; `--name=value` and `--name value` are the same."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    found = [words[i + 1] for i, word in enumerate(words[:-1]) if word.lstrip("-") in names and word.startswith("-")]
    return found[-1] if found else ""


def _size_of(names: Collection[str], arguments: Sequence[str]) -> int:
    size = _value_of(names, arguments)
    return int(size) if size.isdigit() and int(size) else _BATCH
