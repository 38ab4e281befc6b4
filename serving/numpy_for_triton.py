"""NumPy 2 under a Python backend that was built for NumPy 1.

The stub that carries Python in Triton 2.51 makes NumPy arrays through pybind11 2.11 or older, which reads the size of an element from a place where
NumPy 2 keeps something else: 0. Every array it makes then repeats its first element. It gets NumPy's functions by `numpy.core.multiarray._ARRAY_API`,
which nothing else here asks for, so a table of functions is put there whose `PyArray_NewFromDescr` leaves the strides to NumPy. Newer stubs look
elsewhere and are not touched.
"""

import ctypes

import numpy as np

_NEW_FROM_DESCR = 94  # its place in NumPy's table of functions, in every version
_FUNCTIONS = 320  # in the table, at least as many as the stub asks for
_POINTER, _INT, _OBJECT = ctypes.c_void_p, ctypes.c_int, ctypes.py_object
_KIND = ctypes.PYFUNCTYPE(_OBJECT, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER)
_kept: list = []  # what the table points to


def mend() -> None:
    """Make the stub's arrays right. Call once, before the first request; without effect with NumPy 1."""
    if _kept or int(np.__version__.split(".")[0]) < 2:
        return
    from numpy.core import multiarray  # NumPy 2 keeps it for pybind11 only

    pointer, capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    pointer.restype, pointer.argtypes = _POINTER, [_OBJECT, ctypes.c_char_p]
    capsule.restype, capsule.argtypes = _OBJECT, [_POINTER, ctypes.c_char_p, _POINTER]
    functions = (_POINTER * _FUNCTIONS).from_address(pointer(multiarray._ARRAY_API, None))
    real = _KIND(functions[_NEW_FROM_DESCR])

    @_KIND
    def new_from_descr(kind, descr, dimensions, shape, strides, data, flags, parent):
        return real(kind, descr, dimensions, shape, None, data, flags, parent)

    table = (_POINTER * _FUNCTIONS)(*functions)
    table[_NEW_FROM_DESCR] = ctypes.cast(new_from_descr, _POINTER).value
    _kept.extend([table, new_from_descr, multiarray._ARRAY_API])
    multiarray._ARRAY_API = capsule(ctypes.addressof(table), None, None)
