"""Measure throughput against latency of a model on a Triton server; write a CSV file and a picture.

  python -m serving.load --url grpc://127.0.0.1:8001 --model_name dlrm --experiments static,dynamic,open
  python -m serving.load --url grpc://127.0.0.1:8001 --experiments static --tool perf_analyzer --perf_analyzer PATH

static: requests of 1 to 65,536 samples, one at a time. dynamic: requests of 64, 1,024 and 4,096 samples, 1 to 64 at a time, which the server joins
into batches. open: requests at random times (Poisson arrivals) and at a given rate, sent whether or not earlier ones have been answered, as by real
users; a latency counts from the time when the request was due. The search ends at the largest rate within --latency_limit_ms.
"""

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from serving.connection import Connection
from serving.generators import Measured, closed_loop, open_loop
from serving.perf_analyzer import PerfAnalyzer
from serving.picture import picture
from utils.commands import run_command
from utils.config.flags import Parser, add_flags
from utils.config.option import Bounds, build, check, check_options, option
from utils.errors import UserError
from utils.signals import EndedBySignals

NAME = "serving.load"
STATIC, DYNAMIC, OPEN = EXPERIMENTS = ("static", "dynamic", "open")
OWN, ANALYZER = TOOLS = ("own", "perf_analyzer")
_STEP = 1.25  # factor by which the rate grows in the search
_MOST_STEPS = 40


@dataclass(frozen=True)
class LoadConfig:
    """Load."""

    url: str = option("grpc://127.0.0.1:8001", "gRPC address of the server: grpc://HOST:PORT")
    model_name: str = option("dlrm", "name of the model")
    experiments: tuple[str, ...] = option(EXPERIMENTS, "experiments to run: static, dynamic, open")
    tool: str = option(OWN, "sender of the requests in the static and dynamic experiments", choices=TOOLS)
    perf_analyzer: str = option("perf_analyzer", "path of NVIDIA's perf_analyzer, for --tool perf_analyzer")
    static_batch_sizes: tuple[int, ...] = option(tuple(2**power for power in range(17)), "samples a request in the static experiment", unit="samples")
    dynamic_batch_sizes: tuple[int, ...] = option((64, 1024, 4096), "samples a request in the other experiments", unit="samples")
    concurrency: tuple[int, ...] = option((1, 2, 4, 8, 16, 32, 64), "requests in flight at a time in the dynamic experiment")
    seconds: float = option(
        3.0, "measuring time of each point", unit="seconds", bounds=Bounds("more than 0 seconds", 0, above=True, besides=(math.inf,))
    )
    rates: tuple[int, ...] = option((), "requests a second in the open experiment; the default searches for the largest rate within the limit")
    latency_limit_ms: float = option(
        10.0,
        "limit of the 95th percentile of latency, for the search of the largest rate",
        unit="ms",
        bounds=Bounds("more than 0 ms", 0, above=True, besides=(math.inf,)),
    )
    seed: int = option(0, "seed of the random samples and arrival times")
    output: str = option("load.csv", "CSV file for the points")
    picture: str = option("load.svg", "SVG file for throughput against latency; empty for none")

    def __post_init__(self):
        check_options(self)
        check(
            bool(self.experiments) and set(self.experiments) <= set(EXPERIMENTS), "experiments", ",".join(self.experiments), "static, dynamic, open"
        )
        for name in ("static_batch_sizes", "dynamic_batch_sizes", "concurrency"):
            check(bool(getattr(self, name)) and min(getattr(self, name)) >= 1, name, ",".join(map(str, getattr(self, name))), "numbers of at least 1")
        check(all(rate >= 1 for rate in self.rates), "rates", ",".join(map(str, self.rates)), "numbers of at least 1")


@dataclass(frozen=True)
class Point:
    """A measured point, one line of the table; latencies in ms, `rate` in requests/s sent (open experiment only)."""

    experiment: str
    batch_size: int
    concurrency: int
    rate: float
    requests: int
    failed: int
    samples_per_s: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float

    def __str__(self) -> str:
        load = f"{self.rate:,.0f} requests/s" if self.experiment == OPEN else f"{self.concurrency} at a time"
        return (
            f"{self.experiment}: {self.batch_size:,} samples a request, {load}: {self.samples_per_s:,.0f} samples/s, p50 {self.p50_ms:.2f} ms, "
            f"p95 {self.p95_ms:.2f} ms, p99 {self.p99_ms:.2f} ms" + (f", {self.failed:,} failed" if self.failed else "")
        )


def point_of(experiment: str, batch_size: int, concurrency: int, rate: float, measured: Measured) -> Point:
    """Convert a measurement to a point."""
    latencies = 1e3 * (measured.latencies_s if len(measured.latencies_s) else np.full(1, np.nan))
    quantiles = (float(np.percentile(latencies, q)) for q in (50, 95, 99))
    samples = batch_size * len(measured.latencies_s) / measured.seconds
    return Point(experiment, batch_size, concurrency, rate, len(measured.latencies_s), measured.failed, samples, float(latencies.mean()), *quantiles)


class Experiments:
    """The load experiments on one model.

    Args:
        config: options of the experiments.
        connection: connection to the model.
    """

    def __init__(self, config: LoadConfig, connection: Connection):
        self._config, self._connection = config, connection
        self._draw = np.random.default_rng(config.seed)
        self._analyzer = PerfAnalyzer(config.perf_analyzer, config.url, config.model_name) if config.tool == ANALYZER else None

    def points(self) -> Iterator[Point]:
        """Yield every point as soon as it is measured."""
        config = self._config
        if STATIC in config.experiments:
            for size in self._fitting(config.static_batch_sizes):
                yield point_of(STATIC, size, 1, np.nan, self._closed(size, 1))
        if DYNAMIC in config.experiments:
            for size in self._fitting(config.dynamic_batch_sizes):
                for count in config.concurrency:
                    yield point_of(DYNAMIC, size, count, np.nan, self._closed(size, count))
        if OPEN in config.experiments:
            for size in self._fitting(config.dynamic_batch_sizes):
                yield from (self._open(size, rate) for rate in config.rates) if config.rates else self._climbed(size)

    def _fitting(self, sizes: Sequence[int]) -> list[int]:
        return [size for size in sizes if size <= self._connection.max_batch_size]

    def _closed(self, size: int, concurrency: int) -> Measured:
        samples = self._samples(size)
        if self._analyzer:
            return self._analyzer.measured(samples, concurrency, self._config.seconds)
        return closed_loop(self._connection, samples, concurrency, self._config.seconds)

    def _open(self, size: int, rate: float) -> Point:
        measured = open_loop(self._connection, self._samples(size), rate, self._config.seconds, self._draw)
        return point_of(OPEN, size, 0, rate, measured)

    def _climbed(self, size: int) -> Iterator[Point]:
        """Yield points of rising rates until the limit is exceeded; the last but one is the largest rate within it."""
        alone = self._closed(size, 1)
        rate = max(0.25 * len(alone.latencies_s) / alone.seconds, 1.0)
        for _ in range(_MOST_STEPS):
            point = self._open(size, rate)
            yield point
            if not within(point, self._config.latency_limit_ms):
                return
            rate *= _STEP

    def _samples(self, size: int) -> dict[str, np.ndarray]:
        """Return a request with ids uniform over the rows of a table and numericals from 0 to 1."""
        widths = {one.name: (one.kind, one.width) for one in self._connection.inputs}
        if unknown := [name for name, (kind, _) in widths.items() if kind not in ("FP32", "INT64")]:
            raise UserError(f"{self._config.url}: input {unknown[0]} takes texts; expected a model of ids (exported with --inputs ids)")
        rows = self._connection.rows
        found = {}
        for name, (kind, width) in widths.items():
            shape = (size, width)
            found[name] = self._draw.random(shape, np.float32) if kind == "FP32" else self._draw.integers(0, rows if len(rows) == width else 1, shape)
        return found


def within(point: Point, limit_ms: float) -> bool:
    """Return whether a point stays within the limit at the 95th percentile and no request failed."""
    return point.failed == 0 and point.p95_ms <= limit_ms


def largest(points: Sequence[Point], limit_ms: float) -> list[Point]:
    """Return, for each batch size of the open experiment, the point of the largest rate within the limit."""
    found: dict[int, Point] = {}
    for point in points:
        if point.experiment == OPEN and within(point, limit_ms) and (point.batch_size not in found or point.rate > found[point.batch_size].rate):
            found[point.batch_size] = point
    return list(found.values())


def main() -> None:
    """Run the command line: measure and write the points."""
    parser = Parser(prog=NAME, description=__doc__)
    add_flags(parser, [LoadConfig])
    config = build(LoadConfig, vars(parser.parse_strictly(sys.argv[1:])))
    connection = Connection(config.url, config.model_name)
    if connection.over_http:
        raise UserError(f"--url {config.url}: expected grpc://HOST:PORT, as the load is sent over gRPC")
    points = []
    with Path(config.output).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([field.name for field in fields(Point)])
        for point in Experiments(config, connection).points():
            points.append(point)
            table.writerow(astuple(point))
            print(point, flush=True)
    for point in largest(points, config.latency_limit_ms):
        rates = f"{point.rate:,.0f} requests/s of {point.batch_size:,} samples, {point.samples_per_s:,.0f} samples/s"
        print(f"within {config.latency_limit_ms:g} ms at p95: {rates}")
    if config.picture:
        Path(config.picture).write_text(picture(points))
    print(f"written: {config.output}" + (f", {config.picture}" if config.picture else ""))


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
