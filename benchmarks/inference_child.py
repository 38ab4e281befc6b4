"""One scoring implementation in a process of its own, which takes turns with the others. `benchmarks.inference` starts it, also by another Python.

Its arguments are the implementation ("way") and a folder with `checkpoint`, `repository` and, for DLRM, `weights/*.npy` (`bottom_kernel_0`,
`table_0`, …) and `model.tflite`. Each line of its input is a JSON object. {"load": NAME} reads `NAME_numerical.npy` `[B, 13]` float32 and
`NAME_ids.npy` `[B, 26]` int64 from the folder, writes the probabilities to `NAME_WAY.npy` and answers. {"turn": SECONDS} scores them for that long
and answers with the seconds of each call.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import answer

Score = Callable[[], np.ndarray]
"""A function that scores the loaded samples, `[B]` float32."""

Load = Callable[[np.ndarray, np.ndarray], Score]
"""A function of numericals and ids that converts them to an implementation's input, which is not timed, and returns its `Score`."""


def scorer(folder: Path) -> Load:
    """Return the path of a server: input checks, then the scorer of a memory-mapped checkpoint."""
    import dlrm

    found = dlrm.load(folder / "checkpoint", mmap=True, cpu=True).over_arrays()
    return lambda numerical, ids: lambda: found.score(*found.checked(numerical, ids))


def inference(folder: Path) -> Load:
    """Return the path that `--mode inference` measures."""
    from run.native_engine import native_precision
    from training.evaluator import Evaluator
    from training.native_evaluator import NativeEvaluator

    def make(model: Any, config: Any) -> Any:
        precision = native_precision(config)
        return Evaluator(model) if precision is None else NativeEvaluator(model, config.model, 13, precision)

    return _evaluated(folder, make)


def evaluator(folder: Path) -> Load:
    """Return the path of `--mode inference` by TensorFlow."""
    from training.evaluator import Evaluator

    return _evaluated(folder, lambda model, config: Evaluator(model))


def _evaluated(folder: Path, make: Callable[[Any, Any], Any]) -> Load:
    import dlrm
    from dataloading.batches import Batch
    from training.device_batch import to_device
    from utils.metrics.binary import sigmoid

    loaded = dlrm.load(folder / "checkpoint", cpu=True)
    found = make(loaded._evaluator()._model, loaded._config)

    def load(numerical: np.ndarray, ids: np.ndarray) -> Score:
        count, by_feature = len(ids), np.ascontiguousarray(ids.T, np.int32)
        nothing = np.zeros((0, count), np.int32), np.zeros(count, np.uint8), np.ones(count, np.float32)
        batch = to_device(Batch(numerical, by_feature, *nothing, count))
        return lambda: sigmoid(found.logits(batch))

    return load


def savedmodel(folder: Path) -> Load:
    """Return the SavedModel export, run by TensorFlow alone."""
    import tensorflow as tf

    model = tf.saved_model.load(str(folder / "repository/dlrm_savedmodel/1/model.savedmodel")).signatures["serving_default"]

    def load(numerical: np.ndarray, ids: np.ndarray) -> Score:
        return lambda: model(numerical=tf.constant(numerical), categorical=tf.constant(ids))["probability"].numpy()[:, 0]

    return load


def keras(folder: Path) -> Load:
    """Return a Keras model of stock layers, called by `predict_on_batch`."""
    from benchmarks.keras_dlrm import keras_dlrm

    tables = weights(folder, "table")
    found = keras_dlrm(*tables[0].shape)
    set_weights(found, folder)
    return lambda numerical, ids: lambda: found.model.predict_on_batch([numerical, ids])["probability"][:, 0]


def onnx(folder: Path) -> Load:
    """Return the ONNX export, run by ONNX Runtime. Its threads do not spin between calls, which would take time from the other processes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    path = folder / "repository/dlrm_onnx/1/model.onnx"
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda numerical, ids: lambda: session.run(None, {"numerical": numerical, "categorical": ids})[0][:, 0]


def litert(folder: Path) -> Load:
    """Return the Keras model converted to LiteRT; its interpreter is resized to the batch before timing."""
    from ai_edge_litert.interpreter import Interpreter

    def load(numerical: np.ndarray, ids: np.ndarray) -> Score:
        interpreter = Interpreter(str(folder / "model.tflite"), num_threads=threads())
        given = {len(one["shape"]) and int(one["shape"][1]): one for one in interpreter.get_input_details()}
        for width, values in ((13, numerical), (26, ids)):
            interpreter.resize_tensor_input(given[width]["index"], values.shape)
        interpreter.allocate_tensors()
        small, output = ids.astype(np.int32), interpreter.get_output_details()[0]["index"]

        def score() -> np.ndarray:
            interpreter.set_tensor(given[13]["index"], numerical)
            interpreter.set_tensor(given[26]["index"], small)
            interpreter.invoke()
            return interpreter.get_tensor(output)[:, 0]

        return score

    return load


def torch(folder: Path) -> Load:
    """Return the model written with PyTorch's functions, in inference mode."""
    import torch as pytorch
    from torch.nn import functional

    pytorch.set_num_threads(threads())
    tables = [pytorch.from_numpy(table) for table in weights(folder, "table")]
    stacks = {
        name: [(pytorch.from_numpy(np.ascontiguousarray(kernel.T)), pytorch.from_numpy(bias)) for kernel, bias in stack(folder, name)]
        for name in ("bottom", "top")
    }
    row, column = np.tril_indices(len(tables) + 1, -1)
    lower = pytorch.from_numpy(row * (len(tables) + 1) + column)

    def score(numerical, ids):
        first = numerical
        for kernel, bias in stacks["bottom"]:
            first = functional.relu(functional.linear(first, kernel, bias))
        stacked = pytorch.stack([first, *(functional.embedding(ids[:, place], table) for place, table in enumerate(tables))], dim=1)
        products = pytorch.bmm(stacked, stacked.transpose(1, 2)).reshape(len(ids), -1)
        last = pytorch.cat([first, products.index_select(1, lower)], dim=1)
        for kernel, bias in stacks["top"][:-1]:
            last = functional.relu(functional.linear(last, kernel, bias))
        return pytorch.sigmoid(functional.linear(last, *stacks["top"][-1]))[:, 0]

    def load(numerical: np.ndarray, ids: np.ndarray) -> Score:
        def call() -> np.ndarray:
            with pytorch.inference_mode():
                return score(pytorch.from_numpy(numerical), pytorch.from_numpy(ids)).numpy()

        return call

    return load


WAYS: dict[str, Callable[[Path], Load]] = {
    "scorer": scorer,
    "inference": inference,
    "evaluator": evaluator,
    "savedmodel": savedmodel,
    "keras": keras,
    "onnx": onnx,
    "litert": litert,
    "torch": torch,
}


def threads() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def weights(folder: Path, name: str) -> list[np.ndarray]:
    """Load the arrays `NAME_0`, `NAME_1`, …"""
    found: list[np.ndarray] = []
    while (path := folder / "weights" / f"{name}_{len(found)}.npy").is_file():
        found.append(np.load(path))
    return found


def stack(folder: Path, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the kernel and bias of each layer of the bottom or top MLP."""
    return list(zip(weights(folder, f"{name}_kernel"), weights(folder, f"{name}_bias"), strict=True))


def set_weights(model: Any, folder: Path) -> None:
    """Set the weights of a `keras_dlrm` to those in the folder."""
    for layers, name in ((model.bottom, "bottom"), (model.top, "top")):
        for layer, values in zip(layers, stack(folder, name), strict=True):
            layer.set_weights(values)
    for layer, values in zip(model.tables, weights(folder, "table"), strict=True):
        layer.set_weights([values])


def turn(score: Score, seconds: float) -> list[float]:
    """Return the seconds of each call, of at least three; a warm-up call before them is not timed."""
    score()
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < 3 or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        score()
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    """Execute commands until the input ends."""
    way, folder = sys.argv[1], Path(sys.argv[2])
    load = WAYS[way](folder)
    answer("ready")
    for line in sys.stdin:
        ((command, value),) = json.loads(line).items()
        if command == "load":
            score = load(np.load(folder / f"{value}_numerical.npy"), np.load(folder / f"{value}_ids.npy"))
            np.save(folder / f"{value}_{way}.npy", score())
            answer("loaded")
        else:
            answer(turn(score, value))


if __name__ == "__main__":
    main()
