"""Files of object stores (`s3://bucket/day.csv`, `gs://…`, `https://…`: whatever fsspec knows), read like local ones."""

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from tqdm import tqdm

from dataloading.contract import DatasetError
from utils.errors import UserError
from utils.naming import naming

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://").match
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@")
_VERSIONS = ("mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "created")  # under which stores say when a file was written
_FETCHED = "fetched"
_FETCHED_BYTES = 1 << 22


def is_url(text: str) -> bool:
    """Whether a text names a file of a store; a local path that looks like it is local."""
    return _URL(text) is not None and not os.path.lexists(text)


class StoredFile:
    """One file of a store: what the readers of local files use of a `Path`.

    Attributes:
        name: its last part, as the metadata has it.
        identity: what tells it from all other files, without passwords and signatures.
        version: when it was written or what it holds, as far as the store says so.
        folder: where it is fetched to for readers that need a local file.
    """

    def __init__(self, url: str, system: Any, path: str, info: dict[str, Any]):
        self._system, self._path, self._url = system, path, _shown(url)
        self.identity = f"{self._url} {hashlib.blake2b(url.encode(), digest_size=8).hexdigest()}"
        self._size: int | None = info.get("size")
        self.name = self._url.rstrip("/").rpartition("/")[2]
        self.version = " ".join(str(info[key]) for key in _VERSIONS if info.get(key) is not None)
        self.folder: Path | None = None
        self._fetched: Path | None = None

    def __str__(self) -> str:
        return self._url

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which fetches its own copy."""
        return self.__dict__ | {"_fetched": None}

    def open(self, mode: str = "rb") -> "_Stream":
        """Its content as a stream. Raises DatasetError where the store refuses."""
        with _one_line(self._url):
            return _Stream(self._url, self._system.open(self._path, mode), self._size)

    def stat(self) -> SimpleNamespace:
        """Its size in bytes as `st_size`, 0 where the store does not say."""
        return SimpleNamespace(st_size=self._size or 0)

    def local(self) -> Path:
        """A copy in `folder`, fetched when first asked for. Raises DatasetError, or OSError that names the copy."""
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
        """Remove the copy, where there is one."""
        if self._fetched is not None:
            self._fetched.unlink(missing_ok=True)
            self._fetched = None


Source = Path | StoredFile


class _Stream:
    """An open file of a store; what goes wrong is one line, and so is an end before its size."""

    def __init__(self, url: str, file: Any, size: int | None):
        self._url, self._file, self._left = url, file, size

    def read(self, count: int) -> bytes:
        """At most so many bytes; none at the end."""
        with _one_line(self._url):
            content = self._file.read(count)
        if self._left is not None:
            self._left -= len(content)
            if not content and count and self._left > 0:
                raise DatasetError(f"{self._url}: ended {self._left:,} bytes before its size; was it replaced meanwhile? Run again")
        return content

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def fetch_to(folder: Path, groups: Iterable[Sequence[Source]]) -> None:
    """Say where files of stores are fetched to when a local file is needed."""
    for source in (source for group in groups for source in group):
        if isinstance(source, StoredFile):
            source.folder = folder


def local_path(source: Source) -> Path:
    """Where the file lies on a local disk; one of a store is fetched."""
    return source if isinstance(source, Path) else source.local()


def release(source: Source) -> None:
    """Remove what was fetched of a file, where it is one of a store."""
    if isinstance(source, StoredFile):
        source.release()


def stored_files(url: str) -> list[Source]:
    """The file of a URL, all files of a folder, or what a glob matches, in the order of their names; `file://` names local files.

    Raises:
        DatasetError: there is none, or the store refuses.
        UserError: fsspec, or what it needs for the store, is not installed.
    """
    try:
        import fsspec  # only where a URL is read: it is an optional dependency
    except ImportError:
        raise UserError(f"{_shown(url)}: reading from object stores needs fsspec, which is not installed: pip install fsspec") from None
    with _one_line(_shown(url)):
        system, path = fsspec.core.url_to_fs(url)
        try:
            info = None if url.endswith("/") else system.info(path)  # of a web page, only the slash says that it is a folder
        except FileNotFoundError:
            if not glob.has_magic(url):
                raise
            paths = [(entry["name"], entry) for entry in system.glob(path, detail=True).values() if entry["type"] == "file"]
            if not paths:
                raise DatasetError(f"{_shown(url)}: matches no file") from None
        else:
            if info is not None and info["type"] == "file":
                paths = [(path, info)]
            else:
                paths = [found for found in system.find(path, detail=True).items() if not _hidden(found[0], path)]
                if not paths:
                    raise DatasetError(f"{_shown(url)}: a folder without files; expected the files of a table")
    if "file" in _protocols(system):
        return [Path(name) for name, _ in sorted(paths)]
    return [StoredFile(system.unstrip_protocol(name), system, name, found) for name, found in sorted(paths, key=lambda pair: pair[0])]


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _hidden(name: str, folder: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.removeprefix(folder).split("/"))


def _shown(url: str) -> str:
    """A URL without passwords and signatures, which have no place in messages and metadata."""
    url = _SECRETS.sub("", url)
    return url.partition("?")[0] if url.startswith("http") and "=" in url.partition("?")[2] else url


@contextmanager
def _one_line(url: str) -> Iterator[None]:
    """What a store's library raises, of whatever kind, as one line with the URL."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec's own http says "not found" of any failure
        if cause is not None and not isinstance(cause, FileNotFoundError):
            raise DatasetError(f"{url}: cannot be read: {type(cause).__name__}{_reason(cause)}") from None
        raise DatasetError(f"{url}: no such file; expected a file, a folder or a glob") from None
    except PermissionError as error:
        raise DatasetError(f"{url}: no permission{_reason(error)}; the store's own configuration has the credentials") from None
    except ImportError as error:
        raise UserError(f"{url}: the store needs a package that is not installed: {_brief(error)}") from None
    except Exception as error:  # libraries of stores have dozens of kinds of their own
        raise DatasetError(f"{url}: cannot be read: {type(error).__name__}{_reason(error)}") from None


def _reason(error: BaseException) -> str:
    return f": {_brief(error)}" if str(error).strip() else ""


def _brief(error: BaseException) -> str:
    return _SECRETS.sub("", " ".join(str(error).split()))[:200]
