"""Memory of embedding tables: allocated once, filled in place, never copied.

A table of the 4.2-billion-parameter model takes up to 4 GiB, so there is no room for a second copy or for a random tensor of the whole table. On
the CPU a table is an uninitialised tensor. It asks the kernel for huge pages (2 MiB pages: touching 4 GiB took 0.2 s instead of 1.6 s), and threads
fill it before TensorFlow makes it a variable. On other devices chunks are copied to the device.
"""

import ctypes
import itertools
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from model.compilation import pretends_gpu

CHUNK_ROWS = 1 << 16  # rows of one thread task; 32 MiB at D = 128
_PAGE = 4096
_MADV_HUGEPAGE = 14

# A function (out, start) that writes rows start..start+n of a table into the array `out`, `[n, columns]` float32.
RowFiller = Callable[[np.ndarray, int], None]


def new_table(rows: int, columns: int, fill: RowFiller, make_variable: Callable[[tf.Tensor], tf.Variable]) -> tf.Variable:
    """Make a `[rows, columns]` float32 variable whose values `fill` writes, chunk by chunk, without a second copy.

    Args:
        rows, columns: shape of the table, or of this worker's slice of it.
        fill: writes rows into an array; called from several threads.
        make_variable: turns the tensor into a variable, `tf.Variable` for instance. It must not keep a reference to the tensor: TensorFlow updates a
            buffer in place only while it has a single owner.
    """
    tensor = tf.raw_ops.Empty(shape=[rows, columns], dtype=tf.float32, init=False)
    if not tensor.device.endswith("CPU:0") or pretends_gpu():
        del tensor
        return new_on_device(rows, columns, fill, make_variable)
    _fill_in_place(tensor, fill)
    return make_variable(tensor)


def new_on_device(rows: int, columns: int, fill: RowFiller, make_variable: Callable[[tf.Tensor], tf.Variable]) -> tf.Variable:
    """Make the table on a device whose memory the host cannot write: threads make the rows, which are copied; a constant is made on the device.

    Arguments as in `new_table`.

    Raises:
        RuntimeError: the last rows read back differ from those written.
    """
    value = getattr(fill, "value", None)
    if value is not None:
        return make_variable(tf.fill([rows, columns], tf.constant(value, tf.float32)))
    variable = make_variable(tf.raw_ops.Empty(shape=[rows, columns], dtype=tf.float32, init=False))

    def made(start: int) -> np.ndarray:
        chunk = np.empty((min(CHUNK_ROWS, rows - start), columns), np.float32)
        fill(chunk, start)
        return chunk

    starts = range(0, rows, CHUNK_ROWS)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        ahead = 2 * len(os.sched_getaffinity(0))  # chunks that may be in memory at a time
        pending = deque((start, pool.submit(made, start)) for start in starts[:ahead])
        for following in itertools.chain(starts[ahead:], itertools.repeat(None, len(pending))):
            start, future = pending.popleft()
            chunk = future.result()
            write_rows(variable, start, chunk)
            if following is not None:
                pending.append((following, pool.submit(made, following)))
    # TensorFlow's kernels once counted elements in 32 bits, so check the end of the table.
    if rows and not np.array_equal(read_rows(variable, start, rows), chunk):
        raise RuntimeError(f"table of [{rows}, {columns}]: the last rows read back differ from the rows written")
    return variable


def _fill_in_place(tensor: tf.Tensor, fill: RowFiller) -> None:
    rows, columns = tensor.shape
    size = rows * columns * 4
    address = np.frombuffer(memoryview(tensor), np.float32).__array_interface__["data"][0]
    first = -(-address // _PAGE) * _PAGE
    last = (address + size) // _PAGE * _PAGE
    if last > first:  # only advice: where the kernel has no huge pages, the call fails without harm
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
    values = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (rows, columns))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda start: fill(values[start : start + CHUNK_ROWS], start), range(0, rows, CHUNK_ROWS)))


def write_rows(variable: tf.Variable, start: int, values: np.ndarray) -> None:
    """Overwrite rows start..start+n of a table in place (a strided assignment would copy the whole table)."""
    indices = tf.range(start, start + len(values), dtype=tf.int64)  # with 32-bit indices a GPU kernel would count elements in 32 bits, too
    with tf.device(variable.device):
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=indices, updates=tf.convert_to_tensor(values))


def read_rows(variable: tf.Variable, start: int, stop: int) -> np.ndarray:
    """Return rows start to stop of a table, `[n, columns]` (reading the variable itself would copy the whole table)."""
    return gather_rows(variable, tf.range(start, stop, dtype=tf.int64)).numpy()


def gather_rows(variable: tf.Variable, rows) -> tf.Tensor:
    """Copy some rows of a table, `[n] -> [n, columns]`; the device may still be computing the result."""
    with tf.device(variable.device):
        return tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype)


class VariableRows(NamedTuple):
    """Consecutive rows of a variable: the rows of one shard, which may share the variable with other shards of its width."""

    variable: tf.Variable
    first: int  # first row in the variable
    count: int

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows start to stop of the shard, see `read_rows`."""
        return read_rows(self.variable, self.first + start, self.first + stop)

    def write(self, start: int, values: np.ndarray) -> None:
        """Overwrite rows start..start+n of the shard, see `write_rows`."""
        write_rows(self.variable, self.first + start, values)
