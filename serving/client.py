"""Score a split, or the raw rows of a file, by a model on a Triton server: AUC, latencies, the server's own figures.

python -m serving.client --url grpc://127.0.0.1:8001 --model_name dlrm --dataset_path DATASET --split test
python -m serving.client --url grpc://127.0.0.1:8001 --model_name dlrm --data rows.parquet --label clicked --predictions_path scores.parquet
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
from serving.description import CATEGORICAL
from serving.raw_file import RawFile, is_raw
from serving.split_inputs import input_names, split_inputs
from utils.commands import run_command
from utils.config.flags import Parser, add_flags
from utils.config.option import Bounds, build, check_options, option
from utils.errors import UserError
from utils.metrics.binary import exact_auc

NAME = "serving.client"


@dataclass(frozen=True)
class ClientConfig:
    """Client."""

    url: str = option("grpc://127.0.0.1:8001", "address of the server: grpc://HOST:PORT or http://HOST:PORT")
    model_name: str = option("dlrm", "name of the model")
    model_version: int | None = option(None, "number of the version; the default is the version that the server chooses")
    dataset_path: str | None = option(None, "folder of the dataset, for a model of ids")
    data: str | None = option(None, "file of raw rows, CSV with a header or Parquet, for a model of raw values (exported with --inputs raw)")
    label: str | None = option(None, "column of --data with 0 and 1, for the AUC")
    predictions_path: str | None = option(None, "Parquet file for the scores: row, score, and label where there is one")
    feature_spec: str = option("feature_spec.yaml", "name of the feature specification in the dataset's folder")
    split: str = option("test", "split to score")
    batch_size: int = option(4096, "samples a request", unit="samples", bounds=Bounds("at least 1", 1, 2**31, below=True))
    concurrency: int = option(2, "requests in flight at a time", unit="requests", bounds=Bounds("1 to 1024", 1, 1024))
    max_requests: int = option(
        -1, "requests to send; -1 sends all rows", unit="requests", bounds=Bounds("at least 1, or -1 for no limit", 1, besides=(-1,))
    )
    dump_requests: str | None = option(None, "folder for requests.json, an --input-data file of perf_analyzer; no request is sent then")

    def __post_init__(self):
        check_options(self)
        if self.label is not None and self.data is None:
            raise ValueError("--label has no effect without --data: a dataset has its own labels; drop --label")
        if self.data is not None and self.dataset_path is not None:
            raise ValueError("--data and --dataset_path exclude each other: --data has raw rows, --dataset_path has ids; drop one of them")


@dataclass
class RequestScores:
    """The result of a split's requests: scores and labels `[n]` (None for a split without labels), and the seconds of each request."""

    scores: np.ndarray
    labels: np.ndarray | None
    latencies: np.ndarray
    seconds: float


class _SplitRows:
    """The rows of a split, for a model of ids. Raises UserError where the dataset or the split is missing or damaged."""

    def __init__(self, config: ClientConfig):
        spec = FeatureSpec.from_yaml(Path(config.dataset_path) / config.feature_spec)
        self._split = TfRawSplit(spec, config.split)
        self.num_samples = self._split.num_samples
        self.names = input_names(spec)

    def inputs(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the rows as inputs, see `split_inputs`."""
        return split_inputs(self._split, start, stop)

    def labels(self, stop: int) -> np.ndarray | None:
        """Return the labels of the first rows; None where the split has none."""
        return self._split.read_labels(0, stop) if self._split.labelled else None


class Requests:
    """Rows divided into requests.

    Args:
        config: options that select and divide the rows.
        connection: connection to the model, which describes its inputs; without one (None) the rows are those of a split.

    Raises:
        UserError: the rows are missing or damaged, or do not fit the model.
    """

    def __init__(self, config: ClientConfig, connection: Connection | None = None):
        self._source = _source(config, connection)
        self._size, limit = config.batch_size, config.max_requests
        count = -(-self._source.num_samples // self._size)
        self.count = count if limit == -1 else min(count, limit)

    def rows(self, number: int) -> tuple[int, int]:
        """Return the first row of a request and the row after its last."""
        return number * self._size, min((number + 1) * self._size, self._source.num_samples)

    def inputs(self, number: int) -> dict[str, np.ndarray]:
        """Return the inputs of a request, each `[B, width]`."""
        return self._source.inputs(*self.rows(number))

    def labels(self) -> np.ndarray | None:
        """Return the labels of all requested rows; None where there are none."""
        return self._source.labels(self.rows(self.count - 1)[1])


def _source(config: ClientConfig, connection: Connection | None) -> _SplitRows | RawFile:
    raw = connection is not None and is_raw(connection.inputs)
    if raw and config.data is None:
        given = f"--dataset_path {config.dataset_path} holds ids" if config.dataset_path else "--data is missing"
        raise UserError(f"{given}: model {connection.model} takes raw values; --data FILE (CSV or Parquet) gives rows with {_listed(connection)}")
    if config.data is not None:
        if not raw:
            why = "--dump_requests writes ids" if connection is None else f"model {connection.model} takes ids"
            raise UserError(f"--data {config.data}: {why}; give the folder of a tf_raw dataset by --dataset_path")
        return RawFile(config.data, connection.inputs, config.label)
    if config.dataset_path is None:
        raise UserError("--dataset_path is missing: give the folder of a tf_raw dataset, or --data FILE for a model of raw values")
    found = _SplitRows(config)
    if connection is not None:
        check_inputs(connection, found.names)
    return found


def _listed(connection: Connection) -> str:
    names = [one.name for one in connection.inputs]
    return f"the column{'s' if len(names) > 1 else ''} {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def scored(config: ClientConfig, requests: Requests) -> RequestScores:
    """Send every request and collect the scores. Raises UserError where one fails."""
    local, connections = threading.local(), []

    def send(number: int) -> tuple[np.ndarray, float]:
        # Over HTTP a connection serves one thread only.
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
    return RequestScores(np.concatenate([scores for scores, _ in found]), requests.labels(), np.array([latency for _, latency in found]), seconds)


def report(config: ClientConfig, result: RequestScores, statistics: Mapping) -> Iterator[str]:
    """Yield lines about the scores, the latencies and the server."""
    positive = None if result.labels is None else result.labels.astype(bool)
    known = positive is not None and 0 < positive.mean() < 1
    auc = f"AUC {exact_auc(result.scores, positive):.10f}" if known else "AUC undefined"
    yield f"{config.data or config.split}: {auc}, {len(result.scores):,} samples in {len(result.latencies):,} requests"
    shown = ", ".join(f"p{q} {1e3 * np.percentile(result.latencies, q):.3f} ms" for q in (50, 90, 95, 99))
    rate = len(result.scores) / result.seconds
    yield f"{rate:,.0f} samples/s, {config.concurrency} requests at a time; latency mean {1e3 * result.latencies.mean():.3f} ms, {shown}"
    yield from server_lines(statistics)


def server_lines(statistics: Mapping) -> Iterator[str]:
    """Yield the server's statistics: requests, executions, and mean times of the stages."""
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
    """Write the requests' samples for perf_analyzer's `--input-data`, one entry each; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number in range(requests.count):
        inputs = requests.inputs(number)
        for row in range(len(inputs[CATEGORICAL])):
            entries.append({name: {"b64": base64.b64encode(values[row].tobytes()).decode()} for name, values in inputs.items()})
    path = folder / "requests.json"
    path.write_text(json.dumps({"data": entries}))
    return path


def write_predictions(path: Path, result: RequestScores) -> None:
    """Write one row for each sample, in the samples' order. Raises UserError where the file cannot be written."""
    import polars as pl

    columns = {"row": np.arange(len(result.scores)), "score": result.scores}
    columns |= {} if result.labels is None else {"label": result.labels.astype(np.int8)}
    try:
        pl.DataFrame(columns).write_parquet(path)
    except OSError as error:
        raise UserError(f"--predictions_path {path}: cannot be written: {error.strerror or error}") from None


def main() -> None:
    """Run the command line: score, or dump requests."""
    parser = Parser(prog=NAME, description=__doc__)
    add_flags(parser, [ClientConfig])
    config = build(ClientConfig, vars(parser.parse_strictly(sys.argv[1:])))
    if config.dump_requests is not None:
        requests = Requests(config)
        path = dump(requests, Path(config.dump_requests))
        print(f"{requests.rows(requests.count - 1)[1]:,} samples written: {path}")
        return
    if config.predictions_path is not None and not Path(config.predictions_path).absolute().parent.is_dir():
        raise UserError(f"--predictions_path {config.predictions_path}: there is no folder {Path(config.predictions_path).absolute().parent}")
    connection = Connection(config.url, config.model_name, config.model_version)
    try:
        requests = Requests(config, connection)
        if config.batch_size > connection.max_batch_size:
            raise UserError(f"--batch_size {config.batch_size}: the server takes at most {connection.max_batch_size} samples a request")
        result = scored(config, requests)
        for line in report(config, result, connection.statistics()):
            print(line)
    finally:
        connection.close()
    if config.predictions_path is not None:
        write_predictions(Path(config.predictions_path), result)
        print(f"{len(result.scores):,} scores written: {config.predictions_path}")


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
