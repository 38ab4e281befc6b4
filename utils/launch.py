"""The process's rank and the number of workers, from the environment that the launcher (horovodrun, mpirun) sets, and the time of its last progress.

It imports the standard library only.
"""

import contextlib
import os
import sys
import time

_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANKS = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZES = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

_progressed_at = 0.0


def launched() -> bool:
    """Return whether a launcher started this process."""
    return any(name in os.environ for name in _SIZES)


def size() -> int:
    """Return the number of workers, 1 without a launcher."""
    return _first_of(_SIZES, 1)


def rank() -> int:
    """Return this worker's rank, 0 without a launcher."""
    return _first_of(_RANKS, 0)


def by_mpi() -> bool:
    """Return whether MPI started the workers; horovodrun without MPI (Gloo) sets environment variables of its own."""
    return "HOROVOD_RANK" not in os.environ and launched()


def local_size() -> int:
    """Return the number of workers on this machine, 1 without a launcher."""
    return _first_of(_LOCAL_SIZES, 1)


def local_rank() -> int:
    """Return this worker's rank on its machine, 0 without a launcher."""
    return _first_of(_LOCAL_RANKS, 0)


def leave(code: int) -> None:
    """End this worker after a failure so that the launcher ends the others; do nothing where it is the only worker.

    A normal exit would wait in MPI for workers that wait for this one. So the process exits at once, and the launcher ends the other workers
    because one has exited with a non-zero code.
    """
    if size() == 1:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def progressed() -> None:
    """Record that this worker made progress: a step, a batch of an evaluation, a chunk of a checkpoint."""
    global _progressed_at
    _progressed_at = time.monotonic()


def progressed_at() -> float:
    """Return the time of this worker's last progress by `time.monotonic`; 0 where there was none."""
    return _progressed_at


def _first_of(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)
