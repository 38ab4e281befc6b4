"""Scoring on a CPU, from one sample to 65,536: the scorer and --mode inference against TensorFlow, Keras, ONNX Runtime, LiteRT and PyTorch.

  python -m benchmarks.inference
  python -m benchmarks.inference --model finalmlp --batch_sizes 1,64,1024,8192 --precision bfloat16
  python -m benchmarks.inference --torch_python TORCH/bin/python --litert_python LITERT/bin/python --batch_sizes 1,64,1024

Every implementation has the same weights and a process of its own; every round measures all in turn, so that compared times are of one run.
Their outputs are compared, too. Keras, LiteRT and PyTorch have DLRM only. With --precision bfloat16 this project and TensorFlow multiply matrices in
bfloat16, the others in float32, which is what they offer on CPUs. The report includes the time in which one thread reads the dense weights once: one
thread cannot score a sample faster.
"""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.children import ANSWER, ROOT
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from benchmarks.workload import check_words
from utils.config.option import option
from utils.config.options import CROSS, FINALMLP, FM, NONE, TOP_MLP_DIMS, WIDE_AND_DEEP
from utils.config.serving import BFLOAT16, FLOAT32
from utils.errors import UserError

NUM_TABLES, NUM_NUMERICAL = 26, 13
OURS = {"scorer": "the scorer", "inference": "--mode inference"}
PEERS = {
    "evaluator": "--mode inference by TensorFlow",
    "savedmodel": "TensorFlow SavedModel",
    "keras": "Keras predict_on_batch",
    "onnx": "ONNX Runtime",
    "litert": "LiteRT",
    "torch": "PyTorch",
}
TITLES = OURS | PEERS
REFERENCE = "savedmodel"
AGREE = {FLOAT32: 1e-5, BFLOAT16: 1e-2}  # the largest accepted difference of probabilities
DLRM = "dlrm"
_ONLY_DLRM = ("keras", "litert", "torch")
_DEEP = ",".join(map(str, TOP_MLP_DIMS))
_STREAM = ",".join(map(str, TOP_MLP_DIMS[:-1]))
MODELS = {  # beside the widths of the tables
    DLRM: {"bottom_mlp_dims": "512,256,{dim}"},
    "dcnv2": {"bottom_mlp_dims": "512,256,{dim}", "interaction": CROSS, "cross_layer_projection_dim": 512},
    "wide_and_deep": {"interaction": WIDE_AND_DEEP, "top_mlp_dims": "1024,1024,1024,1024,1024,1"},
    "lr": {"interaction": NONE},
    "fm": {"interaction": FM, "top_mlp_dims": 1},
    "deepfm": {"interaction": FM, "top_mlp_dims": _DEEP},
    FINALMLP: {"interaction": FINALMLP, "stream1_dims": _STREAM, "stream2_dims": _STREAM, "gate_dims": 256, "num_heads": 8}
    | {"gate1_features": "cat_0", "gate2_features": "cat_1"},
}
_MOST_SECONDS = 600  # time for a child to end


@dataclass(frozen=True)
class InferenceOptions(Options):
    """Inference benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1, "rows": 50, "embedding_dim": 8, "seconds": 0.01, "batch_sizes": (1, 64)}

    model: str = option(DLRM, "model, whose MLPs have hidden layers of 1024, 1024, 512 and 256", choices=tuple(MODELS))
    precision: str = option(FLOAT32, "of the products of this project and of TensorFlow", choices=(FLOAT32, BFLOAT16))
    num_rounds: int = option(5, "number of rounds; each measures all contenders in turn, and medians over rounds are shown", unit="rounds")
    rows: int = option(10_000, "rows of each of the 26 tables", unit="rows")
    embedding_dim: int = option(128, "columns of the tables", unit="columns")
    batch_sizes: tuple[int, ...] = option((1, 64, 1024, 8192, 65536), "samples scored at once", unit="samples")
    seconds: float = option(0.5, "time for each figure of a round", unit="seconds")
    ways: tuple[str, ...] | None = option(
        None, f"implementations to measure, some of {', '.join(TITLES)}; outputs are compared with those of {REFERENCE}; the default is all"
    )
    torch_python: str | None = option(None, "Python that has PyTorch; the default is this Python, if it has PyTorch")
    litert_python: str | None = option(None, "Python that has ai-edge-litert; the default is this Python, if it has ai-edge-litert")
    folder: str | None = option(None, "folder for temporary files; the default is the system's temporary folder")

    def __post_init__(self):
        super().__post_init__()
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"--batch_sizes {','.join(map(str, self.batch_sizes))}: expected positive numbers")
        check_words("ways", self.ways or tuple(TITLES), tuple(TITLES))
        lacking = [way for way in self.ways or () if way in _ONLY_DLRM and self.model != DLRM]
        if lacking:
            raise ValueError(f"--ways {lacking[0]}: measures --model {DLRM} only")

    @property
    def measured(self) -> tuple[str, ...]:
        """The implementations to measure, if they are installed."""
        return self.ways or tuple(way for way in TITLES if self.model == DLRM or way not in _ONLY_DLRM)


class Child:
    """A process that scores with one implementation.

    Args:
        way: the implementation, a key of TITLES.
        python: the Python interpreter that runs it.
        folder: the folder of the models and samples.

    Raises:
        UserError: the process fails; the message holds the last line of its standard error.
    """

    def __init__(self, way: str, python: str, folder: Path):
        self._way, self._said = way, folder / f"{way}.stderr"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        try:
            with self._said.open("w") as said:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said}
                command = [python, "-m", "benchmarks.inference_child", way, str(folder)]
                self._process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)
        except OSError as error:
            raise UserError(f"{TITLES[way]}: {python}: {error.strerror}") from None
        self._answer()

    def ask(self, **command: Any) -> Any:
        """Send a command and return the answer. Raises UserError where the process ends instead."""
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        for line in self._process.stdout:
            if ANSWER in line:
                return json.loads(line.partition(ANSWER)[2])
        code, said = self._process.wait(), self._said.read_text().strip().splitlines()
        raise UserError(f"{TITLES[self._way]}: its process ended with code {code}: {said[-1] if said else 'it printed no error'}")

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        try:
            self._process.wait(_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(chosen: InferenceOptions, report: Report) -> None:
    """Measure and print."""
    pythons = _pythons(chosen, report)
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    size = 4 * NUM_TABLES * chosen.rows * chosen.embedding_dim
    with scratch(chosen.folder, 8 * size + (1 << 30), "models and samples") as folder:
        _write(chosen, folder, pythons)
        children: dict[str, Child] = {}
        try:
            for way, python in pythons.items():
                children[way] = Child(way, python, folder)
            calls, differences, passes = _measured(chosen, children, folder)
        finally:
            for child in children.values():
                child.close()
    medians = {way: {size: statistics.median(map(statistics.median, rounds)) for size, rounds in some.items()} for way, some in calls.items()}
    report.figures |= {"calls": calls, "differences": differences, "pass_s": passes, "medians": medians}
    columns = [f"batch {size:,}" for size in chosen.batch_sizes]
    report.table("samples/s", ["", *columns], [(TITLES[way], *(size / median for size, median in some.items())) for way, some in medians.items()])
    report.table("p50 latency, ms", ["", *columns], [(TITLES[way], *(1e3 * median for median in some.values())) for way, some in medians.items()])
    least = {way: {size: min(map(min, rounds)) for size, rounds in some.items()} for way, some in calls.items()}
    report.table(
        "least latency of all calls, ms: what a busy machine changes least",
        ["", *columns],
        [(TITLES[way], *(1e3 * seconds for seconds in some.values())) for way, some in least.items()],
    )
    if "scorer" in calls:
        report.table("times the scorer's latency, medians of ratios in a round", ["", *columns], _ratios(calls))
    report.say(f"\none pass of one thread over the dense weights in float32: {1e3 * statistics.median(passes):.3f} ms")
    report.say(f"largest difference from {TITLES[REFERENCE]}: " + ", ".join(f"{TITLES[way]} {value:.1e}" for way, value in differences.items()))
    limit = AGREE[chosen.precision]
    for way, value in differences.items():
        if not value <= limit:
            report.say(f"{TITLES[way]} differs by more than {limit:g}: its figures are not valid")
    if any(not differences.get(way, 0) <= limit for way in OURS):
        raise UserError(f"the scorer's outputs differ from {TITLES[REFERENCE]}'s by more than {limit:g}")


def _pythons(chosen: InferenceOptions, report: Report) -> dict[str, str]:
    """Return the Python of each implementation that can be measured, and report a line for each that cannot."""
    needs = {"onnx": ("onnxruntime", "onnx"), "litert": ("ai_edge_litert",), "torch": ("torch",)}
    given = {"torch": chosen.torch_python, "litert": chosen.litert_python}
    found = {}
    for way, python in given.items():
        if python and shutil.which(python) is None:
            raise UserError(f"--{way}_python {python}: no such program")
    for way in dict.fromkeys((*chosen.measured, REFERENCE)):
        missing = [module for module in needs.get(way, ()) if importlib.util.find_spec(module) is None]
        if missing and not given.get(way):
            hint = f"; set --{way}_python to a Python that has it" if way in given else "; see requirements-serving.txt"
            report.say(f"{TITLES[way]}: not measured, {missing[0]} is not installed{hint}")
        else:
            found[way] = given.get(way) or sys.executable
    return found


def _measured(chosen: InferenceOptions, children: dict[str, Child], folder: Path) -> tuple[dict, dict, list[float]]:
    """Measure all rounds.

    Returns:
        the seconds of each call by implementation, batch size and round; the largest difference by implementation; and the seconds of passes over
        the weights.
    """
    calls: dict = {way: {size: [] for size in chosen.batch_sizes} for way in children}
    differences, passes = dict.fromkeys(children, 0.0), []
    dense = np.load(folder / "dense.npy")
    draw = np.random.default_rng(0)
    for _ in range(chosen.num_rounds):
        passes.append(_pass_seconds(dense))
        for size in chosen.batch_sizes:
            np.save(folder / "samples_numerical.npy", draw.random((size, NUM_NUMERICAL), np.float32).astype(np.float16).astype(np.float32))
            np.save(folder / "samples_ids.npy", draw.integers(0, chosen.rows, (size, NUM_TABLES)))
            for way, child in children.items():
                child.ask(load="samples")
                calls[way][size].append(child.ask(turn=chosen.seconds))
            expected = np.load(folder / f"samples_{REFERENCE}.npy")
            for way in children:
                difference = float(np.abs(np.load(folder / f"samples_{way}.npy") - expected).max())
                # a NaN is kept, which `max` might drop
                differences[way] = difference if difference != difference else max(differences[way], difference)
    return calls, differences, passes


def _pass_seconds(values: np.ndarray) -> float:
    """Return the shortest of 50 passes over all values."""
    found = []
    for _ in range(50):
        start = time.perf_counter()
        values.max()
        found.append(time.perf_counter() - start)
    return min(found)


def _ratios(calls: dict) -> list[tuple]:
    found = []
    for way, some in calls.items():
        pairs = {size: zip(rounds, calls["scorer"][size], strict=True) for size, rounds in some.items()}
        found.append((TITLES[way], *(statistics.median(statistics.median(a) / statistics.median(b) for a, b in both) for both in pairs.values())))
    return found


# Measured models --------------------------------------------------------------------------------------------------------------


def _write(chosen: InferenceOptions, folder: Path, ways: dict[str, str]) -> None:
    """Write a checkpoint of a few steps, its exports, and its weights as NumPy files for implementations that read neither."""
    import dlrm
    from run.command import do
    from utils.checkpoint.reading import Checkpoint

    data = {"dataset_type": "synthetic", "synthetic_dataset_cardinalities": [chosen.rows] * NUM_TABLES, "synthetic_dataset_train_batches": 3}
    shape = {name: value.format(dim=chosen.embedding_dim) if isinstance(value, str) else value for name, value in MODELS[chosen.model].items()}
    rest = {"cpu": True, "batch_size": 256, "valid_batch_size": 256, "synthetic_dataset_valid_batches": 1, "log_path": ""}
    slow = {"optimizer": "adam", "learning_rate": 0.0001, "warmup_steps": 0}
    widths = {} if chosen.model == "lr" else {"embedding_dim": chosen.embedding_dim}
    precision = {"amp": True, "amp_dtype": BFLOAT16} if chosen.precision == BFLOAT16 else {}
    dlrm.train(**data, **widths, **shape, **rest, **slow, **precision, save_checkpoint_path=str(folder / "checkpoint"))
    flags = ["--mode", "export", "--cpu", "--log_path", "", "--restore_checkpoint_path", folder / "checkpoint"]
    flags += ["--export_path", folder / "repository"]
    for format, exact in (("savedmodel", chosen.precision), ("onnx", FLOAT32)):
        if format in ways:
            do([*map(str, flags), "--formats", format, "--precision", exact], "benchmarks.inference", "")
    checkpoint = Checkpoint(folder / "checkpoint")
    dense = {name.removeprefix("dense/"): checkpoint.read(name) for name in checkpoint.names("dense/")}
    np.save(folder / "dense.npy", np.concatenate([values.ravel() for values in dense.values()]))
    if chosen.model != DLRM:
        return
    (folder / "weights").mkdir()
    for name, values in dense.items():
        group, part, kind = name.rsplit("/", 2)
        np.save(folder / "weights" / f"{group.removesuffix('_mlp')}_{kind}_{part}.npy", values)
    for number in range(NUM_TABLES):
        np.save(folder / "weights" / f"table_{number}.npy", checkpoint.read(f"tables/cat_{number}/weights"))
    if "litert" in ways:
        _write_lite(chosen, folder)


def _write_lite(chosen: InferenceOptions, folder: Path) -> None:
    import tensorflow as tf

    from benchmarks.inference_child import set_weights
    from benchmarks.keras_dlrm import keras_dlrm

    found = keras_dlrm(chosen.rows, chosen.embedding_dim, "int32")
    set_weights(found, folder)
    specs = tf.TensorSpec([None, NUM_NUMERICAL], tf.float32), tf.TensorSpec([None, NUM_TABLES], tf.int32)
    called = tf.function(lambda numerical, ids: found.model([numerical, ids])["probability"], input_signature=specs, autograph=False)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([called.get_concrete_function()])  # stores the weights as constants
    (folder / "model.tflite").write_bytes(converter.convert())


if __name__ == "__main__":
    sys.exit(run(InferenceOptions, main, __doc__))
