"""The worker's place among the workers. The only file that imports Horovod."""

import os
from dataclasses import dataclass
from typing import Any

_LAUNCHED = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@dataclass(frozen=True)
class World:
    """Rank and number of workers (N), and Horovod where there is more than one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    horovod: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the worker that speaks."""
        return self.rank == 0


def launched() -> bool:
    """Whether horovodrun or mpirun started this process; known without importing anything."""
    return any(name in os.environ for name in _LAUNCHED)


def join() -> World:
    """Join the other workers; a process started alone is a world of one and needs no Horovod."""
    if not launched():
        return World()
    import horovod.tensorflow as hvd

    hvd.init()
    return World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd)
