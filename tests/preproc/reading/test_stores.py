"""Files in object stores give the same dataset as local ones; a failure of a store is one line with the URL."""

import gzip
import sys
from pathlib import Path

import fsspec
import polars as pl
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from preproc.criteo import command as criteo
from preproc.reading import stores
from preproc.table import command as table
from tests.helpers.folders import tree, write

ROWS = "s,n,y\n" + "".join(f"v{i % 7},{i}.5,{i % 2}\n" for i in range(60))
FLAGS = ("--label", "y", "--test_fraction", 0.3)


def frame() -> pl.DataFrame:
    return pl.DataFrame({"s": [f"v{i % 7}" for i in range(60)], "n": [i + 0.5 for i in range(60)], "y": [i % 2 for i in range(60)]})


def parquet(path: Path) -> None:
    frame().write_parquet(path)


def arrow_stream(path: Path) -> None:
    frame().write_ipc_stream(path)


FORMS = {
    "csv": lambda path: path.write_text(ROWS),
    "csv.gz": lambda path: path.write_bytes(gzip.compress(ROWS.encode())),
    "jsonl": lambda path: frame().write_ndjson(path),
    "parquet": parquet,
    "arrow": lambda path: frame().write_ipc(path),
    "stream": arrow_stream,
}


@pytest.fixture
def store():
    """Yield a function that puts bytes under memory://; clear the store after the test."""
    system = fsspec.filesystem("memory")

    def put(name: str, content: bytes) -> str:
        system.pipe_file(f"/{name}", content)
        return f"memory://{name}"

    yield put
    for entry in list(system.store):
        system.rm(entry)


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_file_gives_the_bytes_of_the_local_one(tmp_path, store, call, form):
    local = tmp_path / f"rows.{form}"
    FORMS[form](local)
    url = store(f"day/rows.{form}", local.read_bytes())
    assert call(table.main, "--train", local, "--dst", tmp_path / "local", *FLAGS)[0] == 0
    code, _, errors = call(table.main, "--train", url, "--dst", tmp_path / "stored", *FLAGS)
    assert code == 0, errors
    assert tree(tmp_path / "stored") == tree(tmp_path / "local")


@pytest.mark.parametrize("url", ["memory://days/", "memory://days", "memory://days/*.csv", "memory://days/[12].csv"])
def test_folders_and_globs_in_the_order_of_names(tmp_path, store, call, url):
    paths = [write(tmp_path / f"{i}.csv", f"s,y\n{i},1\nx,0\n") for i in (1, 2)]
    for path in reversed(paths):
        store(f"days/{path.name}", path.read_bytes())
    store("days/_SUCCESS", b"")
    test = write(tmp_path / "test.csv", "s,y\nx,1\n")
    flags = ("--test", test, "--label", "y", "--categorical", "s")
    assert call(table.main, "--train", *paths, "--dst", tmp_path / "local", *flags)[0] == 0
    if url.endswith(("s", "/")):  # hidden files of a folder are ignored
        store("days/.crc", b"?")
    code, _, errors = call(table.main, "--train", url, "--dst", tmp_path / "stored", *flags)
    assert code == 0, errors
    assert tree(tmp_path / "stored") == tree(tmp_path / "local")


def test_raw_criteo_logs_from_a_store(tmp_path, store, call):
    day = "".join("1" + f"\t{i}" * 13 + f"\t{i % 9:x}" * 26 + "\n" for i in range(50)).encode()
    local = write(tmp_path / "day_0", day)
    url = store("logs/day_0", gzip.compress(day))
    for path, dst in ((local, "local"), (url, "stored")):
        assert call(criteo.main, "--train", path, "--test", path, "--dst", tmp_path / dst, "--frequency_threshold", 0)[0] == 0
    assert tree(tmp_path / "stored") == tree(tmp_path / "local")


def test_a_file_url_is_a_local_file(tmp_path, call):
    path = write(tmp_path / "rows.csv", ROWS)
    assert stores.stored_files(f"file://{path}") == [path]
    code, _, errors = call(table.main, "--train", f"file://{path}", "--dst", tmp_path / "out", *FLAGS)
    assert code == 0, errors


def said(call, tmp_path, *words) -> str:
    code, out, errors = call(table.main, *words, "--dst", tmp_path / "out", *FLAGS)
    assert (code, out) == (1, "") and not (tmp_path / "out").exists()
    (line,) = errors.splitlines()
    return line.removeprefix("command: error: ")


def test_missing_file_error_names_the_url(tmp_path, call, store):
    assert said(call, tmp_path, "--train", "memory://no/rows.csv") == "memory://no/rows.csv: no such file; expected a file, a folder or a glob"
    assert said(call, tmp_path, "--train", "memory://no/*.csv") == "memory://no/*.csv: matches no file"
    assert said(call, tmp_path, "--train", "nowhere://no/rows.csv").startswith(
        "nowhere://no/rows.csv: cannot be read: ValueError: Protocol not known"
    )


def test_missing_fsspec_error_says_what_to_install(tmp_path, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    expected = "s3://day.csv: reading from object stores needs fsspec, which is not installed: pip install fsspec"
    assert said(call, tmp_path, "--train", "s3://day.csv") == expected


def not_found(cause: Exception) -> FileNotFoundError:
    """Make an error like those of fsspec's http, which raises FileNotFoundError for any failure."""
    error = FileNotFoundError("rows.csv")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError("Access Denied"), "no permission: Access Denied; credentials are read from the store's own configuration"),
        (ConnectionError("reset\nby peer"), "cannot be read: ConnectionError: reset by peer"),
        (RuntimeError(), "cannot be read: RuntimeError"),
        (not_found(ConnectionError("refused")), "cannot be read: ConnectionError: refused"),
        (not_found(FileNotFoundError("404")), "no such file; expected a file, a folder or a glob"),
    ],
)
@pytest.mark.parametrize("when", ["info", "_open"])
def test_refusal_of_the_store_is_a_one_line_error(tmp_path, call, store, monkeypatch, error, expected, when):
    def refuse(*words, **options):
        raise error from error.__cause__

    url = store("rows.csv", ROWS.encode())
    monkeypatch.setattr(MemoryFileSystem, when, refuse)
    assert said(call, tmp_path, "--train", url) == f"{url if when == 'info' else 'memory:///rows.csv'}: {expected}"


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_a_file_that_ends_early_is_an_error(tmp_path, call, store, monkeypatch, name):
    FORMS[name.partition(".")[2]](tmp_path / name)
    content = (tmp_path / name).read_bytes()
    url, info = store(name, content), MemoryFileSystem.info
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *words, **options: info(*words, **options) | {"size": len(content) + 5})
    assert said(call, tmp_path, "--train", url).startswith(f"memory:///{name}: ended 5 bytes before its size")


def test_passwords_and_signatures_are_not_shown(tmp_path, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    line = said(call, tmp_path, "--train", "https://me:secret@host/rows.csv?X-Amz-Signature=secret")
    assert line.startswith("https://host/rows.csv: ") and "secret" not in line
