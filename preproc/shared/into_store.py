"""`--dst s3://bucket/DATASET`: the dataset is made in a local folder and then uploaded to an object store."""

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

_RUN, _MADE = "run", "made"  # keys in the record of the local folder: the run that made its dataset, and the parent folders created for it


@dataclass(frozen=True)
class Destination:
    """The destination of a dataset.

    Attributes:
        folder: local folder in which the dataset is made.
        staging: folder for the rows read, until their ids are known; None for a hidden folder inside `folder`.
        url: store folder to which the complete dataset is uploaded, after which `folder` is removed; None if it stays in `folder`.
        resume: whether an interrupted upload is resumed, and this run can be resumed.
    """

    folder: Path
    staging: Path | None
    url: str | None = None
    resume: bool = False

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Destination":
        """Return the destination given by --dst, --staging, --engine and --resume. Raises UserError where these conflict."""
        if not is_url(given.dst) or local_of(given.dst) != given.dst:
            if given.resume and (given.engine == SPARK or given.staging):
                why = "--engine spark: Spark itself repeats lost tasks" if given.engine == SPARK else "--staging: a resumed run continues in --dst"
                raise UserError(f"--resume and {why}; drop one of them")
            return cls(Path(local_of(given.dst)), given.staging)
        if given.staging is None:
            where = "that all executors share" if given.engine == SPARK else "on a disk with enough space"
            raise UserError(f"--dst {shown(given.dst)}: --staging is missing; give a folder {where}, in which the dataset is made before its upload")
        name = re.sub(r"[^\w.-]+", "-", shown(given.dst).partition("://")[2]).strip("-.")[-60:]
        number = hashlib.blake2b(given.dst.rstrip("/").encode(), digest_size=4).hexdigest()
        return cls(given.staging / f"{name}-{number}", None, given.dst, given.resume)

    def __str__(self) -> str:
        return str(self.folder) if self.url is None else shown(self.url).rstrip("/")


def folder_or_url(text: str) -> str:
    """Parse --dst, which must not be empty; for argparse's `type`."""
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, or the URL of a folder in an object store, found ''")
    return text


def made(name: str, destination: Destination, make: Callable[[], str], run: Mapping[str, Any], overwrite: bool) -> str:
    """Make a dataset, and upload it if its destination is a store.

    Args:
        name: name of the command.
        destination: destination of the dataset.
        make: makes it in the local folder; returns a summary.
        run: everything that its bytes depend on, as JSON.
        overwrite: whether an existing dataset may be replaced.

    Returns:
        the summary to print.

    Raises:
        DatasetError: the store holds a dataset already, or refuses the upload. A complete dataset then stays in the local folder.
    """
    if destination.url is None:
        return make()
    folder, resume, store = destination.folder, destination.resume, StoreFolder(destination.url)
    whole = _is_made(name, folder, run) if resume else False
    if not whole and not overwrite and (folder / DEFAULT_FILE_NAME).exists():
        raise DatasetError(
            f"{folder} holds a dataset that an earlier run made for {destination}; upload it with python -m dataloading.put (or with --resume, "
            "if it was this command), or replace it with --overwrite"
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
            raise DatasetError(f"{error}; the complete dataset is in {folder}: upload it by the same command with --resume") from None
        except BaseException:
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
    return said


@contextmanager
def _alone(folder: Path, new: Sequence[str]) -> Iterator[None]:
    """Lock a local folder against other runs; on exit, remove the folders `new`, which this run made, where they are empty.

    Raises:
        DatasetError: another run holds the lock.
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
    """Acquire the lock file and return its descriptor. Raises DatasetError where another run holds the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DatasetError(f"{folder}: another run is making the dataset for this --dst; wait for it, or choose another --staging") from None
        except OSError:  # a file system without locks
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # the run that held the lock has removed this file, so a third run would lock a new one: try again


def _is_made(name: str, folder: Path, run: Mapping[str, Any]) -> bool:
    """Return whether the local folder holds the complete dataset of the same run, which only has to be uploaded."""
    if not (folder / DEFAULT_FILE_NAME).exists():
        return False
    before = read_record(folder).get(_RUN)
    other = "no record" if before is None else difference(before, run)
    if other:
        print(f"{name}: --resume: the dataset in {folder} is not uploaded, because it was made by a run with {other}", file=sys.stderr)
        return False
    print(f"{name}: --resume: uploads the dataset that an earlier run made in {folder}", file=sys.stderr)
    return True
