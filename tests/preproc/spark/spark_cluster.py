"""Helpers of Spark's tests, which are left out with a message where Spark is missing; the cluster is that of the benchmarks."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.spark_cluster import Cluster, cluster
from preproc.shared.engine_flags import SparkSettings
from preproc.spark import engine as spark_engine
from preproc.spark import session as spark_session

__all__ = ["JAVA", "LOCAL", "QUICK", "Cluster", "Sessions", "cluster", "needs_spark"]
# These runs are short: Java compiles quickly instead of well, and queries are not compiled at all.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CONF = (f"spark.driver.extraJavaOptions={JAVA}", "spark.sql.codegen.wholeStage=false", "spark.sql.adaptive.enabled=false")
QUICK = tuple(word for setting in _CONF for word in ("--spark_conf", setting))
LOCAL = ("--engine", "spark", "--spark_master", "local[2]", *QUICK)


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
