"""The worker's place among the workers, and the collectives between them. The only file that imports Horovod."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from utils import host_world, launch
from utils.errors import AgreedError, UserError
from utils.pace import yield_processors

if TYPE_CHECKING:  # --help needs no NumPy, half of whose time its import would take
    import numpy as np

T = TypeVar("T")


@dataclass
class World:
    """Rank and number of workers (N), and the collectives; a worker alone communicates with nobody.

    Tensors that go through a collective inside a graph need the same `name` on every worker. Values on the host go through MPI where it
    started the workers, so that they can agree before TensorFlow is imported; else, as tensors do, through Horovod.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    horovod: Any = None
    mpi: Any = None  # mpi4py's communicator

    @property
    def meets(self) -> bool:
        """Whether the workers can exchange values on the host by now."""
        return self.size == 1 or self.mpi is not None or self.horovod is not None

    @property
    def first(self) -> bool:
        """Whether this is the worker that speaks."""
        return self.rank == 0

    # Tensors, every step -----------------------------------------------------------------------------------------------

    def alltoall(self, flat, splits: Sequence[int], name: str):
        """Send `splits[r]` consecutive elements of a vector to worker r; returns what came, by sender.

        bfloat16 travels as 16-bit integers, which Horovod knows.
        """
        if self.size == 1:
            return flat
        import tensorflow as tf

        dtype = flat.dtype
        if dtype == tf.bfloat16:
            flat = tf.bitcast(flat, tf.uint16)
        received, _ = self.horovod.alltoall(flat, splits=tf.constant(list(splits), tf.int32), name=name)
        return tf.bitcast(received, dtype) if received.dtype != dtype else received

    def sum(self, flat, name: str):
        """Sum of a vector over the workers."""
        return flat if self.size == 1 else self.horovod.allreduce(flat, op=self.horovod.Sum, name=name)

    def all_gather(self, flat, name: str):
        """Every worker's vector, one after another."""
        return flat if self.size == 1 else self.horovod.allgather(flat, name=name)

    # Values on the host, now and then ----------------------------------------------------------------------------------

    def broadcast(self, flat: "np.ndarray", name: str) -> "np.ndarray":
        """The first worker's vector on every worker."""
        return flat if self.size == 1 else self.horovod.broadcast(flat, root_rank=0, name=name).numpy()

    def gather_to_first(self, flat: "np.ndarray", name: str) -> "np.ndarray":
        """On the first worker, every worker's vector one after another; empty elsewhere."""
        if self.size == 1:
            return flat
        splits = [len(flat)] + [0] * (self.size - 1)
        received, _ = self.horovod.alltoall(flat, splits=splits, name=name)
        return received.numpy()

    def everyone(self, value: Any, name: str) -> list:
        """A small picklable value of every worker, by rank."""
        if self.size == 1:
            return [value]
        return self.mpi.allgather(value) if self.mpi else self.horovod.allgather_object(value, name=name)

    def from_first(self, value: Any, name: str) -> Any:
        """The first worker's small picklable value."""
        if self.size == 1:
            return value
        return self.mpi.bcast(value) if self.mpi else self.horovod.broadcast_object(value, root_rank=0, name=name)

    def together(self, action: Callable[[], T], name: str) -> T:
        """Do something that may fail on one worker only; then it is an error on all. Before the workers meet, each does it for itself.

        Raises:
            UserError: what the action raised.
        """
        if not self.meets:
            return action()
        result, error = None, None
        try:
            result = action()
        except UserError as problem:
            error = str(problem)
        self.agree(error, name)
        return result

    def agree(self, error: str | None, name: str) -> None:
        """Wait for everyone; where some worker brings an error, raise it on all, so that nobody waits for those who gave up.

        Raises:
            AgreedError: the first error by rank, with the rank of the worker that had it unless all had the same.
        """
        errors = self.everyone(error, name)
        found = [rank for rank, text in enumerate(errors) if text is not None]
        if found:
            text = errors[found[0]]
            everywhere = self.size == 1 or len(set(errors)) == 1
            raise AgreedError(text if everywhere else f"worker {found[0]}: {text}")


def meet() -> World:
    """The worker's place, before TensorFlow is imported; see `World.meets`. A process started alone is a world of one and needs neither."""
    if not launch.launched():
        return World()
    return World(launch.rank(), launch.size(), mpi=host_world.communicator())


def join(world: World | None = None) -> World:
    """Join the other workers, collectives of tensors included. Imports TensorFlow where there are other workers."""
    if not launch.launched():
        return World()
    yield_processors()
    import horovod.tensorflow as hvd

    hvd.init()
    return World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd, world.mpi if world else None)
