"""A NumPy array as a DLPack capsule that Triton's Python backend reads, of any version of NumPy and without TensorFlow.

Under NumPy 2 the stub of Triton 2.51 makes empty tensors of arrays, and logs a traceback for an array's own `__dlpack__`. A capsule is a struct of
the DLPack standard (version 0.8, `DLManagedTensor`), whose last member the reader calls when it has done with the memory.
"""

import ctypes
import threading
from typing import Any

import numpy as np

_CPU, _FLOAT = 1, 2  # DLDeviceType, DLDataTypeCode


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_kept: dict[int, Any] = {}  # what capsules point to, by their struct's address
_lock = threading.Lock()


def _forget(address: int) -> None:
    with _lock:
        _kept.pop(address, None)


# A capsule that nobody has read keeps its memory for good: Triton reads every one.
_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME = ctypes.c_char_p(b"dltensor")  # a capsule keeps the pointer to its name


def capsule(values: np.ndarray) -> Any:
    """Of a float32 array, whose memory is not copied where it is contiguous; it is kept until the reader has done with it."""
    values = np.ascontiguousarray(values, np.float32)
    shape = (ctypes.c_int64 * values.ndim)(*values.shape)
    managed = _Managed()
    managed.tensor = _Tensor(values.ctypes.data, _CPU, 0, values.ndim, _FLOAT, 32, 1, shape, None, 0)  # no strides: row after row
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    with _lock:
        _kept[address] = (managed, shape, values)
    return _new(address, _NAME, None)
