"""A dataset on its way to a folder of an object store, or back: its specification is the last file there, and the first to go."""

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

RECORD = ".put.json"  # in the local folder: what was put already, for a run that goes on
_SHOWN = 3  # files that a message names


def local_files(folder: Path) -> dict[str, int]:
    """The files of a local dataset and their bytes, the specification last; nothing that begins with a dot, or is of another kind.

    Raises:
        FeatureSpecError: there is no specification, or it is damaged.
    """
    found, spec = {}, FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME)
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(place, name) for name in sorted(names) if not name.startswith(".")):
            found[path.relative_to(folder).as_posix()] = path.stat().st_size
    names = sorted(names_of_dataset(spec, found), key=lambda name: (name == DEFAULT_FILE_NAME, name))
    return {name: found[name] for name in names}


def names_of_dataset(spec: FeatureSpec, names: Collection[str]) -> list[str]:
    """Which files of a folder belong to the dataset with this specification: those in its splits and vocabularies, and beside it."""
    files = (file for chunks in spec.sources.values() for chunk in chunks for file in chunk.files)
    folders = {VOCABULARY, *spec.sources, *(file.split("/")[0] for file in files)}
    return [name for name in names if "/" not in name or name.split("/")[0] in folders]


def check_store(store: StoreFolder, overwrite: bool, ours: Collection[str] = ()) -> None:
    """Find out before anything expensive whether a dataset can be put to a store.

    Args:
        store: the folder.
        overwrite: whether what is there may be replaced.
        ours: files that an earlier run may have put already.

    Raises:
        DatasetError: the folder holds a dataset, or other files; or the store refuses to take, give back or remove a small one.
    """
    if not overwrite:
        names = store.sizes()
        if store.has(DEFAULT_FILE_NAME):
            raise DatasetError(f"{store} holds a dataset already ({DEFAULT_FILE_NAME}); choose another folder or pass --overwrite")
        if others := sorted(names.keys() - set(ours)):
            raise DatasetError(f"{store} holds files already ({_some(others)}); expected an empty folder; choose another, or pass --overwrite")
    store.try_writing()


def put_dataset(folder: Path, store: StoreFolder, overwrite: bool, resume: bool) -> int:
    """Put the dataset in a local folder to a store, whose folder looks like a dataset only when it is whole.

    Args:
        folder: of the dataset, which stays as it is.
        store: checked by `check_store`.
        overwrite: whether what is there is replaced: its specification is removed first, what the new dataset lacks before the new one's is put.
        resume: whether what was put is recorded, stays after a failure, and is not put again.

    Returns:
        its bytes.

    Raises:
        DatasetError: the store refuses; what had been put is removed unless `resume`, and the message says so.
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
                if before.get(name) == size and record.has(name):
                    bar.update(size)
                    continue
                put.append(name)
                store.put(folder / name, name, bar.update)
                record.add(name)
    except BaseException as error:
        left = _taken_back(store, put if not resume else {DEFAULT_FILE_NAME} & {*put})
        if not isinstance(error, DatasetError):
            raise
        said = f"{left} of the files that were put could not be removed" if left else "what had been put is removed"
        if resume:
            said = f"what had been put ({len(put) - 1:,} files) stays for a run with --resume"
        raise DatasetError(f"{error}; {said}{', and the older dataset there is no longer whole' if before and overwrite else ''}") from None
    record.remove()
    return sum(sizes.values())


def _clean(store: StoreFolder, sizes: Mapping[str, int], overwrite: bool) -> None:
    """Before a dataset becomes visible: remove what an older one had besides, and look whether all is there."""
    found = store.sizes()
    if overwrite:
        for name in found.keys() - sizes.keys():
            store.remove(name)
    for name, size in sizes.items():
        if name != DEFAULT_FILE_NAME and found.get(name) != size:
            held = "is not" if name not in found else f"has {found[name]:,} bytes"
            raise DatasetError(f"{store}/{name}: {held} there, expected {size:,} bytes that were put; did another run write there?")


def _taken_back(store: StoreFolder, names: Collection[str]) -> int:
    """Remove what was put; returns how many files could not be removed."""
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
    """Which files of a local dataset were put, by size and time; beside other words that a command keeps there."""

    def __init__(self, folder: Path, wanted: bool):
        self._folder, self._path, self._wanted = folder, folder / RECORD, wanted
        self._content = read_record(folder) if wanted else {}
        self._put: dict[str, list[int]] = self._content.setdefault("put", {})

    def has(self, name: str) -> bool:
        """Whether a file was put as it is now."""
        return self._put.get(name) == self._facts(name)

    def add(self, name: str) -> None:
        """A file was put."""
        if self._wanted:
            self._put[name] = self._facts(name)
            write_record(self._folder, self._content)

    def remove(self) -> None:
        """Everything was."""
        if self._wanted:
            self._path.unlink(missing_ok=True)

    def _facts(self, name: str) -> list[int]:
        status = (self._folder / name).stat()
        return [status.st_size, status.st_mtime_ns]


def read_record(folder: Path) -> dict[str, Any]:
    """What a folder's record says; nothing where there is none, or no whole one."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / RECORD).read_bytes())
        if isinstance(found, dict) and isinstance(found.get("put", {}), dict):
            return found
    return {}


def write_record(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a folder's record, whole or not at all."""
    new = folder / f"{RECORD}.new"
    with naming(new):
        new.write_text(json.dumps(content))
    new.rename(folder / RECORD)


def checked_spec(folder: Path, flags: str) -> FeatureSpec:
    """The specification of a local dataset, its files' sizes checked. Raises DatasetError or FeatureSpecError."""
    spec = FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME, flags)
    check_quick(spec, tuple(spec.sources or ("train",)))
    return spec


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")
