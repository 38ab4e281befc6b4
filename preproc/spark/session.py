"""Quiet start of a Spark session for a command: problems with Java, PySpark and the master give a one-line error, and nothing hangs."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from preproc.shared.engine_flags import SparkSettings
from preproc.spark.failures import start_failure
from utils.cluster.processes import end_all, ended
from utils.errors import UserError
from utils.naming import naming
from utils.signals import end_by_signal, handler_kept

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

JAVA = 17  # the oldest version that Spark 4 supports
PACKAGES = ("preproc", "dataloading", "utils")  # packages that executors import
_ROOT = Path(__file__).resolve().parents[2]
_CONNECT_S = 10.0
_END_S = 5.0
_LOCALE = "C.UTF-8"  # Java decodes file names as the locale says, and knows only ASCII letters without one
_MASTER = re.compile(r"spark://(.+)").fullmatch


@contextlib.contextmanager
def session(settings: SparkSettings, folder: Path) -> Iterator["SparkContext"]:
    """Start a Spark session, yield its context, and stop it on exit.

    Args:
        settings: master, configuration, log.
        folder: folder for the run's own files, on a disk with enough space.

    Raises:
        UserError: PySpark or Java is missing, the master cannot be reached, or Spark refuses its settings.
    """
    _check_pyspark()
    _check_java(os.environ)
    _check_master(settings.master)
    with _log_file(settings.log) as log, _ended_by_signals():
        context = None
        code = _packed(folder / "dlrm_tf2_code.zip")
        try:
            try:
                context = _started(settings, folder, log)
                if code is not None:  # this, too, fails if Spark has started but lost its master meanwhile
                    with _sys_path_kept():
                        context.addPyFile(str(code))
            except Exception as error:
                raise start_failure(error, settings.master or "its default master", _tail(log)) from None
            yield context
        finally:
            if context is not None:
                context.stop()


def _check_pyspark() -> None:
    try:
        import pyspark
    except ModuleNotFoundError as error:
        raise UserError(
            f"--engine spark needs PySpark ({error.name} is missing); install requirements-spark.txt, or run scripts/install --spark"
        ) from None
    if int(pyspark.__version__.split(".")[0]) < 4:
        raise UserError(f"--engine spark needs PySpark 4, found {pyspark.__version__}; install requirements-spark.txt")


def _check_java(environment: Mapping[str, str]) -> None:
    """Raise UserError if Spark would find no Java, or one that is too old, or if the user has no name, which Java needs."""
    if "PYSPARK_GATEWAY_PORT" in environment:  # started by spark-submit, which runs on Java already
        return
    advice = f"Spark needs Java {JAVA} or newer: run scripts/install --spark, install Debian's openjdk-17-jre-headless, or set JAVA_HOME"
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if not java or not os.access(java, os.X_OK):
        raise UserError(f"--engine spark: {f'JAVA_HOME {home} has no bin/java' if home else 'there is no java on the PATH'}; {advice}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if not found or int(found[1]) < JAVA:
        raise UserError(f"--engine spark: {java} is {f'Java {found[1]}' if found else 'of an unknown version'}; {advice}")
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise UserError(
            f"--engine spark: user {os.getuid()} has no name on this machine, and Spark's Java needs one: add it to /etc/passwd"
        ) from None


def _check_master(master: str | None) -> None:
    """Raise UserError where no master of a standalone cluster listens: Spark itself would try for a minute and then print a stack trace."""
    if master is None or not (found := _MASTER(master)):
        return
    faults = []
    for address in found[1].split(","):
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise UserError(f"--spark_master {master}: expected spark://HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
            return
        except OSError as error:
            faults.append(f"{address}: {error.strerror or error}")
    raise UserError(f"--spark_master {master}: no master can be reached ({'; '.join(faults)})")


@contextlib.contextmanager
def _log_file(path: Path | None) -> Iterator[Path]:
    if path is not None:
        path.open("ab").close()
        yield path
        return
    descriptor, name = tempfile.mkstemp(prefix="dlrm-spark-", suffix=".log")
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        os.unlink(name)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the Java process where a signal ends the block: one that is still starting Spark would outlive this process, and so would executors."""
    from pyspark import SparkContext

    before = set(psutil.Process().children(recursive=True))
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) and end_by_signal() is None:  # Spark may have made another error of the signal's
            raise
        gateway = SparkContext._gateway  # None where the signal came before its start was complete
        started = [psutil.Process(gateway.proc.pid)] if gateway is not None and getattr(gateway, "proc", None) and gateway.proc.poll() is None else []

        def ours() -> set[psutil.Process]:
            own = {each for process in started for each in (process, *_descendants(process))}
            return {process for process in own | set(_descendants(psutil.Process())) - before if not ended(process)}

        for process in ours():
            with contextlib.suppress(psutil.Error):
                process.terminate()  # Spark then tells a cluster's master that it ends
        psutil.wait_procs(ours(), _END_S)
        end_all(ours)
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        raise


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _started(settings: SparkSettings, folder: Path, log: Path) -> "SparkContext":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    asked = SparkConf(loadDefaults=False)
    for key, value in settings.conf.items():
        asked.set(key, value)
    if settings.master is not None:
        asked.setMaster(settings.master)
    with _output_to(log), handler_kept(signal.SIGINT):
        gateway = SparkContext._gateway  # that of an earlier session of this process: one JVM serves several in turn
        if gateway is not None:
            utils = getattr(gateway.jvm.org.apache.spark.util, "Utils$")
            getattr(utils, "MODULE$").clearLocalRootDirs()  # else it would keep using the folder of the first session
        with locale_of_names():
            gateway = gateway or launch_gateway(asked)
        conf = SparkConf(_jvm=gateway.jvm)  # holds the settings of spark-submit and spark-defaults.conf
        for key, value in asked.getAll():
            conf.set(key, value)
        _add_defaults(conf, settings, folder)
        context = SparkContext(gateway=gateway, conf=conf)
    return context


def _add_defaults(conf: "SparkConf", settings: SparkSettings, folder: Path) -> None:
    """Set defaults for settings that the user has not given."""
    if conf.get("spark.app.name", "pyspark-shell") == "pyspark-shell":
        conf.setAppName(settings.name)
    conf.set("spark.ui.showConsoleProgress", "false")  # the command has its own progress bar
    conf.setIfMissing("spark.log.level", "ERROR" if settings.log is None else "WARN")
    conf.setIfMissing("spark.executorEnv.LC_ALL", _LOCALE)
    conf.setIfMissing("spark.locality.wait", "0s")  # files are equally far from all executors, so waiting for a near one is useless
    # Each task has its own Python process; more threads in each would only compete for the cores.
    conf.setIfMissing("spark.executorEnv.POLARS_MAX_THREADS", conf.get("spark.task.cpus", "1"))
    os.environ.setdefault("PYSPARK_PYTHON", conf.get("spark.pyspark.python", sys.executable))
    if conf.get("spark.master", "local[*]").startswith("local"):
        conf.setIfMissing("spark.ui.enabled", "false")
        conf.setIfMissing("spark.driver.host", "127.0.0.1")
        conf.setIfMissing("spark.driver.bindAddress", "127.0.0.1")
        if "SPARK_LOCAL_DIRS" not in os.environ:
            conf.setIfMissing("spark.local.dir", str(folder))


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect standard output and standard error to a file; processes started inside inherit this."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, target = (os.dup(1), os.dup(2)), os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(target)


@contextlib.contextmanager
def locale_of_names() -> Iterator[None]:
    """Set a locale in which processes started inside read file names as UTF-8, whatever this process's locale is."""
    said = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    before = os.environ.get("LC_ALL")
    if "utf" not in said.lower():
        os.environ["LC_ALL"] = _LOCALE
    try:
        yield
    finally:
        os.environ.pop("LC_ALL", None)
        if before is not None:
            os.environ["LC_ALL"] = before


@contextlib.contextmanager
def _sys_path_kept() -> Iterator[None]:
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


def _packed(path: Path) -> Path | None:
    """Pack this project's packages into a zip file for the executors; return None if spark-submit brought one."""
    if not _ROOT.is_dir():
        return None
    with naming(path), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in PACKAGES:
            for source in sorted((_ROOT / package).rglob("*.py")):
                packed.write(source, source.relative_to(_ROOT))
    return path


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 16)))
        return file.read().decode(errors="replace")
