"""`--dst s3://bucket/DATASET`: the dataset is made in a local folder as ever, and then put to an object store."""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataloading.feature_spec import DEFAULT_FILE_NAME
from dataloading.features import DatasetError
from dataloading.store.dataset import check_store, local_files, put_dataset, read_record, write_record
from dataloading.store.object_store import StoreFolder
from preproc.shared.engine_flags import SPARK
from preproc.shared.resume import difference
from utils.errors import UserError
from utils.urls import is_url, local_of, shown

_RUN, _MADE = "run", "made"  # in the record of the local folder: of which run its dataset is, and which folders on the way to it were made for it


@dataclass(frozen=True)
class Destination:
    """Where a dataset goes.

    Attributes:
        folder: in which it is made.
        staging: for what is read until its ids are known; None for a hidden folder of `folder`.
        url: of the folder of a store to which it is put when it is whole, and from `folder` removed; None where it stays.
        resume: whether putting is gone on with, and can be.
    """

    folder: Path
    staging: Path | None
    url: str | None = None
    resume: bool = False

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Destination":
        """What --dst, --staging, --engine and --resume say. Raises UserError where they do not go together."""
        if not is_url(given.dst) or local_of(given.dst) != given.dst:
            if given.resume and (given.engine == SPARK or given.staging):
                why = "--engine spark: Spark does lost tasks again by itself" if given.engine == SPARK else "--staging: it goes on in the destination"
                raise UserError(f"--resume and {why}; drop one of them")
            return cls(Path(local_of(given.dst)), given.staging)
        if given.staging is None:
            where = "that all executors see" if given.engine == SPARK else "on a disk with the room"
            raise UserError(f"--dst {shown(given.dst)}: --staging is missing: a folder {where}, in which the dataset is made before it is put there")
        name = re.sub(r"[^\w.-]+", "-", shown(given.dst).partition("://")[2]).strip("-.")[-60:]
        number = hashlib.blake2b(given.dst.rstrip("/").encode(), digest_size=4).hexdigest()
        return cls(given.staging / f"{name}-{number}", None, given.dst, given.resume)

    def __str__(self) -> str:
        return str(self.folder) if self.url is None else shown(self.url).rstrip("/")


def folder_or_url(text: str) -> str:
    """The text of --dst."""
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, or the URL of one in a store, found ''")
    return text


def made(name: str, destination: Destination, make: Callable[[], str], run: Mapping[str, Any], overwrite: bool) -> str:
    """Make a dataset, and put it to a store where that is its destination.

    Args:
        name: of the command.
        destination: of the dataset.
        make: makes it in the local folder; returns what is to be said of it.
        run: what its bytes depend on, as JSON.
        overwrite: whether a dataset that is there may be replaced.

    Returns:
        what is to be said.

    Raises:
        DatasetError: the store has a dataset already, or refuses. A dataset that is whole then stays in the local folder.
    """
    if destination.url is None:
        return make()
    folder, resume, store = destination.folder, destination.resume, StoreFolder(destination.url)
    whole = _goes_on(name, folder, run) if resume else False
    if not whole and not overwrite and (folder / DEFAULT_FILE_NAME).exists():
        raise DatasetError(
            f"{folder} holds a dataset that an earlier run made for {destination}; python -m dataloading.put puts it there (so does --resume, where "
            "it was this run), --overwrite makes it anew"
        )
    check_store(store, overwrite, local_files(folder) if whole else ())
    before = read_record(folder)
    new = [str(place) for place in (folder, *folder.parents) if not place.exists()] or before.get(_MADE, [])
    with _alone(folder, new):
        said = "made by an earlier run" if whole else make()
        try:
            write_record(folder, (before if whole else {}) | {_RUN: run, _MADE: new})
            put_dataset(folder, store, overwrite, resume)
        except (DatasetError, OSError) as error:
            raise DatasetError(f"{error}; the dataset is whole in {folder}: the same command with --resume goes on with putting it") from None
        except BaseException:
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    return said


@contextmanager
def _alone(folder: Path, new: Sequence[str]) -> Iterator[None]:
    """No other run makes the dataset of a local folder meanwhile; at the end, empty folders on the way there that this run made are removed.

    Raises:
        DatasetError: another run does.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    descriptor = locked(path, folder)
    try:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            for place in new:
                with suppress(OSError):
                    os.rmdir(place)
    finally:
        os.close(descriptor)


def locked(path: Path, folder: Path) -> int:
    """The lock's file, held. Raises DatasetError where another run holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DatasetError(f"{folder}: another run makes the dataset for this --dst there; wait for it, or choose another --staging") from None
        except OSError:  # a file system without locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # the run that held it has removed it: a third one would not see it


def _goes_on(name: str, folder: Path, run: Mapping[str, Any]) -> bool:
    """Whether the local folder holds the whole dataset of the same run, which only has to be put."""
    if not (folder / DEFAULT_FILE_NAME).exists():
        return False
    before = read_record(folder).get(_RUN)
    other = "no record" if before is None else difference(before, run)
    if other:
        print(f"{name}: --resume: the dataset in {folder} is not put, for it was made by a run with {other}", file=sys.stderr)
        return False
    print(f"{name}: --resume: goes on with putting the dataset in {folder}", file=sys.stderr)
    return True
