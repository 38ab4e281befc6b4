"""Measure how fast raw rows are preprocessed into a dataset, compared with usual scripts for pandas with scikit-learn, and for PyArrow.

  python -m benchmarks.preproc
  python -m benchmarks.preproc --rows 200000 --num_rounds 1

A click log in the form of Criteo's goes through `preproc.criteo`, a CSV file of 20 columns of texts through `preproc.table`, and the seven files of
`dataloading.generate_outbrain` through `preproc.outbrain`, where the peer makes the same 26 features with pandas. Each turn is a new process with an
empty folder; its time excludes the imports. The peers hold everything in memory, check nothing, and keep no vocabulary. A peer that is not installed
is not measured, which is reported.
"""

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from benchmarks.children import answer, last_answer, task
from benchmarks.options import Options, run
from benchmarks.peak_memory import PeakMemory
from benchmarks.preproc_peers import by_pandas, by_pyarrow
from benchmarks.raw_logs import names_of, write_log, write_table
from benchmarks.report import Report
from benchmarks.rounds import median, speedup, spread
from benchmarks.scratch import scratch
from dataloading import generate_outbrain
from utils.config.option import option

MODULE = "benchmarks.preproc"
CRITEO, TABLE, PANDAS, PYARROW = "preproc.criteo", "preproc.table", "pandas, scikit-learn", "PyArrow"
OUTBRAIN, MERGES = "preproc.outbrain", "pandas, merges"
NEEDS = {CRITEO: "polars", TABLE: "preproc.table", PANDAS: "sklearn", PYARROW: "pyarrow", OUTBRAIN: "preproc.outbrain", MERGES: "pandas"}
KINDS = {"log": (CRITEO, PANDAS, PYARROW), "table": (TABLE, PANDAS, PYARROW), "outbrain": (OUTBRAIN, MERGES)}
_ROW_BYTES = {"log": 270, "table": 400, "outbrain": 100}
_TEST_SHARE = 0.05
_ADS_SHOWN = 5  # in a display, a little more than the average


@dataclass(frozen=True)
class PreprocOptions(Options):
    """Preprocessing benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "rows": 2000}

    num_rounds: int = option(3, "number of rounds; each measures all contenders in turn, and medians over rounds are shown", unit="rounds")
    rows: int = option(2_000_000, "training rows of each file (test rows: a twentieth); for Outbrain's files, clicks", unit="rows")
    frequency_threshold: int = option(3, "least number of occurrences of a value that gets its own id", unit="rows")
    folder: str | None = option(None, "folder for the files; the default is the system's temporary folder")


def main(options: PreprocOptions, report: Report) -> None:
    """Measure and print."""
    for kind, methods in KINDS.items():
        present = [name for name in methods if _present(NEEDS[name])]
        for name in set(methods) - set(present):
            report.say(f"{name} is not measured: {NEEDS[name]} cannot be imported")
        with scratch(options.folder, 4 * _ROW_BYTES[kind] * options.rows, f"the {kind} and its dataset") as folder:
            if kind == "outbrain":
                report.say(f"writing raw files of {options.rows:,} clicks to {folder}")
                generate_outbrain.main(["--displays", str(max(100, options.rows // _ADS_SHOWN)), "--dst", str(folder / "raw")])
                clicks = pl.scan_csv(folder / "raw" / "clicks_train.csv").select(pl.len()).collect().item()
                _measure(options, report, kind, present, tuple(sorted((folder / "raw").glob("*.csv"))), clicks)
                continue
            files, counts = (folder / "train", folder / "test"), (options.rows, max(1, int(options.rows * _TEST_SHARE)))
            report.say(f"writing a {kind} of {sum(counts):,} rows to {folder}")
            for seed, (path, rows) in enumerate(zip(files, counts, strict=True)):
                (write_log if kind == "log" else write_table)(path, rows, seed)
            _measure(options, report, kind, present, files, sum(counts))


def _measure(options: PreprocOptions, report: Report, kind: str, methods: list[str], files: tuple[Path, ...], rows: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    peaks: dict[str, list[float]] = {}
    for _ in range(options.num_rounds):
        for name in methods:
            work = files[0].with_name("out")
            done = last_answer(MODULE, method=name, kind=kind, files=list(map(str, files)), folder=str(work), threshold=options.frequency_threshold)
            shutil.rmtree(work)
            seconds[name].append(done["seconds"])
            peaks.setdefault(name, []).append(done["peak_mib"])
    own = methods[0]
    lines = [(name, rows / median(seconds, name), speedup(seconds, own, name), max(peaks[name]), spread(seconds, name)) for name in methods]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    report.table(f"{kind}, {rows:,} rows, {megabytes:,.0f} MB", ("", "rows/s", f"time of {own}", "peak MiB", "spread"), lines)
    rates = {name: rows / median(seconds, name) for name in methods}
    most = {name: max(some) for name, some in peaks.items()}
    report.figures[kind] = {"rows": rows, "seconds": seconds, "rows_per_s": rates, "peak_mib": most, "rounds": {"peak_mib": peaks}}


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def child(method: str, kind: str, files: list[str], folder: str, threshold: int) -> None:
    """Do the work of one turn, and answer with its seconds and this process's peak memory."""
    if kind == "outbrain":
        work = _outbrain(method, Path(files[0]).parent, Path(folder))
    elif method in (CRITEO, TABLE):
        command = importlib.import_module(f"{method}.command").main
        flags = ["--train", files[0], "--test", files[1], "--dst", folder, "--frequency_threshold", str(threshold)]
        flags += ["--label", "label"] if method == TABLE else []
        work = lambda: command(flags)  # noqa: E731
    else:
        by = by_pandas if method == PANDAS else by_pyarrow
        importlib.import_module("sklearn.preprocessing" if method == PANDAS else "pyarrow.csv")
        separator = "\t" if kind == "log" else ","
        work = lambda: by(list(map(Path, files)), separator, names_of(kind), threshold, Path(folder))  # noqa: E731
    memory, begun = PeakMemory(), time.perf_counter()
    with memory:
        work()
    answer({"seconds": time.perf_counter() - begun, "peak_mib": memory.peak_bytes / (1 << 20)})


def _outbrain(method: str, raw: Path, folder: Path) -> Callable[[], object]:
    """Return the function that makes the features of Wide & Deep, with its imports done."""
    if method == MERGES:
        importlib.import_module("pandas")
        return lambda: importlib.import_module("benchmarks.outbrain_peer").by_pandas(raw, folder)
    return partial(importlib.import_module(f"{method}.command").main, ["--src", str(raw), "--dst", str(folder)])


if __name__ == "__main__":
    if asked := task():
        sys.exit(child(**asked))
    sys.exit(run(PreprocOptions, main, __doc__))
