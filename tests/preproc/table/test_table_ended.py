"""A run of preproc.table that is ended or runs out of space prints one line and leaves no files."""

import contextlib
import re
import signal
import sys
from pathlib import Path

import pytest

from preproc.table import command as table
from tests.children import child, found, wait_for
from tests.helpers.commands import do, help_of, run_limited
from tests.helpers.folders import write

ROW = "user,1.5,a|b,1\n"


def flags(folder: Path, rows: int) -> list[str]:
    path = write(folder / "rows.csv", "s,n,l,y\n" + "".join(f"{i}{ROW}" for i in range(rows)))
    return [*map(str, ("--train", path, "--test_fraction", 0.1, "--dst", folder / "out", "--label", "y", "--lists", "l"))]


@contextlib.contextmanager
def staging(folder: Path):
    """Run preproc.table in a child process, once it has staged something; end the child in any case."""
    before = found(folder, "out/.staging-*/*.arrow")
    with child([sys.executable, "-m", "preproc.table", *flags(folder, 40_000), "--block_bytes", "500"]) as process:
        wait_for(lambda: found(folder, "out/.staging-*/*.arrow") - before, process)
        yield process


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGHUP, 129, "stopped by SIGHUP")],
)
def test_stopped_run_leaves_no_files(tmp_path, number, code, said):
    with staging(tmp_path) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (code, f"preproc.table: {said}")
    assert "Traceback" not in err and not (tmp_path / "out").exists()


def test_next_run_removes_the_files_of_a_killed_run(tmp_path, capsys):
    with staging(tmp_path) as process:
        process.kill()
        process.wait()
    (left,) = (tmp_path / "out").iterdir()
    do(table, *flags(tmp_path, 50))
    assert f"{left}: left by a run that was killed; removed\n" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["columns.yaml", "feature_spec.yaml", "test", "train", "vocabulary"]


@pytest.mark.parametrize("blocks", [2, 40])
def test_file_size_limit_is_a_one_line_error_with_the_path(tmp_path, blocks):
    result = run_limited(f"ulimit -f {blocks}", "-m", "preproc.table", *flags(tmp_path, 4000))
    assert result.returncode == 1
    assert re.fullmatch(rf"preproc.table: error: {tmp_path}/out/\.\S+: File too large", result.stderr.splitlines()[-1])
    assert not (tmp_path / "out").exists()


def test_help_names_the_flags_and_loads_no_tensorflow():
    said = help_of("preproc.table")
    for flag in ("train", "config", "label", "split_by", "vocabulary", "extend_vocabulary", "keep", "time_format", "bad_lines"):
        assert f"--{flag}" in said
