"""Mistakes of a user: an error of one line, exit code 1, and no files left at the destination."""

import contextlib
import gzip
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import zstandard

from dataloading.features import DatasetError
from preproc.criteo import command as criteo
from tests.children import child, found, wait_for
from tests.helpers.commands import do, help_of, run, run_limited
from tests.helpers.errors import refused
from utils.errors import UserError

GOOD = "1" + "\t5" * 13 + "\tab" * 26 + "\n"


def flags(folder: Path, train: bytes = GOOD.encode(), test: bytes = GOOD.encode()) -> list[str]:
    (folder / "day_0").write_bytes(train)
    (folder / "day_1").write_bytes(test)
    return [*map(str, ["--train", folder / "day_0", "--test", folder / "day_1", "--dst", folder / "out", "--frequency_threshold", 0])]


def test_malformed_line_in_a_child_process(tmp_path):
    result = run("-m", "preproc.criteo", *flags(tmp_path, train=(GOOD * 2 + GOOD.replace("ab", "xy", 1)).encode()))
    assert (result.returncode, result.stdout) == (1, "")
    fault = "line 3: field 15 (cat_0) is 'xy', expected up to 8 hexadecimal digits, or nothing; --bad_lines skip leaves such lines out"
    assert result.stderr == f"preproc.criteo: error: {tmp_path / 'day_0'}: {fault}\n"
    assert not (tmp_path / "out").exists()


def test_successful_run_in_a_child_process(tmp_path):
    result = run("-m", "preproc.criteo", *flags(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")  # no progress bar, because standard error is no terminal
    assert result.stdout.startswith(f"{tmp_path / 'out'}: train 1 rows") and result.stdout.count("\n") == 1


def test_help_names_every_flag_and_loads_no_tensorflow():
    said = help_of("preproc.criteo")
    for flag in ("train", "test", "dst", "frequency_threshold", "numerical_transform", "bad_lines", "overwrite", "block_bytes"):
        assert f"--{flag}" in said


@pytest.mark.parametrize("value", ["-1", "x", "1.5", ""])
def test_threshold_must_be_a_whole_number(tmp_path, value):
    with pytest.raises(UserError) as ended:
        do(criteo, *flags(tmp_path), f"--frequency_threshold={value}")
    assert f"--frequency_threshold: expected a whole number of at least 0, found {value!r}" in str(ended.value)


def fails(arguments: list[str], message: str, folder: Path) -> None:
    with refused(message, DatasetError):
        do(criteo, *arguments)
    assert not (folder / "out").exists()


def test_missing_log(tmp_path):
    arguments = flags(tmp_path)
    (tmp_path / "day_1").unlink()
    fails(arguments, f"{tmp_path / 'day_1'}: no such file; expected a click log", tmp_path)
    (tmp_path / "day_1").mkdir()
    fails(arguments, f"{tmp_path / 'day_1'}: not a file; expected a click log", tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\r\n", gzip.compress(b"", mtime=0), zstandard.compress(b"")])
@pytest.mark.parametrize("split", ["train", "test"])
def test_empty_log(tmp_path, content, split):
    name = {"train": "day_0", "test": "day_1"}[split]
    fails(flags(tmp_path, **{split: content}), f"{tmp_path / name}: holds no lines; expected a click log of 40 tab-separated fields a line", tmp_path)


def test_split_of_only_bad_lines_is_an_error(tmp_path, capsys):
    arguments = [*flags(tmp_path, test=b"a\nb\n"), "--bad_lines", "skip"]
    fails(arguments, "the test split holds no rows: every line of day_1 is malformed", tmp_path)
    assert "day_1: bad lines skipped: 2, the first: line 1: 1 fields, expected 40" in capsys.readouterr().err


TEXT = GOOD.encode() + os.urandom(3000).hex().encode()  # random digits at the end compress badly, so that a cut of the file falls inside them


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(TEXT, mtime=0)[:-9], "truncated gzip file"),
        (gzip.compress(TEXT, mtime=0)[:5], "truncated gzip file"),
        (gzip.compress(TEXT, mtime=0)[:-8] + bytes(8), "damaged gzip file"),
        (gzip.compress(TEXT, mtime=0) + b"tail", "damaged gzip file"),
        (zstandard.compress(TEXT)[:-9], "truncated zstd file"),
        (zstandard.compress(TEXT)[:5], "truncated zstd file"),
        (zstandard.compress(TEXT) + b"tail", "damaged zstd file"),
    ],
)
def test_incomplete_compressed_files_are_errors(tmp_path, content, message):
    fails(flags(tmp_path, content), f"{tmp_path / 'day_0'}: {message}", tmp_path)


@pytest.mark.parametrize("extra", [[], ["--bad_lines", "skip"]])
def test_values_beyond_float16(tmp_path, extra):
    first = "bad\n" if extra else GOOD  # a skipped line still counts as a line
    text = first + GOOD * 2 + "1\t5\t70000" + "\t" * 37 + "\n"
    message = f"{tmp_path / 'day_0'}: line 4: field 3 (num_1) is 70000, expected at most ±65504, the range of float16; use --numerical_transform log"
    fails([*flags(tmp_path, text.encode()), "--numerical_transform", "none", *extra], message, tmp_path)


def test_destination_with_a_dataset(tmp_path):
    arguments = flags(tmp_path)
    do(criteo, *arguments)
    before = (tmp_path / "out" / "feature_spec.yaml").read_bytes()
    with pytest.raises(DatasetError, match="holds a dataset already"):
        do(criteo, *arguments)
    assert (tmp_path / "out" / "feature_spec.yaml").read_bytes() == before
    (tmp_path / "day_1").write_text(GOOD * 2)
    do(criteo, *arguments, "--overwrite")
    assert (tmp_path / "out" / "test" / "label.bin").read_bytes() == b"\1\1"


def test_destination_that_is_a_file(tmp_path):
    arguments = flags(tmp_path)
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DatasetError, match="is a file; expected a folder"):
        do(criteo, *arguments)
    assert (tmp_path / "out").read_text() == "mine"


def test_logs_that_publishing_would_delete_are_refused(tmp_path):
    arguments = flags(tmp_path)
    (tmp_path / "train").mkdir()
    log = (tmp_path / "day_0").rename(tmp_path / "train" / "day_0")
    with pytest.raises(DatasetError, match="which the dataset will replace; choose another --dst"):
        do(criteo, "--train", log, *arguments[2:], "--dst", tmp_path)
    assert log.exists()


def test_a_failed_run_leaves_the_users_files(tmp_path):
    arguments = flags(tmp_path, test=b"bad\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(DatasetError, match="line 1: 1 fields"):
        do(criteo, *arguments)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes"]


@contextlib.contextmanager
def staging(tmp_path, arguments):
    """Run preproc.criteo in a child process, once it has staged something; end the child in any case."""
    (tmp_path / "day_0").write_text(GOOD * 40_000)
    words = [
        sys.executable,
        "-m",
        "preproc.criteo",
        *arguments,
        "--block_bytes",
        "500",
    ]  # thousands of blocks, so that the run lasts long enough to be stopped
    before = found(tmp_path, "out/.staging-*/*.arrow")
    with child(words) as process:
        wait_for(lambda: found(tmp_path, "out/.staging-*/*.arrow") - before, process)
        yield process


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGHUP, 129, "stopped by SIGHUP")],
)
def test_stopped_run_leaves_no_files(tmp_path, number, code, said):
    with staging(tmp_path, flags(tmp_path)) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, f"preproc.criteo: {said}\n")
    assert not (tmp_path / "out").exists()


def test_next_run_removes_the_files_of_a_killed_run(tmp_path, capsys):
    arguments = flags(tmp_path)
    with staging(tmp_path, arguments) as process:
        process.kill()
        process.wait()
    (left,) = (tmp_path / "out").iterdir()
    (tmp_path / "day_0").write_text(GOOD)
    do(criteo, *arguments)
    assert f"{left}: left by a run that was killed; removed\n" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["feature_spec.yaml", "test", "train", "vocabulary"]


def test_full_disk_is_a_one_line_error_and_leaves_no_files(tmp_path):
    result = run("-rm", sys.executable, Path(__file__).with_name("full_disk.py"), tmp_path, program="unshare")
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip("this machine allows no mount")
    files = []
    for one in json.loads(result.stdout):
        said = re.fullmatch(rf"[a-z.]+: error: {tmp_path}/disk/new/out/\.(\S+): No space left on device\n", one["said"])
        assert said and (one["code"], one["left"]) == (1, []), one
        command = one["said"].split(":")[0]
        files.append((command == "preproc.table", re.sub(r"-\w{8}/|\d+", "", said[1])))
    others = {re.sub("train|test", "", file) for table, file in files if not table}
    assert {"staging-.arrow", "stagingdataset/vocabulary/cat_.parquet", "stagingdataset//cat_.bin"} <= others, others
    tables = {file for table, file in files if table}
    assert all(any(file.startswith(kind) for file in tables) for kind in ("stagingtrain-", "stagingdataset/vocabulary/", "stagingdataset/t")), tables


def test_file_size_limit_is_a_one_line_error_with_the_path(tmp_path):
    arguments = flags(tmp_path, train=b"".join(b"1" + b"\t5" * 13 + b"\t%x" % i * 26 + b"\n" for i in range(4000)))
    result = run_limited("ulimit -f 20", "-m", "preproc.criteo", *arguments)
    assert result.returncode == 1
    assert re.fullmatch(rf"preproc.criteo: error: {tmp_path}/out/\.\S+: File too large\n", result.stderr)
    assert not (tmp_path / "out").exists()
