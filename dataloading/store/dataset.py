"""Upload of a dataset to a folder of an object store: the specification is uploaded last and removed first, so that partial data is no dataset."""

import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dataloading.contract import check_quick
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import VOCABULARY, DatasetError
from dataloading.store.object_store import StoreFolder
from utils.naming import naming

RECORD = ".put.json"  # in the local folder: the files uploaded so far, for a resumed run
_SHOWN = 3  # file names shown in a message


def local_files(folder: Path) -> dict[str, int]:
    """Return the files of a local dataset and their sizes in bytes, the specification last, without hidden files and files outside the dataset.

    Raises:
        FeatureSpecError: the specification is missing or damaged.
    """
    found, spec = {}, FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME)
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(place, name) for name in sorted(names) if not name.startswith(".")):
            found[path.relative_to(folder).as_posix()] = path.stat().st_size
    names = sorted(names_of_dataset(spec, found), key=lambda name: (name == DEFAULT_FILE_NAME, name))
    return {name: found[name] for name in names}


def names_of_dataset(spec: FeatureSpec, names: Collection[str]) -> list[str]:
    """Return the files of a folder that belong to the dataset: those in the folders of its splits and vocabularies, and at the top level."""
    files = (file for chunks in spec.sources.values() for chunk in chunks for file in chunk.files)
    folders = {VOCABULARY, *spec.sources, *(file.split("/")[0] for file in files)}
    return [name for name in names if "/" not in name or name.split("/")[0] in folders]


def check_store(store: StoreFolder, overwrite: bool, ours: Collection[str] = ()) -> None:
    """Check, before expensive work, that a dataset can be uploaded to a store.

    Args:
        store: the folder.
        overwrite: whether existing files may be replaced.
        ours: files that an earlier run may have uploaded.

    Raises:
        DatasetError: the folder holds a dataset or other files, or the store fails to write, read back or remove a small file.
    """
    if not overwrite:
        names = store.sizes()
        if store.has(DEFAULT_FILE_NAME):
            raise DatasetError(f"{store} holds a dataset already ({DEFAULT_FILE_NAME}); choose another folder or pass --overwrite")
        if others := sorted(names.keys() - set(ours)):
            raise DatasetError(f"{store} holds files already ({_some(others)}); expected an empty folder; choose another, or pass --overwrite")
    store.try_writing()


def put_dataset(folder: Path, store: StoreFolder, overwrite: bool, resume: bool) -> int:
    """Upload the dataset in a local folder to a store; the store's folder holds a specification only once the dataset is complete.

    Args:
        folder: the folder of the dataset, which is not changed.
        store: a folder checked by `check_store`.
        overwrite: whether existing files are replaced: the old specification is removed first, other old files just before the new one is uploaded.
        resume: whether uploaded files are recorded, kept after a failure, and not uploaded again.

    Returns:
        the bytes of the dataset.

    Raises:
        DatasetError: the store fails; uploaded files are removed unless `resume` is set, and the message says so.
    """
    sizes, before = local_files(folder), store.sizes()
    record = _Record(folder, resume)
    if store.has(DEFAULT_FILE_NAME):
        store.remove(DEFAULT_FILE_NAME)
    put: list[str] = []
    try:
        with tqdm(total=sum(sizes.values()), desc="putting", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
            for name, size in sizes.items():
                if name == DEFAULT_FILE_NAME:
                    _clean(store, sizes, overwrite)
                if before.get(name) == size and record.has(name):  # uploaded by an earlier run
                    bar.update(size)
                    continue
                put.append(name)
                store.put(folder / name, name, bar.update)
                record.add(name)
    except BaseException as error:
        left = _remove_uploaded(store, put if not resume else {DEFAULT_FILE_NAME} & {*put})
        if not isinstance(error, DatasetError):
            raise
        outcome = f"{left} of the uploaded files could not be removed" if left else "the uploaded files were removed"
        if resume:
            outcome = f"the uploaded files ({len(put) - 1:,}) are kept for a run with --resume"
        raise DatasetError(f"{error}; {outcome}{', and the older dataset is no longer complete' if before and overwrite else ''}") from None
    record.remove()
    return sum(sizes.values())


def _clean(store: StoreFolder, sizes: Mapping[str, int], overwrite: bool) -> None:
    """Remove the other files of an older dataset and check that every new file is there, before the specification makes the dataset visible."""
    found = store.sizes()
    if overwrite:
        for name in found.keys() - sizes.keys():
            store.remove(name)
    for name, size in sizes.items():
        if name != DEFAULT_FILE_NAME and found.get(name) != size:
            held = "is missing" if name not in found else f"has {found[name]:,} bytes"
            raise DatasetError(f"{store}/{name}: {held} in the store, expected the {size:,} bytes uploaded; another run may have written there")


def _remove_uploaded(store: StoreFolder, names: Collection[str]) -> int:
    """Remove uploaded files, and return how many could not be removed."""
    left = 0
    with suppress(DatasetError):
        there = store.sizes()
        for name in names:
            try:
                if name in there:
                    store.remove(name)
            except DatasetError:
                left += 1
        return left
    return len(names)


class _Record:
    """The record of a local dataset's uploaded files, with their sizes and modification times; other entries of the file are kept."""

    def __init__(self, folder: Path, wanted: bool):
        self._folder, self._path, self._wanted = folder, folder / RECORD, wanted
        self._content = read_record(folder) if wanted else {}
        self._put: dict[str, list[int]] = self._content.setdefault("put", {})

    def has(self, name: str) -> bool:
        """Return whether a file was uploaded and has not changed since."""
        return self._put.get(name) == self._state(name)

    def add(self, name: str) -> None:
        """Record that a file was uploaded."""
        if self._wanted:
            self._put[name] = self._state(name)
            write_record(self._folder, self._content)

    def remove(self) -> None:
        """Remove the record, because the upload is complete."""
        if self._wanted:
            self._path.unlink(missing_ok=True)

    def _state(self, name: str) -> list[int]:
        status = (self._folder / name).stat()
        return [status.st_size, status.st_mtime_ns]


def read_record(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's record; empty if it is missing or damaged."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / RECORD).read_bytes())
        if isinstance(found, dict) and isinstance(found.get("put", {}), dict):
            return found
    return {}


def write_record(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a folder's record atomically."""
    new = folder / f"{RECORD}.new"
    with naming(new):
        new.write_text(json.dumps(content))
    new.rename(folder / RECORD)


def checked_spec(folder: Path, flags: str) -> FeatureSpec:
    """Read the specification of a local dataset and check the sizes of its files. Raises DatasetError or FeatureSpecError."""
    spec = FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME, flags)
    check_quick(spec, tuple(spec.sources or ("train",)))
    return spec


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
