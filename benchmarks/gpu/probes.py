"""Small measurements of a device, each in its own process: `python -m benchmarks.gpu.probes NAME [KEY=VALUE ...]` prints one JSON object.

They are parts of `first_run`. Without a GPU they run on the CPU, with sizes that the caller gives.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from run.devices import configure_tensorflow
from utils.config.device import DeviceConfig
from utils.runtime import prepare_tensorflow

TABLES, MATCHES = 26, 1e-3  # MATCHES: accepted difference of weights between devices after three float32 steps
SIGNED = ("adam", "rmsprop")  # their first steps are as large for tiny gradients, whose sign may differ between devices; their losses tell


def device() -> dict[str, Any]:
    """Return TensorFlow's version, the number of GPUs, and details of the first."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    return {"tensorflow": tf.__version__, "gpus": len(gpus), "details": {key: str(value) for key, value in details.items()}}


def products(size: int) -> dict[str, Any]:
    """Measure the rates of matrix products `[size, size]`, uncompiled and compiled, in TFLOP/s."""
    import tensorflow as tf

    found = {}
    for dtype in ("float32", "float16", "bfloat16"):
        a = tf.ones([size, size], dtype)
        for name, compiled in (("", None), (" compiled", True)):
            seconds = timed(tf.function(lambda a=a: tf.matmul(a, a), autograph=False, jit_compile=compiled))
            found[dtype + name] = 2 * size**3 / seconds / 1e12
    return found


def host_memory() -> dict[str, Any]:
    """Return the devices of constants by dtype: the device that TensorFlow reports, and the device whose memory holds the constant."""
    import tensorflow as tf

    found = {}
    for dtype in ("int32", "int64", "float32", "float64", "uint8"):
        value = tf.constant([1, 2, 3], dtype)
        found[dtype] = [value.device, value.backing_device]
    return found


def rows(count: int, width: int, dtype: str) -> dict[str, Any]:
    """Check that rows at both ends of a table are written and read back with ids of a dtype, and measure the speed for many rows."""
    import numpy as np
    import tensorflow as tf

    table = tf.Variable(tf.zeros([count, width]))
    numbers = np.array([0, min(16_777_215, count - 3), min(16_777_216, count - 2), count - 1])
    values = np.arange(1, 5, dtype=np.float32)[:, None] * np.ones([1, width], np.float32)
    tf.raw_ops.ResourceScatterUpdate(resource=table.handle, indices=tf.constant(numbers, dtype), updates=values)
    found = tf.raw_ops.ResourceGather(resource=table.handle, indices=tf.constant(numbers, dtype), dtype=tf.float32).numpy()
    by_int64 = tf.raw_ops.ResourceGather(resource=table.handle, indices=tf.constant(numbers, tf.int64), dtype=tf.float32).numpy()
    many = tf.constant(np.random.default_rng(0).integers(0, min(count, 16_000_000), 26 * 65536 if count > 1 << 20 else 100), dtype)
    updates, size = tf.ones([len(many), width]), 4 * width * len(many)
    gather = timed(lambda: tf.raw_ops.ResourceGather(resource=table.handle, indices=many, dtype=tf.float32))
    scatter = timed(lambda: tf.raw_ops.ResourceScatterSub(resource=table.handle, indices=many, updates=updates))
    return {
        "elements": count * width,
        "read_as_written": bool(np.array_equal(found, values)),
        "read_by_int64": bool(np.array_equal(by_int64, values)),
        "gather_gb_per_s": 2 * size / gather / 1e9,  # each row is read and written
        "scatter_gb_per_s": 3 * size / scatter / 1e9,  # each update is read, each row is read and written
    }


def padding(batch: int) -> dict[str, Any]:
    """Measure whether padding makes compiled products faster: 32 vectors instead of 27, and 480 columns instead of 479.

    Returns: the milliseconds of each, forward and backward.
    """
    import tensorflow as tf

    found = {}
    for dtype in ("float16", "bfloat16"):
        for vectors in (TABLES + 1, 32):
            z = tf.ones([batch, vectors, 128], dtype)
            found[f"{dtype}, {vectors} vectors"] = 1e3 * timed(compiled_gradient(lambda z: tf.matmul(z, z, transpose_b=True), z))
        for columns in (479, 480):
            x, kernel = tf.ones([batch, columns], dtype), tf.ones([columns, 1024], dtype)
            found[f"{dtype}, {columns} columns"] = 1e3 * timed(compiled_gradient(tf.matmul, x, kernel))
    return found


def steps(path: str, batch: int, rows: int, optimizers: str, dtypes: str, device: str) -> dict[str, Any]:
    """Run three steps of a model in every precision and with every optimizer, and write the weights to `path`.

    `device` is GPU or CPU: the device for which the model is built.
    """
    import os

    import numpy as np
    import tensorflow as tf

    from benchmarks.peers import Feed
    from benchmarks.workload import Workload, options
    from training.build import build_trainer
    from training.state import arrays, parts
    from utils.distributed import World

    os.environ["DLRM_BUILD_FOR"] = device
    weights, losses = {}, {}
    for optimizer in optimizers.split(","):
        for dtype in dtypes.split(","):
            flags = ("--batch_size", batch, "--optimizer", optimizer, "--gradient_slices", 1, *(("--xla",) if device == "GPU" else ()))
            work = Workload((rows,) * TABLES, options(*flags, *(() if dtype == "float32" else ("--amp", "--amp_dtype", dtype))))
            model, feed = work.build(dtype, World()), Feed()
            feed.load(work, "power_law", 1)
            trainer = build_trainer(work.config, model, dtype)
            name = f"{optimizer} {dtype}"
            losses[name] = [float(trainer.step(feed.on_device(0), step, 0.01)) for step in range(3)]
            shapes = arrays(model)
            for part in parts(model):
                weights[f"{name}|{part.array}"] = np.array(part.read(0, min(shapes[part.array].shape[0], 1000)))
    np.savez(path, **weights)
    return {"losses": losses, "devices": [one.name for one in tf.config.list_logical_devices()]}


def step_alone(batch: int, rows: str, dtypes: str, count: int) -> dict[str, Any]:
    """Return the milliseconds of a training step by SGD in each precision, with batches that lie on the device, after 20 warm-up steps.

    `rows` lists V of each table, or is t15 for those of the 4.2-billion-parameter model.
    """
    import tensorflow as tf

    from benchmarks.peers import Feed
    from benchmarks.workload import Workload, options, t15_rows
    from training.build import build_trainer
    from utils.distributed import World

    found = {}
    for dtype in dtypes.split(","):
        flags = ("--batch_size", batch, "--xla", *(() if dtype == "float32" else ("--amp", "--amp_dtype", dtype)))
        work = Workload(t15_rows() if rows == "t15" else tuple(map(int, rows.split(","))), options(*flags))
        model, feed = work.build(dtype, World()), Feed()
        feed.load(work, "power_law", 4)
        trainer = build_trainer(work.config, model, dtype)

        def run(steps: int, trainer=trainer, feed=feed) -> None:
            for step in range(steps):
                report = trainer.step(feed.on_device(step), step, 0.01)
            float(report)
            tf.test.experimental.sync_devices()

        run(20)
        begun = time.perf_counter()
        run(count)
        found[dtype] = 1e3 * (time.perf_counter() - begun) / count
        del model, feed, trainer, run
    return found


def compare(first: str, second: str) -> dict[str, Any]:
    """Return the largest difference of weights between two runs of `steps`, by optimizer and precision, and whether float32 is within `MATCHES`.

    Rules that are `SIGNED` do not count.
    """
    import numpy as np

    one, other = np.load(first), np.load(second)
    found: dict[str, float] = {}
    for key in one.files:
        name = key.split("|")[0]
        found[name] = max(found.get(name, 0.0), float(np.max(np.abs(one[key] - other[key]))))
    counted = [value for name, value in found.items() if "float32" in name and name.split()[0] not in SIGNED]
    return {"largest_difference": found, "float32_matches": all(value <= MATCHES for value in counted)}


def compiled_gradient(compute: Callable, *inputs) -> Callable[[], Any]:
    """Return a compiled function without arguments that computes the gradients of a product by its inputs."""
    import tensorflow as tf

    def gradients(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = compute(*inputs)
        return tape.gradient(total, inputs)

    function = tf.function(gradients, autograph=False, jit_compile=True)
    return lambda: function(*inputs)


def timed(act: Callable[[], Any], count: int = 20) -> float:
    """Return the mean seconds of an action, after two warm-up calls."""
    import tensorflow as tf

    for _ in range(2):
        act()
    tf.test.experimental.sync_devices()
    begun = time.perf_counter()
    for _ in range(count):
        act()
    tf.test.experimental.sync_devices()
    return (time.perf_counter() - begun) / count


PROBES = (device, products, host_memory, rows, padding, steps, step_alone, compare)


def main() -> None:
    """Run one probe and print its result."""
    name, *pairs = sys.argv[1:]
    values = dict(pair.split("=", 1) for pair in pairs)
    probe = next(one for one in PROBES if one.__name__ == name)
    prepare_tensorflow()
    configure_tensorflow(DeviceConfig(), 0)
    import tensorflow as tf

    tf.debugging.set_log_device_placement(name == "steps")
    kinds = probe.__annotations__
    print(json.dumps(probe(**{key: kinds[key](value) for key, value in values.items()})), flush=True)


if __name__ == "__main__":
    main()
