"""The log of a run: a file, or the one that a folder of checkpoints names."""

import re
from collections.abc import Iterator
from pathlib import Path

from report.log.runs import RunSpan, runs_of
from utils.checkpoint import manifest
from utils.checkpoint.folder import complete_steps, pointed
from utils.errors import UserError

_DEFAULT_LOG = "dlrm_tf_log.json"
MOST_RUNS = 20


def find(argument: str) -> list[RunSpan]:
    """Return the runs that an argument of the command names: those of a log, or the one that wrote a folder of checkpoints.

    Raises:
        UserError: there is no log there, or it cannot be read.
    """
    path = Path(argument)
    if path.is_dir():
        return _of_folder(path)
    if not path.exists():
        raise UserError(f"{path}: not found; expected a log (dlrm_tf_log.json) or a folder of checkpoints")
    if (step := pointed(path)) is not None:  # CHECKPOINTS/best
        return _of_folder(step)
    if not path.is_file():
        raise UserError(f"{path}: not a regular file; expected a log, which is read twice: write it to a file first")
    return runs_of(path)


def _of_folder(path: Path) -> list[RunSpan]:
    steps = complete_steps(path)
    folder = steps[0] if steps else path if (path / manifest.NAME).is_file() else None
    if folder is None:
        if (path / _DEFAULT_LOG).is_file():
            return runs_of(path / _DEFAULT_LOG)
        raise UserError(f"{path}: holds neither a complete checkpoint nor {_DEFAULT_LOG}; expected a log or a folder of checkpoints")
    named = manifest.read(folder).get("log")
    log, identity = (named.get("path"), named.get("run")) if isinstance(named, dict) else (None, None)
    if not isinstance(identity, str) or not identity:
        raise UserError(f"{folder}: its manifest names no log, as those of older versions; give the log file itself")
    if not isinstance(log, str) or not log:
        raise UserError(f"{folder}: its run {identity} wrote no log (--log_path was empty), so there is nothing to report")
    for candidate in _candidates(Path(log), path):
        if found := [run for run in runs_of(candidate) if run.identity == identity]:
            return found
    raise UserError(f"{log}: the log that {folder} names is not there, nor a renamed one with its run {identity}; give the log file where it is now")


def _candidates(log: Path, folder: Path) -> Iterator[Path]:
    """Yield the files that may be a run's log: the one of that name, older ones that were renamed, and the same names beside the checkpoints."""
    pattern = re.compile(re.escape(f"{log.stem}.") + r"(\d+)" + re.escape(log.suffix))
    for place in dict.fromkeys((log.parent, folder, folder.parent)):
        try:
            found = [
                file for file in place.iterdir() if (file.name == log.name or pattern.fullmatch(file.name)) and file.is_file() and file.stat().st_size
            ]
        except OSError:
            continue
        yield from sorted(found, key=lambda file: (file.name != log.name, file.name))
