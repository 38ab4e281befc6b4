"""Score a split by a model on a Triton server: AUC, latencies, the server's own figures.

python -m serving.client --url grpc://127.0.0.1:8001 --model_name dlrm --dataset_path DATASET --split test
python -m serving.client --url http://127.0.0.1:8000 --model_name dlrm --dataset_path DATASET --batch_size 1 --max_requests 1000
python -m serving.client --dataset_path DATASET --dump_requests REQUESTS --batch_size 64     # perf_analyzer's --input-data, without a server
"""

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from serving.connection import Connection, check_inputs
from serving.description import CATEGORICAL, NUMERICAL
from utils.errors import UserError, run_command
from utils.flags import Parser, add_flags, build, check, check_types, option
from utils.metrics.binary import exact_auc

NAME = "serving.client"


@dataclass(frozen=True)
class ClientConfig:
    """Client."""

    url: str = option("grpc://127.0.0.1:8001", "of the server: grpc://HOST:PORT or http://HOST:PORT")
    model_name: str = option("dlrm", "name of the model")
    model_version: int | None = option(None, "number of the version; the default is the one that the server chooses")
    dataset_path: str | None = option(None, "folder of the dataset")
    feature_spec: str = option("feature_spec.yaml", "name of the feature specification in the dataset's folder")
    split: str = option("test", "split to score")
    batch_size: int = option(4096, "samples a request", unit="samples")
    concurrency: int = option(2, "requests that are outstanding at a time", unit="requests")
    max_requests: int = option(-1, "stop after so many; -1 for the whole split", unit="requests")
    dump_requests: str | None = option(None, "folder for requests.json, which perf_analyzer takes as --input-data; nothing is sent then")

    def __post_init__(self):
        check_types(self)
        check(1 <= self.batch_size < 2**31, "batch_size", self.batch_size, "at least 1")
        check(1 <= self.concurrency <= 1024, "concurrency", self.concurrency, "1 to 1024")
        check(self.max_requests == -1 or self.max_requests >= 1, "max_requests", self.max_requests, "at least 1, or -1 for no limit")


@dataclass
class Scored:
    """What a split's requests came to: scores and labels `[n]` (no labels where the split has none), and the seconds of each request."""

    scores: np.ndarray
    labels: np.ndarray | None
    latencies: np.ndarray
    seconds: float


class Requests:
    """A split cut into requests.

    Args:
        config: which split, and how.

    Raises:
        UserError: the dataset or the split is missing or damaged.
    """

    def __init__(self, config: ClientConfig):
        if config.dataset_path is None:
            raise UserError("--dataset_path is missing: give the folder of a tf_raw dataset")
        spec = FeatureSpec.from_yaml(Path(config.dataset_path) / config.feature_spec)
        self.split = TfRawSplit(spec, config.split)
        self._size, limit = config.batch_size, config.max_requests
        count = -(-self.split.num_samples // self._size)
        self.count = count if limit == -1 else min(count, limit)
        self.names = [NUMERICAL, CATEGORICAL] if spec.numerical else [CATEGORICAL]

    def rows(self, number: int) -> tuple[int, int]:
        """First and last row of a request."""
        return number * self._size, min((number + 1) * self._size, self.split.num_samples)

    def inputs(self, number: int) -> dict[str, np.ndarray]:
        """`numerical` `[B, M]` float32 and `categorical` `[B, K]` int64 of a request."""
        start, stop = self.rows(number)
        columns = [self.split.read_ids(place, start, stop).reshape(stop - start, -1) for place, _ in enumerate(self.split.spec.categorical)]
        found = {CATEGORICAL: np.concatenate(columns, axis=1).astype(np.int64)}
        return found | ({NUMERICAL: self.split.read_numerical(start, stop).astype(np.float32)} if self.split.spec.numerical else {})

    def labels(self) -> np.ndarray | None:
        """Of all rows that are requested."""
        return self.split.read_labels(0, self.rows(self.count - 1)[1]) if self.split.labelled else None


def scored(config: ClientConfig, requests: Requests) -> Scored:
    """Send every request. Raises UserError where one fails."""
    local, connections = threading.local(), []

    def send(number: int) -> tuple[np.ndarray, float]:
        if not hasattr(local, "connection"):
            local.connection = Connection(config.url, config.model_name, config.model_version)
            connections.append(local.connection)
        inputs = requests.inputs(number)
        start = time.perf_counter()
        return local.connection.infer(inputs), time.perf_counter() - start

    start = time.perf_counter()
    with ThreadPoolExecutor(config.concurrency) as pool:
        found = list(pool.map(send, range(requests.count)))
    seconds = time.perf_counter() - start
    for connection in connections:
        connection.close()
    return Scored(np.concatenate([scores for scores, _ in found]), requests.labels(), np.array([latency for _, latency in found]), seconds)


def report(config: ClientConfig, result: Scored, statistics: Mapping) -> Iterator[str]:
    """Lines about the scores, the latencies and the server."""
    positive = None if result.labels is None else result.labels.astype(bool)
    known = positive is not None and 0 < positive.mean() < 1
    auc = f"AUC {exact_auc(result.scores, positive):.10f}" if known else "AUC undefined"
    yield f"{config.split}: {auc}, {len(result.scores):,} samples in {len(result.latencies):,} requests"
    shown = ", ".join(f"p{q} {1e3 * np.percentile(result.latencies, q):.3f} ms" for q in (50, 90, 95, 99))
    rate = len(result.scores) / result.seconds
    yield f"{rate:,.0f} samples/s, {config.concurrency} requests at a time; latency mean {1e3 * result.latencies.mean():.3f} ms, {shown}"
    yield from server_lines(statistics)


def server_lines(statistics: Mapping) -> Iterator[str]:
    """The server's figures: what it joined, and where the time went."""
    inference = statistics.get("inference_stats", {})
    executions = int(statistics.get("execution_count", 0))
    if not executions:
        return
    parts = {}
    for name in ("queue", "compute_input", "compute_infer", "compute_output"):
        one = inference.get(name, {})
        parts[name] = int(one.get("ns", 0)) / max(int(one.get("count", 0)), 1) / 1e6
    failed = int(inference.get("fail", {}).get("count", 0))
    yield (
        f"server, since it started: version {statistics.get('version')}, {int(inference.get('success', {}).get('count', 0)):,} requests with "
        f"{int(statistics.get('inference_count', 0)):,} samples in {executions:,} executions, {failed:,} failed; mean "
        + ", ".join(f"{name} {value:.3f} ms" for name, value in parts.items())
    )


def dump(requests: Requests, folder: Path) -> Path:
    """Write requests as perf_analyzer's `--input-data` takes them, one sample each entry and so many as a request has; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number in range(requests.count):
        inputs = requests.inputs(number)
        for row in range(len(inputs[CATEGORICAL])):
            entries.append({name: {"b64": base64.b64encode(values[row].tobytes()).decode()} for name, values in inputs.items()})
    path = folder / "requests.json"
    path.write_text(json.dumps({"data": entries}))
    return path


def main() -> None:
    """Score, or dump."""
    parser = Parser(prog=NAME, description=__doc__)
    add_flags(parser, [ClientConfig])
    config = build(ClientConfig, vars(parser.parse_strictly(sys.argv[1:])))
    requests = Requests(config)
    if config.dump_requests is not None:
        path = dump(requests, Path(config.dump_requests))
        print(f"{requests.rows(requests.count - 1)[1]:,} samples written: {path}")
        return
    connection = Connection(config.url, config.model_name, config.model_version)
    check_inputs(connection, requests.names)
    if config.batch_size > connection.max_batch_size:
        raise UserError(f"--batch_size {config.batch_size}: the server takes at most {connection.max_batch_size} samples a request")
    result = scored(config, requests)
    for line in report(config, result, connection.statistics()):
        print(line)


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
