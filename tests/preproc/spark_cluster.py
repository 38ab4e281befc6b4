"""Where there is no Spark, its tests are left out with a word; the cluster of those that want one is the benchmark's."""

import os
import shutil

import pytest

from benchmarks.spark_cluster import Cluster, cluster

__all__ = ["Cluster", "cluster", "needs_spark"]


def spark_missing() -> str | None:
    """Why there is no Spark here, in words; None where there is."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        return "PySpark is not installed (scripts/install --spark)"
    return None if shutil.which("java") or "JAVA_HOME" in os.environ else "there is no Java (scripts/install --spark)"


needs_spark = pytest.mark.skipif(spark_missing() is not None, reason=str(spark_missing()))
