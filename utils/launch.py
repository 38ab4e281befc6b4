"""What the launcher (horovodrun, mpirun) says of this process, known without importing anything; and when this process last got on."""

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
    """Whether a launcher started this process."""
    return any(name in os.environ for name in _SIZES)


def size() -> int:
    """Number of workers, 1 without a launcher."""
    return _first_of(_SIZES, 1)


def rank() -> int:
    """This worker's rank, 0 without a launcher."""
    return _first_of(_RANKS, 0)


def by_mpi() -> bool:
    """Whether MPI started the workers; horovodrun without it (Gloo) sets names of its own."""
    return "HOROVOD_RANK" not in os.environ and launched()


def local_size() -> int:
    """Workers on this machine, 1 without a launcher."""
    return _first_of(_LOCAL_SIZES, 1)


def local_rank() -> int:
    """This worker's number on its machine, 0 without a launcher."""
    return _first_of(_LOCAL_RANKS, 0)


def leave(code: int) -> None:
    """End this worker after a failure, in such a way that the others end too; returns at once where it is the only one.

    A normal exit would wait in MPI for workers that wait for this one. So the process ends at once, and the launcher,
    seeing a worker gone with a non-zero code, ends the rest.
    """
    if size() == 1:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def progressed() -> None:
    """Say that this worker got on: a step, a batch of an evaluation, a chunk of a checkpoint."""
    global _progressed_at
    _progressed_at = time.monotonic()


def progressed_at() -> float:
    """When it last did, by `time.monotonic`; 0 where it never did."""
    return _progressed_at


def _first_of(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)
