"""Object stores (`s3://…`, `gs://…`: whatever fsspec knows): opening one, reading its files, and a folder of one that a dataset is put to."""

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


def opened(url: str, doing: str = "reading from") -> tuple[Any, str]:
    """The file system of fsspec that a URL is in, and its path there.

    Raises:
        DatasetError: the store refuses.
        UserError: fsspec, or what it needs for the store, is not installed.
    """
    try:
        import fsspec  # only where a URL is used: it is an optional dependency
    except ImportError:
        raise UserError(f"{shown(url)}: {doing} object stores needs fsspec, which is not installed: pip install fsspec") from None
    with one_line(shown(url)):
        return fsspec.core.url_to_fs(url)


def protocols(system: Any) -> tuple[str, ...]:
    """The names of a file system's kind: `file`, `s3`."""
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def hidden(name: str) -> bool:
    """Whether a name below a folder is none of its files': `_SUCCESS`, `.crc`."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


@contextmanager
def one_line(url: str, done: str = "read") -> Iterator[None]:
    """What a store's library raises, of whatever kind, as one line with the URL.

    Args:
        url: as it is shown.
        done: what cannot be done: `read`, `written`.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec's own http says "not found" of any failure
        if cause is not None and not isinstance(cause, FileNotFoundError):
            raise DatasetError(f"{url}: cannot be {done}: {type(cause).__name__}{_reason(cause)}") from None
        if done != "read":
            raise DatasetError(f"{url}: cannot be {done}: no such bucket or folder{_reason(error)}") from None
        raise DatasetError(f"{url}: no such file; expected a file, a folder or a glob") from None
    except PermissionError as error:
        raise DatasetError(f"{url}: no permission{_reason(error)}; the store's own configuration has the credentials") from None
    except ImportError as error:
        raise UserError(f"{url}: the store needs a package that is not installed: {_brief(error)}") from None
    except Exception as error:  # libraries of stores have dozens of kinds of their own
        raise DatasetError(f"{url}: cannot be {done}: {type(error).__name__}{_reason(error)}") from None


def _reason(error: BaseException) -> str:
    return f": {_brief(error)}" if str(error).strip() else ""


def _brief(error: BaseException) -> str:
    return without_secrets(" ".join(str(error).split()))[:200]


class StoreStream:
    """An open file of a store; what goes wrong is one line, and so is an end before its size."""

    def __init__(self, url: str, file: Any, size: int | None):
        self._url, self._file, self._left = url, file, size

    def read(self, count: int) -> bytes:
        """At most so many bytes; none at the end."""
        with one_line(self._url):
            content = self._file.read(count)
        if self._left is not None:
            self._left -= len(content)
            if not content and count and self._left > 0:
                raise DatasetError(f"{self._url}: ended {self._left:,} bytes before its size; was it replaced meanwhile? Run again")
        return content

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def __enter__(self) -> "StoreStream":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class StoreFolder:
    """A folder of a store, with the files in it by their names below it (`train/label.bin`).

    Args:
        url: of the folder.

    Raises:
        DatasetError: the store refuses, or the URL is that of a local folder.
        UserError: fsspec, or what it needs for the store, is not installed.
    """

    def __init__(self, url: str):
        self._system, path = opened(url, "reading from and writing to")
        self._path, self._url = path.rstrip("/"), shown(url).rstrip("/")
        if "file" in protocols(self._system):
            raise DatasetError(f"{self._url}: is a local folder; give its path")

    def __str__(self) -> str:
        return self._url

    def sizes(self) -> dict[str, int]:
        """The files and their bytes, but those whose names begin with a dot; nothing where the folder is not there."""
        if not self._has(self._path):  # asked first: what finds files passes over a store that does not answer
            return {}
        with one_line(self._url):
            found = self._system.find(self._path, detail=True)
        names = {entry["name"].removeprefix(self._path).lstrip("/"): entry.get("size") or 0 for entry in found.values()}
        return {name: size for name, size in sorted(names.items()) if name and not any(part.startswith(".") for part in name.split("/"))}

    def has(self, name: str) -> bool:
        """Whether a file is there. Raises DatasetError where the store refuses."""
        return self._has(self._full(name))

    def _has(self, path: str) -> bool:
        with one_line(self._url):
            self._system.invalidate_cache()
            try:
                self._system.info(path)
            except FileNotFoundError as error:
                if error.__cause__ is not None and not isinstance(error.__cause__, FileNotFoundError):
                    raise
                return False
            return True

    def open(self, name: str, size: int) -> StoreStream:
        """A file of so many bytes. Raises DatasetError where the store refuses."""
        with one_line(f"{self._url}/{name}"):
            return StoreStream(f"{self._url}/{name}", self._system.open(self._full(name), "rb"), size)

    def put(self, source: Path, name: str, advance: Callable[[int], object]) -> None:
        """Put a local file, in place of one that is there.

        Args:
            source: the file.
            name: its name in the store.
            advance: called with numbers of bytes that were put.

        Raises:
            DatasetError: the store refuses, or has another size afterwards.
            OSError: the file cannot be read.
        """
        from fsspec.callbacks import Callback

        size, said = source.stat().st_size, 0

        def hook(size: int | None, value: int, **_: object) -> None:
            nonlocal said
            advance(value - said)
            said = value

        source.open("rb").close()
        with one_line(f"{self._url}/{name}", "written"):
            self._system.put_file(str(source), self._full(name), callback=Callback(hooks={"bar": hook}))
            self._system.invalidate_cache()
            found = self._system.info(self._full(name))["size"]
        if found != size:
            raise DatasetError(f"{self._url}/{name}: has {found:,} bytes in the store, expected {size:,}; did another run write it?")
        advance(size - said)

    def remove(self, name: str) -> None:
        """Remove a file. Raises DatasetError where the store refuses."""
        with one_line(f"{self._url}/{name}", "removed"):
            self._system.rm_file(self._full(name))

    def try_writing(self) -> None:
        """Write, read back and remove a small file. Raises DatasetError where the store refuses."""
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
            raise DatasetError(f"{self._url}: does not give back what is written to it; expected a store that does at once")

    def _full(self, name: str) -> str:
        return posixpath.join(self._path, name)
