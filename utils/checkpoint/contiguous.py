"""Memory mapping of several files at consecutive addresses, without copying."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_FIXED, _NO_RESERVE, _NONE = 0x10, 0x4000, 0  # MAP_FIXED, MAP_NORESERVE and PROT_NONE of Linux; mmap has no names for them
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Contiguous:
    """A read-only mapping of the first `size` bytes of each of several files, one after another.

    Args:
        files: the files, each of at least `size` bytes.
        size: a multiple of the page size.

    Attributes:
        bytes: all bytes, `[n]` uint8; not valid after this object is deleted.

    Raises:
        OSError: a file is missing or too short, or the address space has no room.
    """

    def __init__(self, files: Sequence[Path], size: int):
        total = size * len(files)
        # Reserve the address range first; the files are then mapped over it.
        start = _map(None, total, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1)
        weakref.finalize(self, _libc.munmap, start, total)
        for place, path in enumerate(files):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                if os.fstat(descriptor).st_size < size:
                    raise OSError(f"{path}: the file is too short")
                _map(start + place * size, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, descriptor)
            finally:
                os.close(descriptor)
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * total).from_address(start))
        self.bytes.flags.writeable = False


def fits(size: int) -> bool:
    """Return whether files of so many bytes can be mapped one after another: memory is mapped in whole pages."""
    return size % mmap.PAGESIZE == 0


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found
