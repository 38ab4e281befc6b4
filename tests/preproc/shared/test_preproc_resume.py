"""Resuming of killed runs (--resume): the same bytes as of an unbroken run, and completed work is not repeated."""

import gzip
import random
import re
import signal
from pathlib import Path

import polars as pl
import pytest

from preproc.criteo import command as criteo
from preproc.shared import resume
from preproc.table import command as table
from preproc.table.on_polars import PolarsTable
from tests.helpers.commands import do, run
from tests.helpers.folders import tree, write
from utils.commands import run_command
from utils.errors import UserError

DONE = re.compile(r"--resume: continues in \S+; already done: (.*)\n")


def rows(first: int, count: int) -> str:
    return "".join(f"u{i % 17},{i % 5}.25,{i},a{i % 3}|b{i % 4},{i % 90},{i % 2}\n" for i in range(first, first + count))


def tables(folder: Path) -> list[str]:
    """Write two text files and a compressed one with every kind of column; return flags with a threshold, a group and keys."""
    head = "user,price,age,tags,t,y\n"
    paths = [write(folder / f"{i}.csv", head + rows(100 * i, 60 + 20 * i)) for i in range(2)]
    paths.append(write(folder / "2.csv.gz", gzip.compress((head + rows(500, 90)).encode())))
    config = write(
        folder / "columns.yaml",
        "label: y\ngroup: t\nfeatures:\n  user: {kind: categorical, frequency_threshold: 2}\n  price: {kind: numerical}\n"
        "  age: {kind: numerical, buckets: 4}\n  tags: {kind: list}\n  both: {kind: cross, columns: [user, t]}\n",
    )
    data = write(folder / "data.csv", "user,price,age,tags,t\nu1,2,3,a1,4\n")
    splits = ["--test_fraction", "0.2", "--valid_fraction", "0.1", "--data", str(data), "--keep", "user,t"]
    return ["--train", *map(str, paths), "--config", str(config), *splits, "--block_bytes", "700"]


def logs(folder: Path) -> list[str]:
    """Write three days of a Criteo-like log; return flags that shuffle it and halve the last day."""
    paths = []
    for day in range(3):
        lines = ("\t".join([str(i % 2), *[str(i * k % 50) for k in range(3)], *[f"{i * k % 23:x}" for k in range(4)]]) for i in range(60 + day * 30))
        paths.append(write(folder / f"day_{day}", "\n".join(lines) + "\n"))
    form = ["--num_numerical", "3", "--num_categorical", "4", "--frequency_threshold", "2", "--halve_test", "--block_bytes", "500"]
    return ["--train", *map(str, paths[:2]), "--test", str(paths[2]), *form, "--output_ordering", "day_random"]


COMMANDS = {table: tables, criteo: logs}


def visible(folder: Path) -> dict[str, bytes]:
    """Return the files without staging folders: a run killed after publishing leaves its own to the next run."""
    return {name: content for name, content in tree(folder).items() if not name.startswith(".")}


def killed_at(point: int, command, destination: Path, flags: list[str]) -> bool:
    """Return True if the run was killed; it is not where it makes fewer file operations."""
    result = run("tests/preproc/killed_at.py", point, command.__name__, destination, *flags, "--resume")
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode != 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("seed", range(4))
def test_run_that_was_killed_at_any_point_is_resumed(tmp_path, capfd, command, seed):
    """The run is killed three times, each time at another point of the remaining work."""
    flags, draw = COMMANDS[command](tmp_path), random.Random(seed)
    do(command, *flags, "--dst", tmp_path / "whole")
    out = tmp_path / "out"
    kills = sum(killed_at(draw.randint(1, 90), command, out, flags) for _ in range(3))
    assert kills or (out / "feature_spec.yaml").exists()
    if not (out / "feature_spec.yaml").exists():
        assert do(command, *flags, "--dst", out, "--resume") == 0
        assert not list(out.glob(".*"))
    assert visible(out) == tree(tmp_path / "whole")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("after", range(0, 24, 4))
def test_completed_stages_are_not_repeated(tmp_path, capfd, monkeypatch, command, after):
    """An error ends the run after the n-th stage; the resumed run does only the other stages."""
    flags, out = COMMANDS[command](tmp_path), tmp_path / "out"
    do(command, *flags, "--dst", tmp_path / "whole")
    done, complete = [], resume.Progress.complete

    def counted(self, stage, *words, **named):
        if len(done) == after and stage != "publishing":
            raise OSError(28, "No space left on device", "somewhere")
        complete(self, stage, *words, **named)
        done.append(stage)

    monkeypatch.setattr(resume.Progress, "complete", counted)
    assert run_command(lambda: do(command, *flags, "--dst", out, "--resume"), "command") == (1 if "publishing" not in done else 0)
    if "publishing" in done:
        return
    said = capfd.readouterr().err
    if not after:
        assert "is kept" not in said and not out.exists()
        return
    (left,) = out.iterdir()
    kept = rf"{left} is kept \([\d.]+ [KM]iB\): the same command with --resume continues there; a run without --resume removes the folder\n"
    assert re.search(kept, said)
    before, done = done[:], []
    monkeypatch.setattr(
        resume.Progress, "complete", lambda self, stage, *words, **named: (done.append(stage), complete(self, stage, *words, **named))[1]
    )
    assert do(command, *flags, "--dst", out, "--resume") == 0
    assert not {*before} & {*done} and tree(out) == tree(tmp_path / "whole")
    assert DONE.search(capfd.readouterr().err)[1].startswith(f"files read {sum(stage.startswith('read') for stage in before)}")


def left(folder: Path, monkeypatch, flags: list[str]) -> Path:
    """Fail a run when all files are read; return the staging folder that it leaves."""
    monkeypatch.setattr(table, "statistics_of", lambda *words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        do(table, *flags, "--dst", folder / "out", "--resume")
    monkeypatch.undo()
    (found,) = (folder / "out").iterdir()
    return found


def edited(name: str, old: str, new: str):
    return lambda folder, flags: (folder / name).write_text((folder / name).read_text().replace(old, new))


def flag(*words: str):
    return lambda folder, flags: flags.extend(words)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (flag("--seed", "3"), r"another --seed \(0, now 3\)"),
        (flag("--bad_lines", "skip"), r"another --bad_lines \('error', now 'skip'\)"),
        (edited("1.csv", "u3", "u4"), r"other files \(\S+/1\.csv has changed\)"),
        (edited("columns.yaml", "buckets: 4", "buckets: 5"), r"other files \(\S+/columns\.yaml has changed\)"),
        (lambda folder, flags: flags.remove(str(folder / "1.csv")), r"another number of files of each split .*"),
        (lambda folder, flags: flags.__setitem__(slice(1, 3), flags[2:0:-1]), "the files in another order"),
    ],
)
def test_another_run_starts_from_the_beginning_and_says_why(tmp_path, capfd, monkeypatch, change, difference):
    flags = tables(tmp_path)
    folder = left(tmp_path, monkeypatch, flags)
    change(tmp_path, flags)
    do(table, *flags, "--dst", tmp_path / "whole")
    capfd.readouterr()
    assert do(table, *flags, "--dst", tmp_path / "out", "--resume") == 0
    said = capfd.readouterr().err
    assert re.search(rf"--resume: starts from the beginning, because {folder} was left by a run with {difference}\n", said) and not DONE.search(said)
    assert f"{folder}: left by a run that ended early; removed\n" in said
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_block_size_and_place_do_not_matter(tmp_path, capfd, monkeypatch):
    flags = tables(tmp_path)
    left(tmp_path, monkeypatch, flags)
    do(table, *flags, "--dst", tmp_path / "whole")
    monkeypatch.chdir(tmp_path)
    flags = [word.removeprefix(f"{tmp_path}/") for word in flags]
    assert do(table, *flags, "--block_bytes", "100000", "--dst", "out", "--resume") == 0
    assert DONE.search(capfd.readouterr().err)[1] == "files read 4"
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_stage_with_a_missing_or_cut_file_is_repeated(tmp_path, capfd, monkeypatch):
    flags = tables(tmp_path)
    folder = left(tmp_path, monkeypatch, flags)
    do(table, *flags, "--dst", tmp_path / "whole")
    next(folder.glob("train-0-000001.arrow")).write_bytes(b"cut")
    assert do(table, *flags, "--dst", tmp_path / "out", "--resume") == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_records_after_a_file_that_is_read_again_are_ignored(tmp_path, monkeypatch):
    """Blocks of another size begin at other places; a third run must not reuse the first run's records of later files."""
    flags = tables(tmp_path)
    folder = left(tmp_path, monkeypatch, [*flags, "--block_bytes", "100"])
    do(table, *flags, "--dst", tmp_path / "whole")
    next(folder.glob("train-0-000001.arrow")).unlink()
    left(tmp_path, monkeypatch, flags)
    assert do(table, *flags, "--dst", tmp_path / "out", "--resume") == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_damaged_staging_files_are_an_error(tmp_path, monkeypatch):
    flags = tables(tmp_path)
    folder = left(tmp_path, monkeypatch, flags)
    for path in folder.glob("train-0-*.arrow"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(UserError, match=r"out: staging files of an earlier run are damaged .*; start again without --resume"):
        do(table, *flags, "--dst", tmp_path / "out", "--resume")


def test_run_without_resume_removes_the_kept_files_and_says_so(tmp_path, capfd, monkeypatch):
    flags = tables(tmp_path)
    folder = left(tmp_path, monkeypatch, flags)
    assert do(table, *flags, "--dst", tmp_path / "out") == 0
    assert f"{folder}: left by a run that ended early; removed\n" in capfd.readouterr().err
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_running_run_is_not_resumed(tmp_path, capfd, monkeypatch):
    """A second --resume into the same folder starts a run of its own; the first continues undisturbed."""
    flags, out = tables(tmp_path), tmp_path / "out"
    second, write = [], PolarsTable.write

    def meanwhile(*words):
        if not second:
            second.append(None)
            second.append(run_command(lambda: do(table, *flags, "--dst", out, "--resume"), "second"))
        return write(*words)

    monkeypatch.setattr(PolarsTable, "write", meanwhile)
    assert run_command(lambda: do(table, *flags, "--dst", out, "--resume"), "first") == 1
    said = capfd.readouterr().err
    assert second[1] == 0 and not DONE.search(said) and "holds a dataset already" in said
    do(table, *flags, "--dst", tmp_path / "whole")
    assert visible(out) == tree(tmp_path / "whole")


def test_another_version_of_polars_starts_from_the_beginning(tmp_path, capfd, monkeypatch):
    flags = tables(tmp_path)
    left(tmp_path, monkeypatch, flags)
    monkeypatch.setattr(pl, "__version__", "9.9")
    assert do(table, *flags, "--dst", tmp_path / "out", "--resume") == 0
    assert "was left by a run with another version of Polars" in capfd.readouterr().err
