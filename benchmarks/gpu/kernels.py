"""The kernels that TensorFlow's GPU build registers for some operations: their devices, their dtypes, and their arguments in host memory.

    python -m benchmarks.gpu.kernels            writes kernels.json; in an environment that has TensorFlow's GPU build

TensorFlow can list its kernels without a device. The kernels of the operations in use are stored, so that `benchmarks.gpu.graph` does not need the
wheel of the GPU build.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("kernels.json")
# Kernels of Horovod built with NCCL (horovod/tensorflow/mpi_ops.cc and xla_mpi_ops.cc of 0.28.1): tensors in device memory, sizes in host memory.
HOROVOD = {
    "HorovodAllreduce": [{"constraints": {}, "host": []}],
    "HorovodAllgather": [{"constraints": {}, "host": []}],
    "HorovodAlltoall": [{"constraints": {}, "host": ["splits", "received_splits"]}],
}


class Kernel(NamedTuple):
    """A GPU kernel of an operation: the accepted dtypes by attribute, and the arguments and results in host memory."""

    constraints: Mapping[str, list[str]]
    host: list[str]

    def takes(self, dtypes: Mapping[str, str]) -> bool:
        """Return True if the kernel accepts an operation whose attributes have these dtypes."""
        return all(dtypes.get(name) in allowed for name, allowed in self.constraints.items())


def load(path: Path = FILE) -> tuple[str, dict[str, list[Kernel]]]:
    """Load the table: TensorFlow's version, and the GPU kernels by operation; the list of an operation without kernels is empty."""
    table = json.loads(path.read_text())
    kernels = table["operations"] | HOROVOD
    return table["tensorflow"], {name: [Kernel(**kernel) for kernel in found] for name, found in kernels.items()}


def registered(operations: Iterable[str]) -> dict[str, list[dict]]:
    """Return the GPU kernels of operations in this process's TensorFlow, in the form of the file."""
    import tensorflow as tf
    from tensorflow.python.framework import kernels

    found = {}
    for name in sorted(operations):
        mine = []
        for kernel in kernels.get_registered_kernels_for_op(name).kernel:
            if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label:
                dtypes = {one.name: [tf.as_dtype(dtype).name for dtype in one.allowed_values.list.type] for one in kernel.constraint}
                mine.append((kernel.device_type == "DEFAULT", {"constraints": dtypes, "host": sorted(kernel.host_memory_arg)}))
        # GPU kernels come before kernels for any device. Many dtypes have the same kernel: those that differ in one attribute only are merged.
        found[name] = [kernel for _, kernel in sorted(_merged(mine), key=lambda pair: pair[0])]
    return found


def _merged(kernels: list[tuple[bool, dict]]) -> list[tuple[bool, dict]]:
    merged: dict[str, tuple[bool, dict]] = {}
    for anywhere, kernel in kernels:
        names = sorted(kernel["constraints"])
        key = json.dumps([anywhere, kernel["host"], names, [kernel["constraints"][name] for name in names[1:]]])
        if names and key in merged:
            known = merged[key][1]["constraints"][names[0]]
            known += [dtype for dtype in kernel["constraints"][names[0]] if dtype not in known]
        else:
            merged[key] = anywhere, kernel
    return list(merged.values())


def main() -> int:
    """Write the table anew, for its operations and those named on the command line."""
    import tensorflow as tf

    if not tf.test.is_built_with_cuda():
        print(f"TensorFlow {tf.__version__} has no GPU kernels: python -m pip install tensorflow=={tf.__version__} in an environment of its own")
        return 1
    operations = set(sys.argv[1:]) | set(json.loads(FILE.read_text())["operations"] if FILE.exists() else ())
    table = {"tensorflow": tf.__version__, "operations": registered(operations)}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kernels)}" for name, kernels in table["operations"].items())
    FILE.write_text(f'{{"tensorflow": {json.dumps(tf.__version__)}, "operations": {{\n{lines}\n}}}}\n')
    print(f"{FILE}: {len(table['operations'])} operations of TensorFlow {tf.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
