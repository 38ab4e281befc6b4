"""Mistakes of a user with --engine spark are an error of one line and leave no files; tasks are tried several times."""

import os
import pickle
import pwd
import shutil
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest

from dataloading.features import DatasetError
from preproc.criteo import command as criteo
from preproc.shared.engine_flags import SparkSettings
from preproc.spark import session as spark_session
from preproc.spark.engine import SparkEngine
from preproc.spark.failures import one_line
from preproc.spark.tasks import TOKEN, Done, Failed, Job, LeftOut, run_task
from tests.children import child, found, wait_for
from tests.helpers.commands import do
from tests.helpers.errors import refused
from tests.preproc.conftest import make_line
from tests.preproc.spark.spark_cluster import QUICK, cluster, needs_spark
from utils.cluster.processes import ended
from utils.errors import UserError

pytestmark = pytest.mark.usefixtures("own_spark")


@pytest.fixture
def words(tmp_path) -> list[str]:
    """Return a valid command line for local Spark."""
    for day in ("day_0", "day_1"):
        (tmp_path / day).write_text("".join(make_line("1", {0: row}, {0: f"{row % 9:x}"}) + "\n" for row in range(500)))
    flags = ["--train", tmp_path / "day_0", "--test", tmp_path / "day_1", "--dst", tmp_path / "out", "--frequency_threshold", 0]
    return [*map(str, [*flags, "--engine", "spark", "--spark_master", "local[2]", "--block_bytes", 5000]), *QUICK]


def fails(words: list[str], message: str, *more: str) -> str:
    """Check that the command fails in one line and leaves no files; return the line."""
    with refused(message) as error:
        do(criteo, *words, *more)
    assert not Path(words[words.index("--dst") + 1]).exists()
    return str(error.value)


@needs_spark
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("later_s", [0.0, 0.8, 1.6])
def test_a_signal_while_spark_starts_leaves_no_process(words, number, later_s):
    with child([sys.executable, "-m", "preproc.criteo", *words], start_new_session=True) as process:
        mine = psutil.Process(process.pid)
        wait_for(lambda: any("java" in each.name() for each in mine.children(recursive=True)), process)
        time.sleep(later_s)
        started = mine.children(recursive=True)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number and started
    psutil.wait_procs(started, 3)  # Java that has done its work ends a moment after the command, when nothing holds its standard input open
    assert not [each for each in started if not ended(each)]
    assert not Path(words[words.index("--dst") + 1]).exists()


# Before Spark starts -----------------------------------------------------------------------------------------------------


def test_no_pyspark(words, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    fails(words, "--engine spark needs PySpark (pyspark is missing); install requirements-spark.txt, or run scripts/install --spark")


@needs_spark
def test_missing_or_old_java(words, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    fails(words, "there is no java on the PATH; Spark needs Java 17 or newer: run scripts/install --spark, install Debian's openjdk-17-jre-headless")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    fails(words, f"JAVA_HOME {tmp_path} has no bin/java; Spark needs Java 17")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(stat.S_IRWXU)
    fails(words, f"{java} is Java 8; Spark needs Java 17 or newer")


@needs_spark
def test_a_user_without_a_name(words, monkeypatch):
    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    fails(words, f"--engine spark: user {os.getuid()} has no name on this machine, and Spark's Java needs one: add it to /etc/passwd")


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ({"LC_ALL": "C"}, "C.UTF-8"),
        ({}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LANG": "de_DE.UTF-8"}, None),
        ({"LC_ALL": "en_US.utf8"}, "en_US.utf8"),
    ],
)
def test_java_reads_names_of_files_as_utf8(monkeypatch, before, inside):
    """Java uses the locale for names of files, and containers often set none."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    with spark_session.locale_of_names():
        assert os.environ.get("LC_ALL") == inside
    assert os.environ.get("LC_ALL") == before.get("LC_ALL")


@needs_spark
def test_unreachable_master_is_an_error(words):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"spark://127.0.0.1:{unused.getsockname()[1]}"
        fails(words, f"--spark_master {url}: no master can be reached (", "--spark_master", url)
    fails(words, "--spark_master spark://nowhere: expected spark://HOST:PORT", "--spark_master", "spark://nowhere")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--spark_conf", "executor.memory=1g"), "--spark_conf executor.memory=1g: expected KEY=VALUE with a Spark key"),
        (("--spark_conf", "spark.executor.memory"), "--spark_conf spark.executor.memory: expected KEY=VALUE"),
        (("--spark_master", "sc://host"), "--spark_master sc://host: Spark Connect is not supported"),
        (("--spark_log", "/nowhere/log"), "--spark_log /nowhere/log: no such folder: /nowhere"),
        (("--spark_wait", "0"), "expected a number of seconds above 0, found '0'"),
    ],
)
def test_invalid_flags_are_rejected(words, flags, message):
    fails(words, message, *flags)


def test_spark_flags_without_spark_give_warnings(words, capsys):
    assert do(criteo, *words, "--engine", "polars") == 0
    said = capsys.readouterr().err.splitlines()
    flags = ("spark_master", "spark_conf")
    assert said == [f"preproc.criteo: warning: --{flag} has no effect without --engine spark" for flag in flags]


# A run that fails --------------------------------------------------------------------------------------------------------


def by_both(words: list[str], message: str, *more: str) -> None:
    """Check that both engines give the same message."""
    assert fails(words, message, *more) == fails(words, message, *more, "--engine", "polars")


@needs_spark
def test_error_names_the_first_bad_line_of_the_logs(words, tmp_path, capsys, spark_sessions):
    lines = (tmp_path / "day_0").read_text().splitlines()
    lines[377] = lines[377].replace("\t", ",", 1)
    lines[378] = lines[490] = "later"
    (tmp_path / "day_0").write_text("\n".join(lines))
    (tmp_path / "day_1").write_text("also\n")
    with spark_sessions.shared():
        by_both(words, f"{tmp_path / 'day_0'}: line 378: 39 fields, expected 40 separated by tabs; --bad_lines skip leaves such lines out")
        capsys.readouterr()
        fails(words, "the test split holds no rows: every line of day_1 is malformed", "--bad_lines", "skip")
    assert "day_0: bad lines skipped: 3, the first: line 378: 39 fields" in capsys.readouterr().err


@needs_spark
def test_executors_without_the_drivers_python_are_an_error(words, tmp_path, monkeypatch):
    python = tmp_path / "bare python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    fails(words, "is missing: the executors need this Python with the packages of requirements.txt: set PYSPARK_PYTHON to it")
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    fails(words, "the executors need this Python with the packages of requirements.txt: set PYSPARK_PYTHON to it")


@needs_spark
def test_cluster_without_workers_is_an_error(words, tmp_path):
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster", workers=0) as made:
        message = f"{made.url}: no executor took a task in 2 s; are there workers with free cores and memory?"
        fails(words, message, "--spark_master", made.url, "--spark_wait", "2", "--spark_conf", "spark.driver.host=127.0.0.1")


@needs_spark
def test_interrupted_run_leaves_no_files(words, tmp_path):
    (tmp_path / "day_0").write_text((tmp_path / "day_0").read_text() * 200)
    with child([sys.executable, "-m", "preproc.criteo", *words]) as process:
        wait_for(lambda: found(tmp_path, "out/.staging-*/spark/reading-*"), process, limit_s=180)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, "preproc.criteo: interrupted\n")
    assert not (tmp_path / "out").exists()


@needs_spark
def test_error_of_a_failed_job_names_the_cause(tmp_path):
    with SparkEngine(SparkSettings("test", "local[1]", {}, None, 60), tmp_path) as engine, pytest.raises(UserError) as error:
        engine.run(lambda: engine.context.parallelize([0]).map(lambda number: 1 / number).collect(), "division")
    assert str(error.value) == "Spark: ZeroDivisionError: division by zero"
    assert list(tmp_path.iterdir()) == []
    with SparkEngine(SparkSettings("test", "local[1]", {}, None, 60), tmp_path) as engine, pytest.raises(UserError) as error:
        engine.map("killed", lambda item, folder: os.kill(os.getpid(), signal.SIGKILL), [0])
    message = (
        "Spark: SparkException: Python worker exited unexpectedly (crashed); was it killed for lack of memory? "
        "Give executors more memory outside Java"
    )
    assert str(error.value).startswith(message) and list(tmp_path.iterdir()) == []


def test_error_of_killed_executors_suggests_a_remedy():
    """A cluster gives this message when a task has lost its executor four times."""
    said = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.2 "
        "executor 3): ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited with code 137\nDriver"
    )
    line = "Spark: Command exited with code 137 (executor 3 on 10.0.0.2); was it killed for lack of memory? Give executors more memory outside Java "
    assert str(one_line(Exception(said))) == f"{line}(spark.executor.memoryOverhead), or lower --block_bytes"


def test_a_folder_that_spark_sql_cannot_name(words, tmp_path):
    folder = tmp_path / "a:[b]"
    fails(
        words, "Spark cannot read a folder with both a colon and one of []{}*?\\ in its name; choose another with --staging", "--staging", str(folder)
    )
    assert not folder.exists()


# Tasks -------------------------------------------------------------------------------------------------------------------


def job(folder: Path, work) -> Job:
    (folder / TOKEN).write_text("right")
    return Job("job", folder, "right", work)


def test_a_task_is_done_once(tmp_path):
    calls = []

    def work(item, folder):
        (folder / "file").write_text(item)
        calls.append(item)
        return len(calls)

    for _ in range(2):  # as after an executor that was lost before it could report that it was done
        assert run_task(job(tmp_path, work), 3, "words") == Done(1)
    assert calls == ["words"] and (tmp_path / "job-000003" / "file").read_text() == "words"


def test_of_two_attempts_at_once_the_first_wins(tmp_path):
    def work(item, folder):
        if item == "slow":
            assert run_task(job(tmp_path, work), 3, "fast") == Done("fast")
        (folder / "file").write_text(item)
        return item

    run_task(job(tmp_path, work), 3, "slow")
    assert (tmp_path / "job-000003" / "file").read_text() == "fast"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job-000003", TOKEN]


def test_tasks_after_a_failed_one_are_not_started_and_those_before_it_are(tmp_path):
    def work(item, folder):
        if item == "bad":
            raise DatasetError("bad")
        return item

    made = job(tmp_path, work)
    failed = run_task(made, 5, "bad")
    assert isinstance(failed, Failed) and str(failed.error) == "bad"
    assert (run_task(made, 6, "good"), run_task(made, 4, "good")) == (LeftOut(), Done("good"))
    again = run_task(made, 5, "good")  # the earlier result stays, whatever this attempt gives
    assert isinstance(again, Failed) and str(again.error) == "bad"


def test_errors_that_a_retry_may_avoid_are_raised(tmp_path):
    def work(item, folder):
        raise OSError(5, "Input/output error", "disk")

    with pytest.raises(OSError, match="Input/output error"):
        run_task(job(tmp_path, work), 0, None)
    assert [path.name for path in tmp_path.iterdir()] == [TOKEN]


def test_executor_on_another_file_system_is_an_error(tmp_path):
    made = job(tmp_path, lambda item, folder: None)
    (tmp_path / TOKEN).write_text("other")
    outcome = run_task(made, 0, None)
    message = f"{tmp_path}: the executor on {socket.gethostname()} does not see the driver's files there; expected a folder on a file system"
    assert isinstance(outcome, Failed) and str(outcome.error).startswith(message)
    shutil.rmtree(tmp_path)
    assert str(run_task(made, 0, None).error).startswith(message)
    assert pickle.loads(pickle.dumps(outcome)) and not os.path.exists(tmp_path)


def test_log_missing_on_the_executor_is_an_error(tmp_path):
    outcome = run_task(job(tmp_path, lambda item, folder: (tmp_path / "day_0").open()), 0, None)
    expected = (
        f"{tmp_path / 'day_0'}: the executor on {socket.gethostname()} finds no such file; logs and --staging must be where all executors see them"
    )
    assert str(outcome.error) == expected
