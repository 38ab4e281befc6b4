"""Measure what requests wait while a version is published on their server's machine.

  python -m benchmarks.publishing
  python -m benchmarks.publishing --rows 10000 --num_rounds 2 --batch_sizes 1

A model with 26 tables is served. Requests arrive at random times (an open loop), at a share of the most that the server answers, before, during and
after `serving.publish` exports, proves and loads the next version. A latency counts from the time when a request was due.
"""

import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from benchmarks.serving import NUM_TABLES, export, requests
from serving.connection import Connection
from serving.generators import closed_loop, open_loop
from serving.server import Server, ServerConfig
from utils.config.option import option

BEFORE, DURING, AFTER = PHASES = ("before", "during", "after")
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "longest": 1.0}


@dataclass(frozen=True)
class PublishingOptions(Options):
    """Publishing benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "rows": 100, "embedding_dim": 8, "seconds": 0.5, "batch_sizes": (1,)}

    num_rounds: int = option(5, "number of rounds; each publishes a version, and medians over rounds are shown", unit="rounds")
    rows: int = option(100_000, "rows of each of the 26 tables", unit="rows")
    embedding_dim: int = option(128, "columns of the tables", unit="columns")
    batch_sizes: tuple[int, ...] = option((1, 64), "samples a request", unit="samples")
    load: float = option(0.4, "arriving requests, as a share of the most that are answered one after the other")
    seconds: float = option(10.0, "time before and after a publication", unit="seconds")
    folder: str | None = option(None, "folder for temporary files; the default is the system's temporary folder")


def main(chosen: PublishingOptions, report: Report) -> None:
    """Measure and print."""
    size = 4 * NUM_TABLES * chosen.rows * chosen.embedding_dim
    with scratch(chosen.folder, 4 * size + (1 << 30), "checkpoint and models") as folder:
        export(chosen.rows, chosen.embedding_dim, folder)
        with Server(folder / "repository", ServerConfig(http_port=0, grpc_port=0, metrics_port=0, exit_seconds=5)) as server:
            server.wait_until_ready()
            words = ["-m", "serving.publish", "--repository", folder / "repository", "--checkpoint", folder / "checkpoint"]
            publish = [str(word) for word in (sys.executable, *words, "--url", f"grpc://{server.grpc}", "--keep", 1)]
            connection = Connection(f"grpc://{server.grpc}", "dlrm")
            found = {of: [_round(chosen, connection, publish, of, number) for number in range(chosen.num_rounds)] for of in chosen.batch_sizes}
    report.figures["rounds"] = {str(of): rounds for of, rounds in found.items()}
    for of, rounds in found.items():
        rows = []
        for phase in PHASES:
            rows.append((phase, *(1e3 * statistics.median(one[phase][name] for one in rounds) for name in SHARES)))
        rows.append(("during / before", *(statistics.median(one[DURING][name] / one[BEFORE][name] for one in rounds) for name in SHARES)))
        report.table(f"latency of {of} samples, ms; {rounds[0]['rate']:.0f} requests/s", ["", *SHARES], rows)
    report.say(f"a publication took {statistics.median(one['seconds'] for rounds in found.values() for one in rounds):.1f} s")


def _round(chosen: PublishingOptions, connection: Connection, publish: list[str], size: int, number: int) -> dict[str, Any]:
    given, draw = requests(chosen.rows, size, number), np.random.default_rng(number)
    most = closed_loop(connection, given, 1, min(2.0, chosen.seconds))
    rate = chosen.load * len(most.latencies_s) / most.seconds
    found: dict[str, Any] = {"rate": rate, BEFORE: _shares(open_loop(connection, given, rate, chosen.seconds, draw).latencies_s)}
    parts, ended = [], threading.Event()

    def sends() -> None:
        while not ended.is_set():
            parts.append(open_loop(connection, given, rate, 0.5, draw).latencies_s)

    thread, begun = threading.Thread(target=sends), time.monotonic()
    thread.start()
    try:
        subprocess.run(publish, check=True, stdout=subprocess.DEVNULL)
    finally:
        found["seconds"] = time.monotonic() - begun
        ended.set()
        thread.join()
    return found | {DURING: _shares(np.concatenate(parts)), AFTER: _shares(open_loop(connection, given, rate, chosen.seconds, draw).latencies_s)}


def _shares(latencies_s: np.ndarray) -> dict[str, float]:
    return {name: float(np.quantile(latencies_s, share)) for name, share in SHARES.items()}


if __name__ == "__main__":
    sys.exit(run(PublishingOptions, main, __doc__))
