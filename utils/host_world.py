"""Communication of workers that MPI started, before TensorFlow is imported: mpi4py's communicator, and a common exit."""

import functools
import time

from utils import launch
from utils.pace import yield_processors

LEAVING_S = 5.0  # how long a worker that ends with an error of all workers waits for the first one to print it


@functools.cache
def communicator():
    """Return a communicator of our own with all workers; None where MPI did not start them, or mpi4py finds no MPI library."""
    if not launch.by_mpi():
        return None
    yield_processors()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD.Dup()


def leave_together() -> None:
    """Wait until every worker arrives here, at most `LEAVING_S`."""
    if launch.size() == 1:
        return
    workers = communicator() if communicator.cache_info().currsize else None  # only if it exists: making one needs every worker
    if workers is None:
        if launch.rank() != 0:
            time.sleep(LEAVING_S)
        return
    deadline = time.monotonic() + LEAVING_S
    barrier = workers.Ibarrier()
    while not barrier.Test() and time.monotonic() < deadline:
        time.sleep(0.01)
