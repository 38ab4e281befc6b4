"""Measure `preproc.criteo`, `preproc.table` and `preproc.outbrain` on Spark and on Polars: on this machine, and on standalone clusters of one-core
workers.

  python -m benchmarks.preproc_spark
  python -m benchmarks.preproc_spark --rows 200000 --num_rounds 1 --workers 2
  python -m benchmarks.preproc_spark --kinds outbrain --workers 2

A log in the form of Criteo's goes through the first, a CSV file of 20 columns of texts through the second, Outbrain's raw files through the third.
The workers share this machine, so their number scales as far as its cores do. Each turn is a new process with an empty folder; its time
is that of the command, including the start of Spark. The memory is the driver's: Python and its Java, which on `local[N]` is the executor too.
"""

import json
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
from dataloading import generate_outbrain
from dataloading.synthetic.outbrain_truth import TRUTH
from preproc.criteo import command as criteo
from preproc.outbrain import command as outbrain
from preproc.table import command as table
from utils.config.option import option

MODULE = "benchmarks.preproc_spark"
POLARS = "polars"
KINDS = {"log": criteo, "table": table, "outbrain": outbrain}
_WRITTEN = {"log": write_log, "table": write_table}
_ROW_BYTES = {"log": 270, "table": 400, "outbrain": 100}
# rows of the real data: about a day of the terabyte's logs; Outbrain's clicks
_REAL = {"log": 180_000_000, "table": 180_000_000, "outbrain": 87_000_000}
_ADS_SHOWN = 5  # in a display, approximately
_TEST_SHARE = 0.05
_INTERVAL_S = 0.05


@dataclass(frozen=True)
class SparkOptions(Options):
    """Benchmark of preprocessing by Spark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "rows": 2000, "workers": ("1",), "kinds": ("table",)}

    num_rounds: int = option(1, "number of rounds; each measures all contenders in turn, and medians over rounds are shown", unit="rounds")
    rows: int = option(2_000_000, "training rows of each file (test rows: a twentieth)", unit="rows")
    cores: int = option(2, "cores N of local[N]", unit="cores")
    workers: tuple[str, ...] = option(("1", "2", "4"), "numbers of workers of the clusters", unit="workers")
    kinds: tuple[str, ...] = option(tuple(KINDS), f"files to measure: {', '.join(KINDS)}")
    frequency_threshold: int = option(3, "least number of occurrences of a value that gets its own id", unit="rows")
    folder: str | None = option(None, "folder for the files; the default is the system's temporary folder")

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
    with scratch(options.folder, 4 * _ROW_BYTES[kind] * options.rows, f"the {kind} and its dataset") as folder:
        report.say(f"writing {kind} files of {options.rows:,} rows, and more, to {folder}")
        flags, num_rows = _written(options, kind, folder)
        seconds: dict[str, list[float]] = {}
        peaks: dict[str, list[float]] = {}
        for _ in range(options.num_rounds):
            for name, workers in [(POLARS, 0), (f"local[{options.cores}]", 0), *((f"{size} workers", size) for size in sizes)]:
                done = _turn(name, workers, kind, flags, folder)
                seconds.setdefault(name, []).append(done["seconds"])
                peaks.setdefault(name, []).append(done["peak_mib"])
    rates = {name: num_rows / median(seconds, name) for name in seconds}
    lines = [(name, rate, _REAL[kind] / rate / 3600, max(peaks[name]), spread(seconds, name)) for name, rate in rates.items()]
    report.table(f"{kind}, {num_rows:,} rows", ("", "rows/s", f"hours for {_REAL[kind] // 10**6} million", "driver's peak MiB", "spread"), lines)
    most = {name: max(some) for name, some in peaks.items()}
    report.figures[kind] = {"rows": num_rows, "seconds": seconds, "rows_per_s": rates, "peak_mib": most, "rounds": {"peak_mib": peaks}}


def _written(options: SparkOptions, kind: str, folder: Path) -> tuple[list[str], int]:
    """Write the files; return the flags of a command that reads them, and the number of their rows."""
    if kind == "outbrain":
        generate_outbrain.main(["--displays", str(max(100, options.rows // _ADS_SHOWN)), "--dst", str(folder / "raw")])
        return ["--src", str(folder / "raw")], json.loads((folder / "raw" / TRUTH).read_text())["rows"]
    files, counts = (folder / "train", folder / "test"), (options.rows, max(1, int(options.rows * _TEST_SHARE)))
    for seed, (path, rows) in enumerate(zip(files, counts, strict=True)):
        _WRITTEN[kind](path, rows, seed)
    flags = ["--train", str(files[0]), "--test", str(files[1]), "--frequency_threshold", str(options.frequency_threshold)]
    return [*flags, *(("--label", "label") if kind == "table" else ())], sum(counts)


def _turn(name: str, workers: int, kind: str, files: list[str], folder: Path) -> dict[str, float]:
    with ExitStack() as ending:
        master = name
        if workers:
            (home := folder / "cluster").mkdir()
            ending.callback(shutil.rmtree, home)
            master = ending.enter_context(cluster(home, workers)).url
        out = folder / "out"
        flags = [*files, "--dst", str(out)]
        if name != POLARS:
            flags += ["--engine", "spark", "--spark_master", master]
        if workers:
            conf = ("spark.driver.host=127.0.0.1", "spark.executor.memory=600m", f"spark.default.parallelism={workers}")
            flags += [word for setting in conf for word in ("--spark_conf", setting)]
        done = last_answer(MODULE, kind=kind, flags=flags)
        shutil.rmtree(out)
        return done


def child(kind: str, flags: list[str]) -> None:
    """Run one turn, and answer with its seconds and the driver's peak memory."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(_INTERVAL_S):
            family = [process for process in psutil.Process().children() if process.name() == "java"]
            peak[0] = max(peak[0], sum(_resident(process) for process in (psutil.Process(), *family)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begun = time.perf_counter()
    KINDS[kind].main(flags)
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
