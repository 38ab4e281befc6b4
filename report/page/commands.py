"""Commands to type next, with a run's own paths."""

import shlex
from typing import Any

from report.log.record import Record

CHECKPOINTS, DATASET = "CHECKPOINTS", "DATASET"  # in place of a path that the log does not tell
PREDICTIONS = "predictions.parquet"


def checkpoint_of(record: Record) -> str:
    """Return the run's checkpoint: the folder that it wrote to, else the one that it restored."""
    flags = record.parameters
    return str(flags.get("save_checkpoint_path") or record.about.get("restored") or flags.get("restore_checkpoint_path") or CHECKPOINTS)


def dataset_of(record: Record) -> str:
    """Return the folder of the run's dataset; a stand-in where TFRecords were given by patterns."""
    return DATASET if _patterns(record) else str(record.about.get("dataset") or record.parameters.get("dataset_path") or DATASET)


def program_command(record: Record, *words: Any, dataset: bool = True) -> str:
    """Return a command of the run's program, with its dataset and device."""
    program = str(record.about.get("program") or "dlrm.py")
    spec = record.parameters.get("feature_spec")
    named = ["--feature_spec", spec] if dataset and spec not in (None, "feature_spec.yaml") else []
    where = [*(_patterns(record) or ("--dataset_path", dataset_of(record))), *named] if dataset else []
    cpu = ["--cpu"] if record.about.get("device") == "CPU" else []
    return typed("python", program, *where, *cpu, *words)


def _patterns(record: Record) -> list[str]:
    """Return the flags of TFRecords that are given by patterns."""
    flags = record.parameters
    given = [(name, [str(one) for one in flags[name]]) for name in ("train_data_pattern", "eval_data_pattern") if isinstance(flags.get(name), list)]
    found = [word for name, patterns in given if patterns for word in (f"--{name}", ",".join(patterns))]
    return ["--dataset_type", "tfrecord", *found] if found else []


def mode_command(record: Record, mode: str, *words: Any) -> str:
    """Return a command that does something with the run's checkpoint."""
    return program_command(record, "--mode", mode, "--restore_checkpoint_path", checkpoint_of(record), *words)


def resume_command(record: Record) -> str:
    """Return the command that resumes the run."""
    folder = checkpoint_of(record)
    return program_command(record, "--restore_checkpoint_path", folder, "--save_checkpoint_path", folder)


def report_command(record: Record, *words: Any) -> str:
    """Return a command that makes this run's report."""
    return typed("python", "-m", "report", record.span.path.absolute(), "-o", "report.html", *words)


def typed(*words: Any) -> str:
    """Join words to a command for a shell."""
    return " ".join(shlex.quote(str(word)) for word in words)
