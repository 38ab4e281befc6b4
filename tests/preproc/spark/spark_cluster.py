"""Helpers of Spark's tests, which are left out with a message where Spark is missing; the cluster is that of the benchmarks."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.spark_cluster import Cluster, cluster
from preproc.shared.engine_flags import SparkSettings
from preproc.spark import engine as spark_engine
from preproc.spark import session as spark_session
from tests.helpers.commands import do
from tests.helpers.folders import tree
from utils.errors import UserError

__all__ = ["JAVA", "LOCAL", "QUICK", "Cluster", "Sessions", "cluster", "needs_spark", "on_both"]
# These runs are short: Java compiles quickly instead of well, and queries are not compiled at all.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CONF = (f"spark.driver.extraJavaOptions={JAVA}", "spark.sql.codegen.wholeStage=false", "spark.sql.adaptive.enabled=false")
QUICK = tuple(word for setting in _CONF for word in ("--spark_conf", setting))
LOCAL = ("--engine", "spark", "--spark_master", "local[2]", *QUICK)


def on_both(command: ModuleType, folder: Path, words: Sequence[object], capsys) -> tuple[str, dict[str, bytes]]:
    """Run a command on both engines, to `folder/polars` and `folder/spark`; check that what it says and its files are the same.

    Returns:
        its error, or what it wrote to standard error where it succeeds; and the files of the dataset, none after an error.
    """
    outcomes = []
    capsys.readouterr()
    for name, engine in (("polars", ()), ("spark", LOCAL)):
        failed = ""
        try:
            code = do(command, *words, "--dst", folder / name, *engine)
            assert code == 0, f"{name}: exit code {code}"
        except UserError as error:
            failed = str(error)
        files = tree(folder / name)
        left = list(folder.glob(f"{name}/.*"))
        assert bool(files) != bool(failed) and "\n" not in failed and not left, f"{name}: error {failed!r}, files {sorted(files)}, left {left}"
        outcomes.append((failed, capsys.readouterr().err, files))
    (failed, said, files), (*lines, others) = outcomes
    assert lines == [failed, said], f"Spark says {lines}, Polars {[failed, said]}"
    differing = {name: (len(files.get(name, b"")), len(others.get(name, b""))) for name in files | others if files.get(name) != others.get(name)}
    assert not differing, f"Spark writes other files than Polars; bytes of Polars and of Spark: {differing}"
    return failed or said, files


class Sessions:
    """One Spark session for all tests of a process that ask for the same settings, because a new one takes seconds."""

    def __init__(self, folder: Callable[[], Path]):
        self._folder, self._ending, self._asked, self._context = folder, ExitStack(), None, None

    @contextmanager
    def session(self, settings: SparkSettings, folder: Path) -> Iterator:
        """Yield the shared session; replaces `spark_session.session`."""
        asked = (settings.master, dict(settings.conf))
        if self._asked != asked:
            self.end()
            self._context = self._ending.enter_context(spark_session.session(settings, self._folder()))
            self._asked = asked
        yield self._context

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let commands that this process calls inside the block use the shared session."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spark_engine, "session", self.session)
            yield

    def end(self) -> None:
        """End the session, because a process can have only one at a time."""
        self._asked = None
        self._ending.close()


def spark_missing() -> str | None:
    """Return the reason why Spark cannot be used, in words; None if it can."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        return "PySpark is not installed (scripts/install --spark)"
    return None if shutil.which("java") or "JAVA_HOME" in os.environ else "there is no Java (scripts/install --spark)"


needs_spark = pytest.mark.usefixtures("spark_installed")
