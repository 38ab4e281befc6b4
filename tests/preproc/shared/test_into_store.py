"""Datasets in object stores: put there by preprocessing, fetched back, and either complete or absent whatever fails on the way."""

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import dlrm
from dataloading import fetch, put
from dataloading.features import DatasetError
from preproc.criteo import command as criteo
from preproc.shared import into_store
from preproc.table import command as table
from tests.helpers.folders import tree
from tests.preproc.conftest import make_line
from tests.preproc.reading.hdfs_server import hdfs

URL = "memory://bucket/a set"
ROWS = "s,n,y\n" + "".join(f"v{i % 7},{i}.5,{i % 2}\n" for i in range(60))


@pytest.fixture
def files():
    """Yield a function that returns the files of the store by their names below `URL`; clear the store after the test."""
    system = fsspec.filesystem("memory")
    yield lambda: {name.removeprefix("/bucket/a set/"): bytes(system.cat_file(name)) for name in system.find("/bucket")}
    system.store.clear()  # not by the store's methods, which a test may have replaced
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def words(tmp_path) -> dict:
    """Return valid command lines of both commands, without --dst."""
    for day in ("day_0", "day_1"):
        (tmp_path / day).write_text("".join(make_line(str(row % 2), {0: row}, {0: f"{row % 9:x}"}) + "\n" for row in range(50)))
    (tmp_path / "rows.csv").write_text(ROWS)
    logs = ("--train", tmp_path / "day_0", "--test", tmp_path / "day_1", "--frequency_threshold", 0)
    return {criteo: logs, table: ("--train", tmp_path / "rows.csv", "--label", "y", "--test_fraction", 0.3, "--keep", "s")}


def error(call, main, *flags) -> str:
    """Return the last line of a command that fails."""
    code, out, errors = call(main, *flags)
    assert (code, out) == (1, ""), errors
    return errors.splitlines()[-1].removeprefix("command: error: ")


def unexpected(*_) -> str:
    """Fail: replaces the function that makes a dataset where none may be made."""
    raise AssertionError("it is made")


def left(tmp_path: Path) -> list[str]:
    """Return the files that a run left besides its input."""
    return sorted(path.name for path in tmp_path.iterdir() if path.name not in ("day_0", "day_1", "rows.csv", "local", "back"))


def failing(monkeypatch, method: str, name: str, fault: BaseException, after: int = 0) -> None:
    """Let a method of the store raise `fault` for names that contain `name`, after `after` successful calls."""
    honest, calls = getattr(MemoryFileSystem, method), []

    def fails(self, *words, **options):
        if any(name in str(word) for word in words):
            calls.append(words)
            if len(calls) > after:
                raise fault
        return honest(self, *words, **options)

    monkeypatch.setattr(MemoryFileSystem, method, fails)


@pytest.mark.parametrize("command", [criteo, table])
def test_upload_and_fetch_give_the_same_dataset(tmp_path, call, files, words, command):
    assert call(command.main, *words[command], "--dst", tmp_path / "local")[0] == 0
    code, out, errors = call(command.main, *words[command], "--dst", f"{URL}/", "--staging", tmp_path / "staging" / "deep")
    assert code == 0, errors
    assert out.startswith(f"{URL}: train "), out
    assert files() == tree(tmp_path / "local") and left(tmp_path) == []
    code, out, errors = call(fetch.main, URL, tmp_path / "back")
    assert code == 0, errors
    assert tree(tmp_path / "back") == tree(tmp_path / "local") and out.startswith(f"{tmp_path / 'back'}: {len(files())} files, ")


def test_over_http(tmp_path, call, words):
    """A WebHDFS server is reached through sockets; one dataset replaces another."""
    pytest.importorskip("requests")
    assert call(table.main, *words[table], "--dst", tmp_path / "local")[0] == 0
    with hdfs() as (root, stored):
        url, flags = f"{root}/user/a set", ("--staging", tmp_path / "staging")
        assert call(table.main, *words[table], "--dst", url, *flags, "--seed", 5, "--ignore", "n")[0] == 0
        assert error(call, table.main, *words[table], "--dst", url, *flags).startswith(f"{url} holds a dataset already")
        code, _, errors = call(table.main, *words[table], "--dst", url, *flags, "--overwrite")
        assert code == 0, errors
        assert {name.removeprefix("/user/a set/"): content for name, content in stored.items()} == tree(tmp_path / "local")
        assert call(fetch.main, url, tmp_path / "back")[0] == 0
        assert tree(tmp_path / "back") == tree(tmp_path / "local") and left(tmp_path) == []
    said = error(call, fetch.main, url, tmp_path / "again")
    assert said.startswith(f"{url}: cannot be read: ConnectionError") and not (tmp_path / "again").exists()


def test_a_file_url_is_a_local_folder(tmp_path, call, words):
    assert call(table.main, *words[table], "--dst", f"file://{tmp_path / 'local'}")[0] == 0
    assert (tmp_path / "local" / "feature_spec.yaml").exists()


# Refusals before the dataset is made --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [criteo, table])
def test_conflicts_are_refused_before_the_dataset_is_made(tmp_path, call, files, words, command, monkeypatch):
    staging = ("--staging", tmp_path / "staging")
    monkeypatch.setattr(command, "make_dataset", unexpected)  # fails if a dataset is made
    message = f"--dst {URL}: --staging is missing; give a folder on a disk with enough space, in which the dataset is made before its upload"
    assert error(call, command.main, *words[command], "--dst", URL) == message
    fsspec.filesystem("memory").pipe_file("/bucket/a set/train/label.bin", b"1")
    message = f"{URL} holds files already (train/label.bin); expected an empty folder; choose another, or pass --overwrite"
    assert error(call, command.main, *words[command], "--dst", URL, *staging) == message
    fsspec.filesystem("memory").pipe_file("/bucket/a set/feature_spec.yaml", b"")
    message = f"{URL} holds a dataset already (feature_spec.yaml); choose another folder or pass --overwrite"
    assert error(call, command.main, *words[command], "--dst", URL, *staging) == message
    assert error(call, command.main, *words[command], "--dst", "nowhere://a/b", *staging).startswith("nowhere://a/b: cannot be read: ValueError")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    message = "s3://bucket/set: reading from and writing to object stores needs fsspec, which is not installed: pip install fsspec"
    assert error(call, command.main, *words[command], "--dst", "s3://me:secret@bucket/set", *staging) == message
    assert left(tmp_path) == [] and len(files()) == 2


@pytest.mark.parametrize(
    ("method", "fault", "message"),
    [
        ("put_file", PermissionError("Access Denied"), "no permission: Access Denied; credentials are read from the store's own configuration"),
        ("put_file", FileNotFoundError("bucket"), "cannot be written: no such bucket or folder: bucket"),
        ("put_file", NotImplementedError(), "cannot be written: NotImplementedError"),
        ("_open", OSError("gone"), "cannot be "),
        ("rm_file", PermissionError("no delete"), "no permission: no delete"),
    ],
)
def test_a_store_that_refuses_a_token(tmp_path, call, files, words, monkeypatch, method, fault, message):
    monkeypatch.setattr(table, "make_dataset", unexpected)
    failing(monkeypatch, method, ".dlrm-token-", fault)
    said = error(call, table.main, *words[table], "--dst", URL, "--staging", tmp_path / "staging")
    assert said.startswith(f"{URL}/.dlrm-token-") and message in said, said
    assert left(tmp_path) == []


# Failed uploads -----------------------------------------------------------------------------------------------------------


def test_failed_upload_is_resumed(tmp_path, call, files, words, monkeypatch):
    assert call(table.main, *words[table], "--dst", tmp_path / "local")[0] == 0
    flags = (*words[table], "--dst", URL, "--staging", tmp_path / "staging")
    with monkeypatch.context() as patch:
        failing(patch, "put_file", "train/s.bin", ConnectionError("reset"))
        said = error(call, table.main, *flags)
        (folder,) = (tmp_path / "staging").iterdir()
        whole = f"the complete dataset is in {folder}: upload it by the same command with --resume"
        assert said == f"{URL}/train/s.bin: cannot be written: ConnectionError: reset; the uploaded files were removed; {whole}"
        assert files() == {} and tree(tmp_path / "local").items() <= tree(folder).items()
        assert error(call, table.main, *flags).startswith(f"{folder} holds a dataset that an earlier run made for {URL}; ")
        said = error(call, table.main, *flags, "--resume")
    assert f"; the uploaded files ({len(files())}) are kept for a run with --resume; {whole}" in said
    assert "feature_spec.yaml" not in files() and files()
    puts, honest = [], MemoryFileSystem.put_file
    monkeypatch.setattr(table, "make_dataset", unexpected)  # fails if a dataset is made again
    monkeypatch.setattr(MemoryFileSystem, "put_file", lambda self, *words, **more: puts.append(words[1]) or honest(self, *words, **more))
    before = files()
    code, out, errors = call(table.main, *flags, "--resume")
    assert code == 0 and f"--resume: uploads the dataset that an earlier run made in {folder}" in errors and out == f"{URL}: made by an earlier run\n"
    assert files() == tree(tmp_path / "local") and left(tmp_path) == []
    assert puts[-1].endswith("feature_spec.yaml") and not any(name in path for name in before for path in puts)


def test_another_run_does_not_upload_the_dataset_of_this_one(tmp_path, call, files, words, monkeypatch):
    flags = (*words[table], "--dst", URL, "--staging", tmp_path / "staging", "--resume")
    with monkeypatch.context() as patch:
        failing(patch, "put_file", "train/s.bin", ConnectionError("reset"))
        error(call, table.main, *flags)
    code, _, errors = call(table.main, *flags, "--seed", 7, "--overwrite")
    assert code == 0 and "is not uploaded, because it was made by a run with another --seed (0, now 7)" in errors, errors
    assert call(table.main, *words[table], "--seed", 7, "--dst", tmp_path / "local")[0] == 0
    assert files() == tree(tmp_path / "local") and left(tmp_path) == []


@pytest.mark.parametrize("resume", [False, True])
def test_an_interruption(tmp_path, call, files, words, monkeypatch, resume):
    failing(monkeypatch, "put_file", "train/s.bin", KeyboardInterrupt())
    code, _, errors = call(table.main, *words[table], "--dst", URL, "--staging", tmp_path / "staging", *(["--resume"] if resume else []))
    assert (code, errors.splitlines()[-1]) == (130, "command: interrupted")
    assert bool(files()) is resume and left(tmp_path) == (["staging"] if resume else []) and "feature_spec.yaml" not in files()


def test_two_runs_at_once(tmp_path, call, files, words, monkeypatch):
    """The second run is refused while the first makes its dataset; afterwards no files of either are left."""
    make, said = table.make_dataset, []
    flags = (*words[table], "--dst", URL, "--staging", tmp_path / "staging")

    def meanwhile(*arguments) -> str:
        monkeypatch.setattr(table, "make_dataset", unexpected)
        said.append(error(call, table.main, *flags))
        return make(*arguments)

    monkeypatch.setattr(table, "make_dataset", meanwhile)
    code, _, errors = call(table.main, *flags)
    assert code == 0, errors
    assert "another run is making the dataset for this --dst; wait for it" in said[0] and left(tmp_path) == [] and len(files()) > 8


def test_incomplete_file_in_the_store_is_an_error(tmp_path, call, files, words, monkeypatch):
    info = MemoryFileSystem.info
    short = lambda self, path, **more: (found := info(self, path, **more)) | ({"size": found["size"] - 1} if "numerical" in path else {})  # noqa: E731
    monkeypatch.setattr(MemoryFileSystem, "info", short)
    said = error(call, table.main, *words[table], "--dst", URL, "--staging", tmp_path / "staging")
    assert "numerical.bin: has " in said and "in the store, expected" in said and files() == {}


def test_overwriting(tmp_path, call, files, words, monkeypatch):
    """Files that only the older dataset had are removed, and the folder is no dataset while files are put."""
    assert call(criteo.main, *words[criteo], "--dst", tmp_path / "older")[0] == 0
    assert call(put.main, tmp_path / "older", URL)[0] == 0
    assert call(table.main, *words[table], "--dst", tmp_path / "local")[0] == 0
    seen, honest = [], MemoryFileSystem.put_file

    def watched(self, *words, **more):
        seen.append("feature_spec.yaml" in files())
        honest(self, *words, **more)

    monkeypatch.setattr(MemoryFileSystem, "put_file", watched)
    flags = (*words[table], "--dst", URL, "--staging", tmp_path / "staging", "--overwrite")
    code, _, errors = call(table.main, *flags)
    assert code == 0, errors
    assert files() == tree(tmp_path / "local")
    assert seen == [True] + [False] * len(files())  # the first file put is the token
    failing(monkeypatch, "put_file", "train/s.bin", ConnectionError("reset"))
    said = error(call, table.main, *flags)
    assert "; the uploaded files were removed, and the older dataset is no longer complete; the complete dataset is in " in said
    assert "feature_spec.yaml" not in files()


# The commands put and fetch -----------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path, call, files, words) -> Path:
    """Make a dataset, and put it into the store too; return the local folder."""
    assert call(table.main, *words[table], "--dst", tmp_path / "local")[0] == 0
    (tmp_path / "local" / "checkpoints" / "step_1").mkdir(parents=True)
    (tmp_path / "local" / "checkpoints" / "step_1" / "weights").write_text("not of the dataset")
    assert call(put.main, tmp_path / "local", URL)[0] == 0
    assert not any("checkpoints" in name for name in files()) and len(files()) > 8
    shutil.rmtree(tmp_path / "local" / "checkpoints")
    return tmp_path / "local"


def test_put_refuses(tmp_path, call, files, stored):
    assert error(call, put.main, stored, URL).startswith(f"{URL} holds a dataset already")
    assert error(call, put.main, stored, tmp_path / "x").startswith(f"{tmp_path / 'x'}: expected the URL of a folder in a store")
    assert error(call, put.main, stored, f"file://{tmp_path}/x") == f"file://{tmp_path}/x: is a local folder; give its path instead of a URL"
    (stored / "train" / "label.bin").write_bytes(b"")
    assert f"{stored / 'train' / 'label.bin'}" in error(call, put.main, stored, "memory://bucket/other")
    assert error(call, put.main, tmp_path / "no", URL).startswith(f"{tmp_path / 'no' / 'feature_spec.yaml'}: no such file")


@pytest.mark.parametrize("kind", ["no dataset", "nothing", "cut short", "missing", "held", "no room", "damaged", "lost"])
def test_fetch_refuses(tmp_path, call, files, stored, monkeypatch, kind):
    system, folder, url = fsspec.filesystem("memory"), tmp_path / "back", URL
    if kind == "no dataset":
        system.rm("/bucket/a set/feature_spec.yaml")
        message = f"{URL}: holds no feature_spec.yaml; expected a complete dataset"
    elif kind == "nothing":
        url, message = "memory://bucket/else", "memory://bucket/else: is empty or missing: found no feature_spec.yaml; expected a complete dataset"
    elif kind == "cut short":
        system.pipe_file("/bucket/a set/train/numerical.bin", b"123")
        message = f"{URL}: not a complete dataset: "
    elif kind == "missing":
        system.rm("/bucket/a set/test/label.bin")
        message = f"{URL}: not a complete dataset: "
    elif kind == "held":
        folder.mkdir()
        (folder / "feature_spec.yaml").write_text("")
        message = f"{folder} holds a dataset already (feature_spec.yaml); choose another folder or pass --overwrite"
    elif kind == "no room":
        monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
        message = f"{folder}: 0.0 GB are free, {URL} has 0.0 GB; choose another folder"
    elif kind == "damaged":
        system.pipe_file("/bucket/a set/feature_spec.yaml", b"{")
        message = ""
    else:
        failing(monkeypatch, "_open", "train/s.bin", ConnectionError("reset"))
        message = f"{URL}/train/s.bin: cannot be read: ConnectionError: reset"
    said = error(call, fetch.main, url, folder)
    assert said.startswith(message) and "Traceback" not in said
    assert folder.exists() == (kind == "held")


def test_fetch_over_another_dataset_takes_only_files_of_the_dataset(tmp_path, call, files, stored, words):
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/a set/checkpoints/step_1/w.bin", b"123")
    assert call(criteo.main, *words[criteo], "--dst", tmp_path / "back")[0] == 0
    assert call(fetch.main, f"{URL}/", tmp_path / "back", "--overwrite")[0] == 0
    found = tree(tmp_path / "back")
    assert tree(stored).items() <= found.items() and not any("checkpoints" in name for name in found)
    assert json.dumps(sorted(name for name in found if name.startswith("vocabulary"))) == '["vocabulary/s.parquet"]'


def test_training_names_the_command_that_fetches(call, monkeypatch):
    def main(*_):
        return dlrm.main()

    code, _, errors = call(main, "--dataset_path", "s3://me:secret@bucket/set", "--cpu")
    line = "s3://bucket/set: datasets are read from local files; fetch this one with python -m dataloading.fetch s3://bucket/set FOLDER"
    assert code and line in errors and "secret" not in errors


def test_lock_file_that_its_holder_has_just_removed_is_no_lock(tmp_path, monkeypatch):
    path, taken = tmp_path / ".d.lock", []

    def flock(descriptor, operation):
        if not taken:
            path.unlink()
        taken.append(descriptor)
        return original(descriptor, operation)

    original = fcntl.flock
    monkeypatch.setattr(into_store.fcntl, "flock", flock)
    descriptor = into_store.locked(path, tmp_path / "d")
    try:
        assert len(taken) == 2
        with pytest.raises(DatasetError, match="another run is making the dataset"):
            into_store.locked(path, tmp_path / "d")
    finally:
        os.close(descriptor)
