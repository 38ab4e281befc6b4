"""What of a run is complete: a run with `--resume` that ends early keeps its staging folder, and the next one goes on from there.

A stage is done or not: a small JSON file says so, written after the data that it speaks of is on the disk. Without `--resume` nothing is recorded.
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

FORMAT = 1  # of what is staged and of what it becomes; another one is not gone on with
DATASET = "dataset"  # the folder inside the staging folder in which the dataset grows
_RUN, _PREFIX = "run.json", "done-"
_PUBLISHING = "publishing"
_KINDS = {"read": "files read", "learned": "what is learned", "vocabulary": "vocabularies", "column": "columns"}  # of stages, by their first word

Value = TypeVar("Value")


class Progress:
    """The stages of one run.

    Args:
        name: of the command.
        command: what the user asked for, as far as bytes depend on it; by flag.
        sources: every file that is read.
        destination: of the dataset.
        wanted: whether anything is recorded, and taken up.

    Attributes:
        run: what tells this run from others, as JSON.
    """

    def __init__(self, name: str, command: Mapping[str, Any], sources: Iterable[Source], destination: Path, wanted: bool):
        self._name, self._destination, self._wanted = name, destination, wanted
        self.run = {"format": FORMAT, "polars": pl.__version__, "command": _plain(command), "files": [_facts(source) for source in sources]}
        self._folder: Path | None = None

    def takes(self, folder: Path) -> bool:
        """Whether a folder that an earlier run left is of the same command, code and files; a line says where it is not."""
        before = _read(folder / _RUN) if self._wanted else None
        if before is None:
            return False
        if other := difference(before, self.run):
            self._say(f"--resume: begins anew, for {folder} was left by a run with {other}")
            return False
        return True

    def start(self, folder: Path) -> None:
        """Go on in a staging folder, or begin in an empty one."""
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
        self._say(f"--resume: goes on in {folder}; done already and not done again: {done or 'nothing'}")

    def once(self, stage: str, paths: Sequence[Path], work: Callable[[], Value]) -> Value:
        """Do a stage, unless it is done.

        Args:
            stage: its name, which begins with its kind: `vocabulary user`.
            paths: the files that it makes, in the staging folder.
            work: makes them; what it returns must be JSON.

        Returns:
            what `work` returned, now or then.
        """
        found = self.done(stage)
        if found is None:
            value = work()
            self.complete(stage, paths, value)
            return value
        return found["value"]

    def done(self, stage: str) -> dict[str, Any] | None:
        """The `value` of a stage that is done; None where it is not, or its files are not as they were."""
        if self._folder is None:
            return None
        found = _read(self._file(stage))
        if found is None or found["stage"] != stage:
            return None
        sizes = {name: _size(self._folder / name) for name in found["sizes"]}
        return found if sizes == found["sizes"] else None

    def complete(self, stage: str, paths: Sequence[Path], value: Any = None, growing: Sequence[Path] = ()) -> None:
        """Record that a stage is done; files that are `growing` hold what it made, and later stages add to them."""
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
        """These stages are not done, whatever an earlier run recorded."""
        if self._folder is not None:
            for stage in stages:
                self._file(stage).unlink(missing_ok=True)

    @property
    def on(self) -> bool:
        """Whether stages are recorded."""
        return self._folder is not None

    def publishing(self, folder: Path) -> None:
        """Record that what a folder holds is about to be moved to the destination: a run that is killed meanwhile has some of it there."""
        if self._folder is not None:
            self.complete(_PUBLISHING, [], sorted(entry.name for entry in folder.iterdir()))

    def end(self, scratch: Scratch, failed: bool) -> None:
        """Remove the staging folder, or keep it where a run that failed leaves something to go on with."""
        folder = self._folder
        if not failed or folder is None or not any(folder.glob(f"{_PREFIX}*.json")):
            scratch.remove()
            return
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        scratch.leave()
        self._say(f"{folder} is kept ({_human(size)}): the same command goes on from there with --resume; a run without it removes it")

    def _take_back(self) -> None:
        """Bring back what a run that was killed while it published had moved."""
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
    """Give a file a second name in place of whatever has it, so that the first stays valid; a copy where the file system has no links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def dataset_files(folder: Path) -> list[Path]:
    """The files that a command reads of another dataset: its specification and vocabularies."""
    return sorted(path for path in (folder / "feature_spec.yaml", *folder.glob("vocabulary/*.parquet")) if path.is_file())


def _facts(source: Source) -> list[Any]:
    """What tells a file from another, and from itself when it has changed: path, size, time."""
    if isinstance(source, Path):
        status = source.stat()
        return [str(source.resolve()), status.st_size, status.st_mtime_ns]
    return [source.identity, source.stat().st_size, source.version]


def _plain(command: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from JSON."""
    return json.loads(json.dumps(command, default=str))


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first thing in which two runs differ, in words; None where they are the same."""
    for name in ("format", "polars"):
        if before.get(name) != now[name]:
            return f"another version of {'this program' if name == 'format' else 'Polars'}"
    for flag, value in now["command"].items():
        if before["command"].get(flag) != value:
            return f"another {'' if ' ' in flag else '--'}{flag} ({before['command'].get(flag)!r}, now {value!r})"
    then, here = ({path: facts for path, *facts in run["files"]} for run in (before, now))
    for path in then | here:
        if path not in then or path not in here:
            return f"other files ({path} {'is new' if path in here else 'was one'})"
        if then[path] != here[path]:
            return f"other files ({path} has changed)"
    return None if before["files"] == now["files"] else "the files in another order"


def _read(path: Path) -> Any:
    """What a JSON file says; None where it is not there or not whole."""
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
    """A size in the largest unit of which there is one."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
