"""Object stores (`s3://…`, `gs://…`, any that fsspec supports): opening a store, reading files, and uploading a dataset to a folder."""

import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dataloading.features import DatasetError
from utils.errors import UserError
from utils.urls import shown, without_secrets

_TOKEN = ".dlrm-token-"


def open_store(url: str, doing: str = "reading from") -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        DatasetError: the store fails.
        UserError: fsspec, or a package that it needs for the store, is not installed.
    """
    try:
        import fsspec  # imported here because it is an optional dependency, needed for URLs only
    except ImportError:
        raise UserError(f"{shown(url)}: {doing} object stores needs fsspec, which is not installed: pip install fsspec") from None
    with one_line(shown(url)):
        return fsspec.core.url_to_fs(url)


def protocols(system: Any) -> tuple[str, ...]:
    """Return the protocol names of a file system, such as `file` or `s3`."""
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def hidden(name: str) -> bool:
    """Return whether a name below a folder is not a data file, such as `_SUCCESS` or `.crc`."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


@contextmanager
def one_line(url: str, done: str = "read") -> Iterator[None]:
    """Convert any exception of a store's library to a one-line error with the URL.

    Args:
        url: the URL as shown in messages.
        done: the participle for the message "cannot be …": `read`, `written`.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec's HTTP file system reports any failure as "not found"
        if cause is not None and not isinstance(cause, FileNotFoundError):
            raise DatasetError(f"{url}: cannot be {done}: {type(cause).__name__}{_reason(cause)}") from None
        if done != "read":
            raise DatasetError(f"{url}: cannot be {done}: no such bucket or folder{_reason(error)}") from None
        raise DatasetError(f"{url}: no such file; expected a file, a folder or a glob") from None
    except PermissionError as error:
        raise DatasetError(f"{url}: no permission{_reason(error)}; credentials are read from the store's own configuration") from None
    except ImportError as error:
        raise UserError(f"{url}: the store needs a package that is not installed: {_brief(error)}") from None
    except Exception as error:  # the libraries of stores have dozens of exception types of their own
        raise DatasetError(f"{url}: cannot be {done}: {type(error).__name__}{_reason(error)}") from None


def _reason(error: BaseException) -> str:
    return f": {_brief(error)}" if str(error).strip() else ""


def _brief(error: BaseException) -> str:
    return without_secrets(" ".join(str(error).split()))[:200]


class StoreStream:
    """An open file of a store; failures, and an end before the expected size, are raised as one-line errors."""

    def __init__(self, url: str, file: Any, size: int | None):
        self._url, self._file, self._left = url, file, size

    def read(self, count: int) -> bytes:
        """Read at most `count` bytes; the result is empty at the end."""
        with one_line(self._url):
            content = self._file.read(count)
        if self._left is not None:
            self._left -= len(content)
            if not content and count and self._left > 0:
                raise DatasetError(f"{self._url}: ended {self._left:,} bytes before its size; the file may have been replaced meanwhile: run again")
        return content

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "StoreStream":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class StoreFolder:
    """A folder of a store, whose files are named by their paths below it (`train/label.bin`).

    Args:
        url: the URL of the folder.

    Raises:
        DatasetError: the store fails, or the URL is that of a local folder.
        UserError: fsspec, or a package that it needs for the store, is not installed.
    """

    def __init__(self, url: str):
        self._system, path = open_store(url, "reading from and writing to")
        self._path, self._url = path.rstrip("/"), shown(url).rstrip("/")
        if "file" in protocols(self._system):
            raise DatasetError(f"{self._url}: is a local folder; give its path instead of a URL")

    def __str__(self) -> str:
        return self._url

    def sizes(self) -> dict[str, int]:
        """Return the files and their sizes in bytes, without hidden files; empty if the folder does not exist."""
        if not self._has(self._path):  # checked first, because fsspec's find ignores a store that does not answer
            return {}
        with one_line(self._url):
            found = self._system.find(self._path, detail=True)
        names = {entry["name"].removeprefix(self._path).lstrip("/"): entry.get("size") or 0 for entry in found.values()}
        return {name: size for name, size in sorted(names.items()) if name and not any(part.startswith(".") for part in name.split("/"))}

    def has(self, name: str) -> bool:
        """Return whether a file exists. Raises DatasetError if the store fails."""
        return self._has(self._full(name))

    def _has(self, path: str) -> bool:
        with one_line(self._url):
            self._system.invalidate_cache()  # fsspec caches listings, and other runs may write there
            try:
                self._system.info(path)
            except FileNotFoundError as error:
                if error.__cause__ is not None and not isinstance(error.__cause__, FileNotFoundError):
                    raise
                return False
            return True

    def open(self, name: str, size: int) -> StoreStream:
        """Open a file that is expected to have `size` bytes. Raises DatasetError if the store fails."""
        with one_line(f"{self._url}/{name}"):
            return StoreStream(f"{self._url}/{name}", self._system.open(self._full(name), "rb"), size)

    def put(self, source: Path, name: str, advance: Callable[[int], object]) -> None:
        """Upload a local file, replacing an existing one.

        Args:
            source: the local file.
            name: the name of the file in the store.
            advance: called with the number of bytes uploaded since the last call.

        Raises:
            DatasetError: the store fails, or the uploaded file has another size.
            OSError: the file cannot be read.
        """
        from fsspec.callbacks import Callback

        size, reported = source.stat().st_size, 0

        def hook(size: int | None, value: int, **_: object) -> None:
            nonlocal reported
            advance(value - reported)
            reported = value

        source.open("rb").close()  # a local file that cannot be read is an OSError, not a failure of the store
        with one_line(f"{self._url}/{name}", "written"):
            self._system.put_file(str(source), self._full(name), callback=Callback(hooks={"bar": hook}))
            self._system.invalidate_cache()
            found = self._system.info(self._full(name))["size"]
        if found != size:
            raise DatasetError(f"{self._url}/{name}: has {found:,} bytes in the store, expected {size:,}; another run may have written it")
        advance(size - reported)

    def remove(self, name: str) -> None:
        """Remove a file. Raises DatasetError if the store fails."""
        with one_line(f"{self._url}/{name}", "removed"):
            self._system.rm_file(self._full(name))

    def try_writing(self) -> None:
        """Write, read back and remove a small file. Raises DatasetError if the store fails."""
        name, content = f"{_TOKEN}{uuid.uuid4().hex}", uuid.uuid4().hex.encode()
        with tempfile.NamedTemporaryFile() as token:
            token.write(content)
            token.flush()
            try:
                self.put(Path(token.name), name, lambda count: None)
                with self.open(name, len(content)) as stream:
                    found = stream.read(len(content) + 1)
            except BaseException:
                with suppress(Exception):
                    self._system.rm_file(self._full(name))
                raise
        self.remove(name)
        if found != content:
            raise DatasetError(f"{self._url}: a file just written does not read back unchanged; expected a store that shows written files at once")

    def _full(self, name: str) -> str:
        return posixpath.join(self._path, name)
