"""Instances of a large model on the Triton server: seconds until it is ready, and the memory that they share.

  python -m benchmarks.replicas
  python -m benchmarks.replicas --instances 2 --scale 1.0 --requests 122

The tables have the rows of the 4.2-billion-parameter model (15.6 GiB) in sparse files, which take no disk space but as much memory as others.
Request i looks up the i-th part of every table's rows. Memory is the sum of the proportional set sizes of the backend's processes.
"""

import json
import os
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil

import dlrm
from benchmarks.children import start
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from benchmarks.workload import t15_rows
from serving import kept_rows
from serving.connection import Connection
from serving.description import CATEGORICAL, CHECKPOINT, NUMERICAL
from serving.integrity import compare_once
from serving.proof import DIFFERENCE
from serving.server import Server, ServerConfig
from utils.checkpoint import manifest
from utils.checkpoint.zarr_store import CHECKSUM_BYTES, create_array, open_array, write_rows
from utils.config.option import option
from utils.config.serving import FLOAT32
from utils.memory import GIB, available_bytes, check_fits

DIM, CHUNK_ROWS, BATCH = 128, 65536, 65536
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class ReplicaOptions(Options):
    """Benchmark of replicas."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "scale": 0.001, "requests": 2}

    num_rounds: int = option(1, "number of starts of the server; medians over them are shown", unit="rounds")
    scale: float = option(1.0, "rows of the tables, in proportion to the 4.2-billion-parameter model's")
    instances: int = option(2, "number of processes that serve the model")
    requests: int = option(122, f"number of requests, of {BATCH:,} samples each; 122 look up every row", unit="requests")
    folder: str | None = option(None, "folder for temporary files; the default is the system's temporary folder")


def main(chosen: ReplicaOptions, report: Report) -> None:
    """Measure and print."""
    rows = [max(int(count * chosen.scale), 1) for count in t15_rows()]
    size = 4 * DIM * sum(rows)
    check_fits(size, f"--scale {chosen.scale}: the tables in the page cache", available_bytes())
    with scratch(chosen.folder, 1 << 30, "the model, its tables sparse") as folder:
        _export(chosen, folder, len(rows))
        enlarge(folder / "repository/dlrm/1" / CHECKPOINT, rows)
        _keep_rows(folder / "repository/dlrm/1", len(rows))
        compare_once(folder / "repository/dlrm/1" / CHECKPOINT)  # as the first load did: the starts that are measured are later ones
        measured = [_round(chosen, folder / "repository", rows) for _ in range(chosen.num_rounds)]
    rounds = {key: [facts[key] for facts in measured] for key in measured[0]}
    middle = {key: statistics.median(values) for key, values in rounds.items()}
    asked = 4 * DIM * sum(min(count, chosen.requests * BATCH) for count in rows)
    report.figures |= {"table_bytes": size, "asked_bytes": asked, **middle, "rounds": rounds}
    columns = ["", "GiB", "of the tables"]
    shown = {"tables": size, "rows asked for": asked}
    shown |= {"all processes, ready": middle["ready_bytes"], "all processes, after the requests": middle["bytes"]}
    title = f"{middle['processes']} processes, ready after {middle['ready_s']:.1f} s"
    report.table(title, columns, [(name, value / GIB, value / size) for name, value in shown.items()])


def _round(chosen: ReplicaOptions, repository: Path, rows: list[int]) -> dict[str, float]:
    """Start the server, ask it, and return the seconds until it was ready and its memory before and after the requests."""
    with Server(repository, ServerConfig(http_port=0, grpc_port=0, metrics_port=0, exit_seconds=5)) as server:
        ready = server.wait_until_ready()
        before = _shared_bytes(server)
        connection, numerical = Connection(f"grpc://{server.grpc}", "dlrm"), np.zeros((BATCH, 13), np.float32)
        for number in range(chosen.requests):
            samples = np.arange(number * BATCH, (number + 1) * BATCH)[:, np.newaxis]
            connection.infer({"numerical": numerical, "categorical": samples % np.array(rows)})
        after = _shared_bytes(server)
    return {"ready_s": ready, "ready_bytes": sum(before), "bytes": sum(after), "processes": len(after)}


def _export(chosen: ReplicaOptions, folder: Path, tables: int) -> None:
    data = ["--dataset_type", "synthetic", "--synthetic_dataset_cardinalities", ",".join(["10"] * tables), "--synthetic_dataset_train_batches", 2]
    steps = ["--cpu", "--batch_size", 64, "--valid_batch_size", 64, "--synthetic_dataset_valid_batches", 1, "--log_path", "", "--embedding_dim", DIM]
    slow = ["--optimizer", "adam", "--learning_rate", 0.0001, "--warmup_steps", 0]
    start(sys.executable, "dlrm.py", *data, *steps, *slow, "--save_checkpoint_path", folder / "checkpoint")
    flags = ["--max_batch_size", BATCH, "--max_queue_delay_us", 0, "--instances", chosen.instances, "--log_path", "", "--cpu"]
    restored = ["--restore_checkpoint_path", folder / "checkpoint", "--export_path", folder / "repository"]
    start(sys.executable, "dlrm.py", "--mode", "export", *restored, *flags)


def enlarge(checkpoint: Path, rows: list[int]) -> None:
    """Enlarge an export's tables to these numbers of rows, all zero, in sparse files.

    A chunk of zeros has the checksum that a small array of such a chunk gets.
    """
    checksums: dict[int, bytes] = {}
    content = json.loads((checkpoint / manifest.NAME).read_text())
    for name, count in zip(content["features"]["categorical"], rows, strict=True):
        folder = checkpoint / "tables" / name / "weights"
        high = min(count, CHUNK_ROWS)
        described = json.loads((folder / "zarr.json").read_text())
        described["shape"] = content["arrays"][f"tables/{name}/weights"]["shape"] = [count, DIM]
        described["chunk_grid"]["configuration"]["chunk_shape"] = [high, DIM]
        _replace(folder / "zarr.json", json.dumps(described).encode())
        content["features"]["categorical"][name] = count
        for number in range(-(-count // high)):
            chunk = folder / "c" / str(number) / "0"
            chunk.parent.mkdir(parents=True, exist_ok=True)
            _replace(chunk, b"")
            if high not in checksums:
                checksums[high] = _checksum_of_zeros(checkpoint.parent / "zeros", high)
            with chunk.open("r+b") as file:
                file.truncate(4 * high * DIM)
                file.seek(0, os.SEEK_END)
                file.write(checksums[high])
    for name in ("files", "checksum", "format"):
        content.pop(name)
    manifest.write(checkpoint, content)


def _checksum_of_zeros(folder: Path, rows: int) -> bytes:
    """Return the bytes at the end of a chunk of zeros, `[rows, DIM]`."""
    create_array(folder, (rows, DIM), (rows, DIM)).result()
    store = open_array(folder)
    write_rows(store, 0, np.zeros((rows, DIM), np.float32), None).result()
    found = (folder / "c/0/0").read_bytes()[-CHECKSUM_BYTES:]
    shutil.rmtree(folder)
    return found


def _keep_rows(version: Path, tables: int) -> None:
    """Replace the rows on which the version checks itself, because the scores of the exported rows have changed."""
    scorer = dlrm.load(version / CHECKPOINT, mmap=True, cpu=True).over_arrays()
    inputs = {NUMERICAL: np.zeros((1, 13), np.float32), CATEGORICAL: np.zeros((1, tables), np.int64)}
    kept_rows.KeptRows(inputs, scorer.score(*scorer.checked(*inputs.values())), DIFFERENCE[FLOAT32]).write(version / kept_rows.FILE)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file by a new one. Writing in place would change the checkpoint, of which the file is a hard link."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _shared_bytes(server: Server) -> list[int]:
    """Return the proportional set size of each process of the backend."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child.memory_full_info().pss for child in children if _STUB in " ".join(child.cmdline()[:1])]


if __name__ == "__main__":
    sys.exit(run(ReplicaOptions, main, __doc__))
