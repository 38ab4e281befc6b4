"""The file of a log: another run's is renamed, a run that goes on finds its own, and only regular files are ever renamed."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from utils import log_file
from utils.errors import UserError
from utils.log_file import open_log
from utils.logging import RunLog

ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.json"


def write(path, run, resumes=None, cut=False):
    """Write a run's log: a line that names the run, and one of data, which may be cut in the middle."""
    log = RunLog(str(path), {}, resumes)
    log.log("RUN", {"id": run})
    log.log((0, 1), {"loss": 0.5})
    log.close()
    if cut:
        os.truncate(path, path.stat().st_size - 7)


def runs(path):
    """Return the ids of the runs that a file names, in order; every line must be whole unless it was cut before."""
    lines = [line.removeprefix("DLLL ") for line in path.read_text().splitlines()]
    return [line["data"]["id"] for line in map(json.loads, lines) if line.get("step") == "RUN"]


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_another_runs_log_is_renamed_to_the_smallest_free_number(path):
    (path.parent / "log.2.json").write_text("DLLL of somebody else\n")
    for number in range(4):
        write(path, f"{number:016x}")
    assert names(path.parent) == ["log.1.json", "log.2.json", "log.3.json", "log.4.json", "log.json"]
    assert [runs(path.parent / f"log.{number}.json") for number in (1, 3, 4)] == [["0" * 15 + str(number)] for number in range(3)]
    assert runs(path) == ["0" * 15 + "3"] and (path.parent / "log.2.json").read_text() == "DLLL of somebody else\n"


@pytest.mark.parametrize(("name", "older"), [("log", "log.1"), ("a.b.json", "a.b.1.json"), (".hidden", ".hidden.1")])
def test_names_without_an_ending_or_with_several(tmp_path, name, older):
    for run in (ONE, OTHER):
        write(tmp_path / name, run)
    assert names(tmp_path) == sorted([name, older]) and runs(tmp_path / older) == [ONE] and runs(tmp_path / name) == [OTHER]


def test_an_empty_file_is_taken_as_it_is(path):
    path.touch()
    inode = path.stat().st_ino
    write(path, ONE)
    assert names(path.parent) == ["log.json"] and path.stat().st_ino == inode


def test_a_run_that_goes_on_appends(path):
    write(path, ONE)
    write(path, ONE, resumes=ONE)
    assert runs(path) == [ONE, ONE] and names(path.parent) == ["log.json"]


def test_a_run_that_goes_on_finds_its_file_under_its_number_and_takes_the_name_again(path):
    for run in (ONE, OTHER, "a" * 16):
        write(path, run)
    write(path, ONE, resumes=ONE)
    assert runs(path) == [ONE, ONE]
    assert sorted(run for name in names(path.parent) if name != "log.json" for run in runs(path.parent / name)) == sorted([OTHER, "a" * 16])


def test_a_run_whose_log_is_gone_gets_a_new_file(path):
    write(path, OTHER)
    write(path, ONE, resumes=ONE)
    assert runs(path) == [ONE] and runs(path.parent / "log.1.json") == [OTHER]
    path.unlink()
    write(path, ONE, resumes=ONE)
    assert runs(path) == [ONE]


def test_a_run_without_an_id_appends_to_a_log_without_ids_only(path):
    path.write_text('DLLL {"step": "PARAMETER", "data": {}}\n')
    write(path, ONE, resumes="")
    assert path.read_text().startswith('DLLL {"step": "PARAMETER", "data": {}}\nDLLL ') and names(path.parent) == ["log.json"]
    write(path, OTHER, resumes="")
    assert runs(path) == [OTHER] and runs(path.parent / "log.1.json") == [ONE]


def test_a_line_cut_by_a_kill_does_not_swallow_the_next_one(path):
    write(path, ONE, cut=True)
    write(path, ONE, resumes=ONE)
    lines = path.read_text().splitlines()
    whole = [line for line in lines if line.endswith("}}")]
    assert (
        len(lines) == len(whole) + 1
        and json.loads(lines[lines.index(next(line for line in lines if line not in whole)) + 1][5:])["step"] == "PARAMETER"
    )


def test_a_log_that_another_process_writes_is_renamed_but_not_joined(path, monkeypatch):
    monkeypatch.setattr(log_file, "_ENDING_S", 0.2)
    living = RunLog(str(path), {})
    living.log("RUN", {"id": ONE})
    write(path, ONE, resumes=ONE)  # as a copy of the run does
    living.log((0, 9), {"loss": 0.25})
    living.close()
    older = path.parent / "log.1.json"
    assert runs(path) == [ONE] and runs(older) == [ONE] and '"step": [0, 9]' in older.read_text() and '"step": [0, 9]' not in path.read_text()


def test_a_run_waits_for_the_process_before_it_to_let_go(path):
    before = RunLog(str(path), {})
    before.log("RUN", {"id": ONE})
    timer = threading.Timer(0.2, before.close)
    timer.start()
    write(path, ONE, resumes=ONE)
    timer.join()
    assert names(path.parent) == ["log.json"] and runs(path) == [ONE, ONE]


def begin(path, run, go):
    go.wait()
    log = RunLog(str(path), {})
    log.log("RUN", {"id": run})
    for step in range(50):
        log.log((0, step), {"loss": 0.5})
    log.close()


def test_processes_that_begin_at_once_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    go, some = context.Event(), [f"{number:016x}" for number in range(8)]
    processes = [context.Process(target=begin, args=(path, run, go)) for run in some]
    for process in processes:
        process.start()
    go.set()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    files = [path.parent / name for name in names(path.parent)]
    assert sorted(runs(file)[0] for file in files if file.stat().st_size) == some
    assert all(len(runs(file)) == 1 and file.read_text().count('"loss"') == 50 for file in files if file.stat().st_size)


def test_a_run_that_begins_and_ends_between_making_and_locking_keeps_its_file(path, monkeypatch):
    locked = log_file._locked

    def late(descriptor):
        monkeypatch.setattr(log_file, "_locked", locked)
        write(path, OTHER)
        return locked(descriptor)

    monkeypatch.setattr(log_file, "_locked", late)
    write(path, ONE)
    assert [runs(path.parent / name) for name in names(path.parent)] == [[OTHER], [ONE]]


def test_a_link_stays_and_its_target_is_renamed(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "log.json"
    link.symlink_to("real/of_runs.json")
    for run in (ONE, OTHER):
        write(link, run)
    assert link.is_symlink() and names(tmp_path / "real") == ["of_runs.1.json", "of_runs.json"] and names(tmp_path) == ["log.json", "real"]
    opened = open_log(str(link), OTHER)
    opened.file.close()
    assert opened.path == (tmp_path / "real/of_runs.json").resolve() and opened.appends


def test_devices_and_pipes_are_never_renamed(tmp_path):
    for path in ("/dev/null", "/dev/stderr"):
        opened = open_log(path)
        opened.file.close()
        assert opened.path is None and os.path.exists(path) and not os.path.exists("/dev/null.1")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write(pipe, ONE)
    reader.join(30)
    assert ONE in got[0] and names(tmp_path) == ["pipe"]


def test_a_pipe_without_a_reader_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "_READER_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"--log_path .*/pipe: nobody reads this pipe; start its reader first"):
        RunLog(str(tmp_path / "pipe"), {})


def test_standard_output_in_a_file_keeps_both(tmp_path):
    out = tmp_path / "out.txt"
    words = "from utils.logging import RunLog; print('before', flush=True); RunLog('/dev/stdout', {}).close(); print('after', flush=True)"
    with out.open("w") as file:
        subprocess.run([sys.executable, "-c", words], stdout=file, check=True, timeout=240, cwd=Path(__file__).parents[2])
    lines = out.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and lines[1].startswith("DLLL ") and names(tmp_path) == ["out.txt"]


def test_a_log_that_cannot_be_renamed_is_kept(path, monkeypatch):
    write(path, ONE)
    make = os.open

    def refuse(name, flags, *mode):
        if str(name).endswith("log.1.json"):
            raise PermissionError(13, "Permission denied", str(name))
        return make(name, flags, *mode)

    monkeypatch.setattr(log_file.os, "open", refuse)
    with pytest.raises(UserError, match=r"log\.json: is another run's log and cannot be renamed to log\.1\.json: Permission denied"):
        RunLog(str(path), {})
    assert runs(path) == [ONE]


def test_a_loop_of_links_is_one_line(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match=r"--log_path .*: Too many levels of symbolic links"):
        RunLog(str(tmp_path / "a"), {})
