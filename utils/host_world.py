"""Workers that MPI started, before any of them has imported TensorFlow: mpi4py's communicator, and leaving together."""

import functools
import time

from utils import launch
from utils.pace import yield_processors

LEAVING_S = 5.0  # how long a worker that ends with an error all of them have waits for the one that says it


@functools.cache
def communicator():
    """All workers, on a communicator of ours; None where something else than MPI started them, or mpi4py finds no MPI."""
    if not launch.by_mpi():
        return None
    yield_processors()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD.Dup()


def leave_together() -> None:
    """Wait until every worker comes here, or for as long as it takes to be sure that one does not."""
    if launch.size() == 1:
        return
    workers = communicator() if communicator.cache_info().currsize else None  # making it takes every worker
    if workers is None:
        if launch.rank() != 0:
            time.sleep(LEAVING_S)
        return
    deadline = time.monotonic() + LEAVING_S
    barrier = workers.Ibarrier()
    while not barrier.Test() and time.monotonic() < deadline:
        time.sleep(0.01)
