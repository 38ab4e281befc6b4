"""The flags that select the engine of a preprocessing command, and configure Spark."""

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from utils.config.flags import Parser
from utils.errors import UserError

POLARS, SPARK = ENGINES = ("polars", "spark")
FLAGS = ("engine", "staging", "spark_master", "spark_conf", "spark_log", "spark_wait")


@dataclass(frozen=True)
class SparkSettings:
    """The Spark configuration of a run.

    Attributes:
        name: name of the application, which is that of the command.
        master: URL; None for the one of spark-submit or spark-defaults.conf, else local[*].
        conf: Spark's own settings, which override those of spark-defaults.conf.
        log: file for the log of Spark's driver; None to discard it.
        wait_s: longest time that the first task may wait for an executor, in seconds.
    """

    name: str
    master: str | None
    conf: Mapping[str, str]
    log: Path | None
    wait_s: float


def add_engine_flags(parser: Parser) -> None:
    """Add --engine and the flags that belong to it."""
    add = parser.add_argument_group("engine").add_argument
    add(
        "--engine",
        choices=ENGINES,
        default=POLARS,
        help="polars: this machine; spark: a cluster, with the same result (default: %(default)s)",
    )
    add(
        "--staging",
        type=Path,
        metavar="FOLDER",
        help="folder for rows until their ids are assigned and, if --dst is a URL, for the dataset until its upload; executors share it "
        "(default: --dst)",
    )
    add("--spark_master", metavar="URL", help="local[N], spark://HOST:PORT, yarn or k8s://URL (default: that of spark-submit, else local[*])")
    add("--spark_conf", action="append", default=[], metavar="KEY=VALUE", help="Spark setting; may be given several times")
    add("--spark_log", type=Path, metavar="FILE", help="file for the log of Spark's driver (default: none)")
    add("--spark_wait", type=_seconds, metavar="SECONDS", help="longest wait of the first task for an executor, in seconds (default: 120)")


def spark_settings(given: argparse.Namespace, name: str) -> SparkSettings | None:
    """Return the settings of a run on Spark, None for another engine. Raises UserError where a flag is wrong."""
    if given.engine != SPARK:
        for flag in ("spark_master", "spark_conf", "spark_log", "spark_wait"):
            if getattr(given, flag):
                print(f"{name}: warning: --{flag} has no effect without --engine {SPARK}", file=sys.stderr)
        return None
    conf = {}
    for setting in given.spark_conf:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise UserError(f"--spark_conf {setting}: expected KEY=VALUE with a Spark key, such as spark.executor.memory=8g")
        conf[key] = value
    if given.spark_master and given.spark_master.startswith("sc://"):
        raise UserError(f"--spark_master {given.spark_master}: Spark Connect is not supported; expected local[N], spark://, yarn or k8s://")
    if given.spark_log and not given.spark_log.parent.is_dir():
        raise UserError(f"--spark_log {given.spark_log}: no such folder: {given.spark_log.parent}")
    return SparkSettings(name, given.spark_master, conf, given.spark_log and Path(os.path.abspath(given.spark_log)), given.spark_wait or 120.0)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return found
