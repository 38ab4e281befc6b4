"""How fast `preproc.criteo` and `preproc.table` are by Spark, beside Polars: on this machine, and on standalone clusters of one-core workers.

  python -m benchmarks.preproc_spark
  python -m benchmarks.preproc_spark --rows 200000 --num_rounds 1 --workers 2

A log in the form of Criteo's goes through the one, a CSV file of 20 columns of texts through the other. The workers share this machine, so their
number scales as far as its cores do. Each turn is a new process that begins with an empty folder; its time is that of the command, the start of Spark
included. The memory is the driver's: Python and its Java, which on `local[N]` is the executor too.
"""

import shutil
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil

from benchmarks.children import answer, last_answer, task
from benchmarks.options import Options, run
from benchmarks.raw_logs import write_log, write_table
from benchmarks.report import Report
from benchmarks.rounds import median, spread
from benchmarks.scratch import scratch
from benchmarks.spark_cluster import cluster
from preproc import criteo, table
from utils.flags import option

MODULE = "benchmarks.preproc_spark"
POLARS = "polars"
DAY_ROWS = 180_000_000  # of the terabyte's logs, about
KINDS = {"log": (criteo, write_log, 270), "table": (table, write_table, 400)}  # command, files, bytes a row
_TEST_SHARE = 0.05
_INTERVAL_S = 0.05


@dataclass(frozen=True)
class SparkOptions(Options):
    """Benchmark of preprocessing by Spark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "rows": 2000, "workers": ("1",), "kinds": ("table",)}

    num_rounds: int = option(1, "rounds; in each everything takes its turn, and medians over them are shown", unit="rounds")
    rows: int = option(2_000_000, "training rows of each file; a twentieth as many are for testing", unit="rows")
    cores: int = option(2, "N of local[N]", unit="cores")
    workers: tuple[str, ...] = option(("1", "2", "4"), "sizes of the clusters", unit="workers")
    kinds: tuple[str, ...] = option(tuple(KINDS), f"files to measure: {', '.join(KINDS)}")
    frequency_threshold: int = option(3, "occurrences from which on a value is kept", unit="rows")
    folder: str | None = option(None, "folder for the files; the default is where temporary files go")

    def __post_init__(self):
        super().__post_init__()
        if unknown := set(self.kinds) - set(KINDS):
            raise ValueError(f"--kinds {','.join(sorted(unknown))}: expected some of {', '.join(KINDS)}")


def main(options: SparkOptions, report: Report) -> None:
    """Measure and print."""
    for kind in options.kinds:
        _measure(options, report, kind)


def _measure(options: SparkOptions, report: Report, kind: str) -> None:
    sizes = [int(size) for size in options.workers]
    _, write, row_bytes = KINDS[kind]
    with scratch(options.folder, 4 * row_bytes * options.rows, f"the {kind} and what becomes of it") as folder:
        files, counts = (folder / "train", folder / "test"), (options.rows, max(1, int(options.rows * _TEST_SHARE)))
        report.say(f"writing a {kind} of {sum(counts):,} rows to {folder}")
        for seed, (path, rows) in enumerate(zip(files, counts, strict=True)):
            write(path, rows, seed)
        seconds: dict[str, list[float]] = {}
        peaks: dict[str, float] = {}
        for _ in range(options.num_rounds):
            for name, workers in [(POLARS, 0), (f"local[{options.cores}]", 0), *((f"{size} workers", size) for size in sizes)]:
                done = _turn(options, name, workers, kind, files, folder)
                seconds.setdefault(name, []).append(done["seconds"])
                peaks[name] = max(peaks.get(name, 0.0), done["peak_mib"])
    rates = {name: sum(counts) / median(seconds, name) for name in seconds}
    lines = [(name, rate, DAY_ROWS / rate / 3600, peaks[name], spread(seconds, name)) for name, rate in rates.items()]
    report.table(f"{kind}, {sum(counts):,} rows", ("", "rows/s", "hours a day of 180 million", "driver's peak MiB", "spread"), lines)
    report.figures[kind] = {"rows": sum(counts), "seconds": seconds, "rows_per_s": rates, "peak_mib": peaks}


def _turn(options: SparkOptions, name: str, workers: int, kind: str, files: tuple[Path, Path], folder: Path) -> dict[str, float]:
    with ExitStack() as ending:
        master = name
        if workers:
            (home := folder / "cluster").mkdir()
            ending.callback(shutil.rmtree, home)
            master = ending.enter_context(cluster(home, workers)).url
        out = folder / "out"
        flags = ["--train", files[0], "--test", files[1], "--dst", out, "--frequency_threshold", options.frequency_threshold]
        flags += ["--label", "label"] if kind == "table" else []
        if name != POLARS:
            flags += ["--engine", "spark", "--spark_master", master]
        if workers:
            conf = ("spark.driver.host=127.0.0.1", "spark.executor.memory=600m", f"spark.default.parallelism={workers}")
            flags += [word for setting in conf for word in ("--spark_conf", setting)]
        done = last_answer(MODULE, kind=kind, flags=list(map(str, flags)))
        shutil.rmtree(out)
        return done


def child(kind: str, flags: list[str]) -> None:
    """One turn: answer with its seconds and the peak memory of the driver."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(_INTERVAL_S):
            family = [process for process in psutil.Process().children() if process.name() == "java"]
            peak[0] = max(peak[0], sum(_resident(process) for process in (psutil.Process(), *family)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begun = time.perf_counter()
    KINDS[kind][0].main(flags)
    seconds = time.perf_counter() - begun
    stop.set()
    watcher.join()
    answer({"seconds": seconds, "peak_mib": peak[0] / (1 << 20)})


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


if __name__ == "__main__":
    if asked := task():
        sys.exit(child(**asked))
    sys.exit(run(SparkOptions, main, __doc__))
