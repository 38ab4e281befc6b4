"""Files of object stores (`s3://bucket/day.csv`, `gs://…`, `https://…`: any protocol of fsspec), read like local ones."""

import glob
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

from dataloading.features import DatasetError
from dataloading.store.object_store import StoreStream, hidden, one_line, open_store, protocols
from utils.naming import naming
from utils.urls import shown

# the keys under which stores report a file's version or time of writing
_VERSIONS = ("mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "created")
_FETCHED = "fetched"
_FETCHED_BYTES = 1 << 22


class StoredFile:
    """One file of a store, with those methods of `Path` that the readers use.

    Attributes:
        name: the last part of its URL, as it appears in the metadata.
        identity: a text unique to this file, without passwords and signatures.
        version: time of writing or checksum, as far as the store reports them.
        folder: the folder to which it is fetched for readers that need a local file.
    """

    def __init__(self, url: str, system: Any, path: str, info: dict[str, Any]):
        self._system, self._path, self._url = system, path, shown(url)
        self.identity = f"{self._url} {hashlib.blake2b(url.encode(), digest_size=8).hexdigest()}"
        self._size: int | None = info.get("size")
        self.name = self._url.rstrip("/").rpartition("/")[2]
        self.version = " ".join(str(info[key]) for key in _VERSIONS if info.get(key) is not None)
        self.folder: Path | None = None
        self._fetched: Path | None = None

    def __str__(self) -> str:
        return self._url

    def __getstate__(self) -> dict[str, Any]:
        """Drop the local copy from the pickled state: another process fetches its own."""
        return self.__dict__ | {"_fetched": None}

    def open(self, mode: str = "rb") -> StoreStream:
        """Open its content as a stream. Raises DatasetError where the store refuses."""
        with one_line(self._url):
            return StoreStream(self._url, self._system.open(self._path, mode), self._size)

    def stat(self) -> SimpleNamespace:
        """Return its size in bytes as `st_size`, 0 where the store does not report it."""
        return SimpleNamespace(st_size=self._size or 0)

    def local(self) -> Path:
        """Return a copy in `folder`, fetched at the first call. Raises DatasetError, or OSError that names the copy."""
        if self._fetched is None:
            target = self.folder / f"{_FETCHED}-{self.identity.rpartition(' ')[2]}"
            with (
                self.open() as source,
                tqdm(total=self._size, desc=f"fetching {self.name}", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar,
                naming(target),
                target.open("wb") as copy,
            ):
                while content := source.read(_FETCHED_BYTES):
                    copy.write(content)
                    bar.update(len(content))
            self._fetched = target
        return self._fetched

    def release(self) -> None:
        """Remove the copy, if there is one."""
        if self._fetched is not None:
            self._fetched.unlink(missing_ok=True)
            self._fetched = None


Source = Path | StoredFile


def fetch_to(folder: Path, groups: Iterable[Sequence[Source]]) -> None:
    """Set the folder to which files of stores are fetched when a local file is needed."""
    for source in (source for group in groups for source in group):
        if isinstance(source, StoredFile):
            source.folder = folder


def local_path(source: Source) -> Path:
    """Return the file's path on a local disk; a file of a store is fetched first."""
    return source if isinstance(source, Path) else source.local()


def release(source: Source) -> None:
    """Remove the local copy of a file of a store."""
    if isinstance(source, StoredFile):
        source.release()


def stored_files(url: str) -> list[Source]:
    """Return the file of a URL, all files of a folder, or the matches of a glob, sorted by name; `file://` names local files.

    Raises:
        DatasetError: there is no such file, or the store refuses.
        UserError: fsspec, or a package that it needs for the store, is not installed.
    """
    system, path = open_store(url)
    with one_line(shown(url)):
        try:
            info = None if url.endswith("/") else system.info(path)  # over HTTP only the trailing slash identifies a folder
        except FileNotFoundError:
            if not glob.has_magic(url):
                raise
            paths = [(entry["name"], entry) for entry in system.glob(path, detail=True).values() if entry["type"] == "file"]
            if not paths:
                raise DatasetError(f"{shown(url)}: matches no file") from None
        else:
            if info is not None and info["type"] == "file":
                paths = [(path, info)]
            else:
                paths = [found for found in system.find(path, detail=True).items() if not hidden(found[0].removeprefix(path))]
                if not paths:
                    raise DatasetError(f"{shown(url)}: a folder without files; expected the files of a table")
    if "file" in protocols(system):
        return [Path(name) for name, _ in sorted(paths)]
    return [StoredFile(system.unstrip_protocol(name), system, name, found) for name, found in sorted(paths, key=lambda pair: pair[0])]
