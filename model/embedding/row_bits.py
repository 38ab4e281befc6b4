"""Sets of a table's rows as one bit a row, in the order of `np.packbits`, without an array of one byte a row. Imports no TensorFlow."""

import numpy as np


def bits_of(numbers: np.ndarray, rows: int) -> np.ndarray:
    """Return the bits of V rows, `[ceil(V / 8)]` uint8, of which those of some rows are set; `numbers` `[n]`, distinct, in any order."""
    bits = np.zeros(-(-rows // 8), np.uint8)
    if len(numbers):
        numbers = np.sort(numbers)
        places = numbers >> 3
        starts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
        bits[places[starts]] = np.bitwise_or.reduceat((128 >> (numbers & 7)).astype(np.uint8), starts)
    return bits


def numbers_of(bits: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows whose bits are set, `[n]` int32, ascending."""
    places = np.flatnonzero(bits)
    row, bit = np.nonzero(np.unpackbits(bits[places]).reshape(-1, 8))
    return (8 * places[row] + bit).astype(np.int32)
