"""Compare a model on the Triton server with its scorer called directly, and with a plain Keras SavedModel in the same Python backend.

  python -m benchmarks.serving
  python -m benchmarks.serving --rows 10000 --batch_sizes 1,64,1024

Every round measures all three in turn, one request at a time, without dynamic batching, over gRPC on the loopback. The Keras model has the same
shapes, and random weights. Latencies are measured in the client, in whose process the scorer is called directly, too.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.children import start
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from serving.connection import Connection
from serving.server import Server, ServerConfig
from serving.stub_environment import stub_environment
from serving.triton_config import config_text, inputs_of_ids
from utils.config.option import option
from utils.config.serving import ExportConfig

NUM_TABLES, NUM_NUMERICAL = 26, 13
DIRECT, SERVER, KERAS = "scorer, called directly", "Triton, dlrm.py --mode export", "Triton, Keras SavedModel"
MOST = 8192


@dataclass(frozen=True)
class ServingOptions(Options):
    """Serving benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "rows": 100, "embedding_dim": 8, "seconds": 0.1, "batch_sizes": (1, 64)}

    num_rounds: int = option(5, "number of rounds; each measures all contenders in turn, and medians over rounds are shown", unit="rounds")
    rows: int = option(100_000, "rows of each of the 26 tables", unit="rows")
    embedding_dim: int = option(128, "columns of the tables", unit="columns")
    batch_sizes: tuple[int, ...] = option((1, 64, 1024, MOST), f"samples a request, at most {MOST}", unit="samples")
    seconds: float = option(2.0, "time for each figure of a round", unit="seconds")
    folder: str | None = option(None, "folder for temporary files; the default is the system's temporary folder")

    def __post_init__(self):
        super().__post_init__()
        if not self.batch_sizes or min(self.batch_sizes) < 1 or max(self.batch_sizes) > MOST:
            raise ValueError(f"--batch_sizes {','.join(map(str, self.batch_sizes))}: expected sizes from 1 to {MOST}")


def main(chosen: ServingOptions, report: Report) -> None:
    """Measure and print."""
    size = 4 * NUM_TABLES * chosen.rows * chosen.embedding_dim
    with scratch(chosen.folder, 3 * size + (1 << 30), "checkpoint and models") as folder:
        export(chosen.rows, chosen.embedding_dim, folder)
        write_keras(folder / "repository", chosen.rows, chosen.embedding_dim)
        import dlrm

        direct = dlrm.load(folder / "checkpoint", mmap=True, cpu=True).over_arrays()
        with Server(folder / "repository", ServerConfig(http_port=0, grpc_port=0, metrics_port=0, exit_seconds=5)) as server:
            report.figures["ready_s"] = server.wait_until_ready()
            ours, keras = (Connection(f"grpc://{server.grpc}", name) for name in ("dlrm", "keras"))
            ways: dict[str, Callable[[dict], Any]] = {
                DIRECT: lambda given: direct.score(*direct.checked(given["numerical"], given["categorical"])),
                SERVER: ours.infer,
                KERAS: keras.infer,
            }
            figures = {name: {size: [] for size in chosen.batch_sizes} for name in ways}
            for number in range(chosen.num_rounds):
                for size in chosen.batch_sizes:
                    given = requests(chosen.rows, size, number)
                    for name, way in ways.items():
                        figures[name][size].append(measured(way, given, chosen.seconds))
    report.figures["seconds"] = {name: {str(size): values for size, values in some.items()} for name, some in figures.items()}
    medians = {name: {size: statistics.median(values) for size, values in some.items()} for name, some in figures.items()}
    columns = [f"batch {size:,}" for size in chosen.batch_sizes]
    report.table("p50 latency, ms", ["", *columns], [(name, *(1e3 * value for value in some.values())) for name, some in medians.items()])
    report.table("samples/s", ["", *columns], [(name, *(size / value for size, value in some.items())) for name, some in medians.items()])


def export(rows: int, dim: int, folder: Path) -> None:
    """Train a model with 26 tables for two batches, into `folder/checkpoint`, and export it into `folder/repository`."""
    widths = ["--embedding_dim", dim, "--bottom_mlp_dims", f"512,256,{dim}"]
    rows = ",".join([str(rows)] * NUM_TABLES)
    data = ["--dataset_type", "synthetic", "--synthetic_dataset_cardinalities", rows, "--synthetic_dataset_train_batches", 2]
    run = ["--cpu", "--batch_size", 64, "--valid_batch_size", 64, "--synthetic_dataset_valid_batches", 1, "--log_path", ""]
    start(sys.executable, "dlrm.py", *data, *widths, *run, "--save_checkpoint_path", folder / "checkpoint")
    flags = ["--max_batch_size", MOST, "--max_queue_delay_us", 0, "--log_path", "", "--cpu"]
    restored = ["--restore_checkpoint_path", folder / "checkpoint", "--export_path", folder / "repository"]
    start(sys.executable, "dlrm.py", "--mode", "export", *restored, *flags)


def requests(rows: int, size: int, seed: int) -> dict[str, np.ndarray]:
    """Return a request of `size` samples with uniform ids."""
    draw = np.random.default_rng(seed)
    return {"numerical": draw.random((size, NUM_NUMERICAL), np.float32), "categorical": draw.integers(0, rows, (size, NUM_TABLES))}


def measured(way: Callable[[dict], Any], given: dict[str, np.ndarray], seconds: float) -> float:
    """Return the median seconds of a call."""
    for _ in range(3):
        way(given)
    found, begun = [], time.perf_counter()
    while time.perf_counter() - begun < seconds or len(found) < 3:
        start_s = time.perf_counter()
        way(given)
        found.append(time.perf_counter() - start_s)
    return statistics.median(found)


# The peer -------------------------------------------------------------------------------------------------------------------

PEER = """
import tensorflow as tf
import triton_python_backend_utils as triton
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        self.model = tf.saved_model.load(str(Path(__file__).parent / "saved")).signatures["serving_default"]

    def execute(self, requests):
        responses = []
        for request in requests:
            given = {name: tf.constant(triton.get_input_tensor_by_name(request, name).as_numpy()) for name in ("numerical", "categorical")}
            scores = self.model(**given)["probability"]
            responses.append(triton.InferenceResponse([triton.Tensor("probability", scores.numpy())]))
        return responses
"""


def write_keras(repository: Path, rows: int, dim: int) -> None:
    """Write a DLRM of stock Keras layers as a SavedModel, by `keras.export.ExportArchive`, as a model named `keras` in the repository."""
    import keras
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    from benchmarks.keras_dlrm import keras_dlrm

    model = keras_dlrm(rows, dim).model
    version = repository / "keras/1"
    version.mkdir(parents=True)
    specs = {name: tf.TensorSpec([None, width], dtype, name) for name, width, dtype in _INPUTS}
    called = tf.function(lambda numerical, categorical: model([numerical, categorical]), input_signature=list(specs.values()))
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", called)
    archive.write_out(version / "saved", verbose=False)
    (version / "model.py").write_text(PEER)
    options = ExportConfig(model_name="keras", max_batch_size=MOST, max_queue_delay_us=0)
    text = config_text(options, "triton", inputs_of_ids(NUM_NUMERICAL, NUM_TABLES), {"EXECUTION_ENV_PATH": str(stub_environment())})
    (version.parent / "config.pbtxt").write_text(text)


_INPUTS = (("numerical", NUM_NUMERICAL, "float32"), ("categorical", NUM_TABLES, "int64"))


if __name__ == "__main__":
    sys.exit(run(ServingOptions, main, __doc__))
