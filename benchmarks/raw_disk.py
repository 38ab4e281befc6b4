"""The speed of the disk alone: files of 32 MiB, written and read by as many threads as there are processors, without any computation."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

FILE_BYTES = 32 << 20  # as large as a checkpoint's chunks
_THREADS = len(os.sched_getaffinity(0))


class RawDisk:
    """Files in a folder, of `size` bytes in total."""

    def __init__(self, folder: Path, size: int):
        self._folder, self._data = folder, memoryview(np.random.default_rng(0).bytes(min(FILE_BYTES, size)))
        self._sizes = [len(self._data)] * (size // len(self._data)) + ([size % len(self._data)] if size % len(self._data) else [])

    @property
    def files(self) -> list[Path]:
        """The files, in the order in which they are written."""
        return [self._folder / str(i) for i in range(len(self._sizes))]

    def write(self) -> None:
        """Write every file; the data are on the disk when this returns."""
        self._folder.mkdir()

        def write(path: Path, size: int) -> None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                done = 0
                while done < size:
                    done += os.write(descriptor, self._data[done:size])
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(write, self.files, self._sizes))

    def read(self) -> None:
        """Read every file; each thread has its own buffer."""

        def read(paths: list[Path]) -> None:
            buffer = memoryview(bytearray(len(self._data)))
            for path in paths:
                with path.open("rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(read, [self.files[i::_THREADS] for i in range(_THREADS)]))


def drop_from_cache(paths: Iterable[Path]) -> None:
    """Drop files from the page cache, so that they are next read from the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # POSIX_FADV_DONTNEED does not drop pages that are not written yet
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
