"""Memory of embedding tables: allocated once, filled in place, never copied.

A table of the 4.2-billion-parameter model takes up to 4 GiB, so neither a second copy nor a random tensor of the whole
table can be afforded. On the CPU a table is an uninitialised tensor whose pages are asked to be huge (2 MiB pages:
touching 4 GiB took 0.2 s instead of 1.6 s) and filled by threads before TensorFlow makes it a variable; elsewhere chunks are copied
to the device.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

CHUNK_ROWS = 1 << 16  # one task of a thread; 32 MiB at D = 128
_PAGE = 4096
_MADV_HUGEPAGE = 14

# Writes rows start..start+n of a table into the array it is given, `[n, columns]` float32.
RowFiller = Callable[[np.ndarray, int], None]


def new_table(rows: int, columns: int, fill: RowFiller, make_variable: Callable[[tf.Tensor], tf.Variable]) -> tf.Variable:
    """A `[rows, columns]` float32 variable whose values `fill` wrote, chunk by chunk, without a second copy.

    Args:
        rows, columns: shape of the table, or of this worker's slice of it.
        fill: writes the rows it is told to; called from several threads.
        make_variable: turns the tensor into a variable, `tf.Variable` for instance; it must keep no reference to the
            tensor, for only a buffer with a single owner is updated in place.
    """
    tensor = tf.raw_ops.Empty(shape=[rows, columns], dtype=tf.float32, init=False)
    on_cpu = tensor.device.endswith("CPU:0")
    if on_cpu:
        _fill_in_place(tensor, fill)
    variable = make_variable(tensor)
    if not on_cpu:
        del tensor
        for start in range(0, rows, CHUNK_ROWS):
            chunk = np.empty((min(CHUNK_ROWS, rows - start), columns), np.float32)
            fill(chunk, start)
            write_rows(variable, start, chunk)
    return variable


def _fill_in_place(tensor: tf.Tensor, fill: RowFiller) -> None:
    rows, columns = tensor.shape
    size = rows * columns * 4
    address = np.frombuffer(memoryview(tensor), np.float32).__array_interface__["data"][0]
    first = -(-address // _PAGE) * _PAGE
    last = (address + size) // _PAGE * _PAGE
    if last > first:  # advice only: where the kernel has no huge pages the call fails and nothing is lost
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
    values = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (rows, columns))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda start: fill(values[start : start + CHUNK_ROWS], start), range(0, rows, CHUNK_ROWS)))


def write_rows(variable: tf.Variable, start: int, values: np.ndarray) -> None:
    """Overwrite rows start..start+n of a table in place (a strided assignment would copy the whole table)."""
    indices = tf.range(start, start + len(values))
    with tf.device(variable.device):
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=tf.convert_to_tensor(values))


def read_rows(variable: tf.Variable, start: int, stop: int) -> np.ndarray:
    """Rows start to stop of a table, `[n, columns]` (reading the variable itself would copy the whole table)."""
    return gather_rows(variable, tf.range(start, stop))


def gather_rows(variable: tf.Variable, rows) -> np.ndarray:
    """A copy of some rows of a table, `[n] -> [n, columns]`."""
    with tf.device(variable.device):
        return tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype).numpy()
