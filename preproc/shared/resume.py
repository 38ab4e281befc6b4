"""Progress of a run by stages: a run with `--resume` that ends early keeps its staging folder, and the next one resumes from there.

A stage is done or not: a small JSON file records it, written after the stage's data are on the disk. Without `--resume` nothing is recorded.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from preproc.reading.stores import Source
from utils.checkpoint.durable import sync_folder, write_text
from utils.naming import naming
from utils.scratch import Scratch

FORMAT = 2  # version of the staged data and of the dataset made from them; other formats are not resumed
DATASET = "dataset"  # folder inside the staging folder in which the dataset is written
_RUN, _PREFIX = "run.json", "done-"
_PUBLISHING = "publishing"
_KINDS = {
    "read": "files read",
    "learned": "fitted values",
    "vocabulary": "vocabularies",
    "column": "columns",
}  # kinds of stages, by the first word of their names

Value = TypeVar("Value")


class Progress:
    """The stages of one run.

    Args:
        name: name of the command.
        command: the options on which the bytes of the dataset depend, by flag.
        sources: every file that is read.
        destination: folder of the dataset.
        wanted: whether stages are recorded, and an earlier run is resumed.

    Attributes:
        run: JSON that identifies this run: versions, options and files.
    """

    def __init__(self, name: str, command: Mapping[str, Any], sources: Iterable[Source], destination: Path, wanted: bool):
        self._name, self._destination, self._wanted = name, destination, wanted
        self.run = {"format": FORMAT, "polars": pl.__version__, "command": _plain(command), "files": [_identity(source) for source in sources]}
        self._folder: Path | None = None

    def takes(self, folder: Path) -> bool:
        """Return whether an earlier run left a folder with the same command, code and files; print the difference if not."""
        before = _read(folder / _RUN) if self._wanted else None
        if before is None:
            return False
        if other := difference(before, self.run):
            self._say(f"--resume: starts from the beginning, because {folder} was left by a run with {other}")
            return False
        return True

    def start(self, folder: Path) -> None:
        """Resume in the staging folder of an earlier run, or record this run in an empty one."""
        if not self._wanted:
            return
        self._folder = folder
        if not (folder / _RUN).exists():
            with naming(folder / _RUN):
                write_text(folder / _RUN, json.dumps(self.run))
            return
        self._take_back()
        counts = {kind: len(list(folder.glob(f"{_PREFIX}{kind}-*.json"))) for kind in _KINDS}
        done = ", ".join(f"{_KINDS[kind]}{f' {count}' if kind != 'learned' else ''}" for kind, count in counts.items() if count)
        self._say(f"--resume: continues in {folder}; already done: {done or 'nothing'}")

    def once(self, stage: str, paths: Sequence[Path], work: Callable[[], Value]) -> Value:
        """Run a stage, unless it is done.

        Args:
            stage: its name, which begins with its kind: `vocabulary user`.
            paths: the files that it makes, in the staging folder.
            work: makes them; its result must be serializable as JSON.

        Returns:
            the result of `work`, from this run or the earlier one.
        """
        found = self.done(stage)
        if found is None:
            value = work()
            self.complete(stage, paths, value)
            return value
        return found["value"]

    def done(self, stage: str) -> dict[str, Any] | None:
        """Return the record of a stage that is done, with its `value`; None where it is not done, or the sizes of its files have changed."""
        if self._folder is None:
            return None
        found = _read(self._file(stage))
        if found is None or found["stage"] != stage:
            return None
        sizes = {name: _size(self._folder / name) for name in found["sizes"]}
        return found if sizes == found["sizes"] else None

    def complete(self, stage: str, paths: Sequence[Path], value: Any = None, growing: Sequence[Path] = ()) -> None:
        """Record that a stage is done. The files `growing` hold its results too, but their sizes may change, since later stages append to them."""
        if self._folder is None:
            return
        for path in (*paths, *growing):
            _sync(path)
        for folder in {path.parent for path in (*paths, *growing)}:
            sync_folder(folder)
        sizes = {str(path.relative_to(self._folder)): path.stat().st_size for path in paths}
        with naming(path := self._file(stage)):
            write_text(path, json.dumps({"stage": stage, "sizes": sizes, "value": value}))
        sync_folder(self._folder)

    def forget(self, stages: Iterable[str]) -> None:
        """Mark stages as not done, whatever an earlier run recorded."""
        if self._folder is not None:
            for stage in stages:
                self._file(stage).unlink(missing_ok=True)

    @property
    def on(self) -> bool:
        """True if stages are recorded."""
        return self._folder is not None

    def publishing(self, folder: Path) -> None:
        """Record that the entries of a folder are about to be moved to the destination.

        A run that is killed meanwhile has moved some of them; the next one moves these back.
        """
        if self._folder is not None:
            self.complete(_PUBLISHING, [], sorted(entry.name for entry in folder.iterdir()))

    def end(self, scratch: Scratch, failed: bool) -> None:
        """Remove the staging folder, or keep it if the run failed and completed a stage that can be resumed from."""
        folder = self._folder
        if not failed or folder is None or not any(folder.glob(f"{_PREFIX}*.json")):
            scratch.remove()
            return
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        scratch.leave()
        self._say(f"{folder} is kept ({_human(size)}): the same command with --resume continues there; a run without --resume removes the folder")

    def _take_back(self) -> None:
        """Move back the entries that a run had moved to the destination before it was killed while publishing."""
        moved, dataset = self.done(_PUBLISHING), self._folder / DATASET
        for name in moved["value"] if moved else ():
            if not os.path.lexists(dataset / name) and os.path.lexists(self._destination / name):
                (self._destination / name).rename(dataset / name)
        if moved:
            self._file(_PUBLISHING).unlink()

    def _file(self, stage: str) -> Path:
        kind = stage.partition(" ")[0]
        return self._folder / f"{_PREFIX}{kind}-{hashlib.blake2b(stage.encode(), digest_size=8).hexdigest()}.json"

    def _say(self, line: str) -> None:
        print(f"{self._name}: {line}", file=sys.stderr)


def link(source: Path, target: Path) -> None:
    """Hard-link a file to a second name, replacing an existing file there; copy it where the file system has no links.

    The first name stays valid, so that a resumed run still finds its staged file.
    """
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def dataset_files(folder: Path) -> list[Path]:
    """Return the files that a command reads of another dataset: its specification and vocabularies."""
    return sorted(path for path in (folder / "feature_spec.yaml", *folder.glob("vocabulary/*.parquet")) if path.is_file())


def _identity(source: Source) -> list[Any]:
    """Return the identity and version of a source: path, size and modification time of a file."""
    if isinstance(source, Path):
        status = source.stat()
        return [str(source.resolve()), status.st_size, status.st_mtime_ns]
    return [source.identity, source.stat().st_size, source.version]


def _plain(command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as they come back from JSON, so that they can be compared with recorded ones."""
    return json.loads(json.dumps(command, default=str))


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Describe the first difference between two runs; None where they are the same."""
    for name in ("format", "polars"):
        if before.get(name) != now[name]:
            return f"another version of {'this program' if name == 'format' else 'Polars'}"
    for flag, value in now["command"].items():
        if before["command"].get(flag) != value:
            return f"another {'' if ' ' in flag else '--'}{flag} ({before['command'].get(flag)!r}, now {value!r})"
    then, here = ({path: version for path, *version in run["files"]} for run in (before, now))
    for path in then | here:
        if path not in then or path not in here:
            return f"other files ({path} {'is new' if path in here else 'is no longer given'})"
        if then[path] != here[path]:
            return f"other files ({path} has changed)"
    return None if before["files"] == now["files"] else "the files in another order"


def _read(path: Path) -> Any:
    """Return the content of a JSON file; None where it is missing or incomplete."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _human(size: int) -> str:
    """Format a size in the largest unit that is not larger than it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
