"""The worker's rank, and the collectives between workers. This is the only file that imports Horovod."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from utils import host_world, launch
from utils.errors import AgreedError, UserError
from utils.pace import yield_processors

if TYPE_CHECKING:  # --help does not need NumPy, whose import would take half of its time
    import numpy as np

T = TypeVar("T")


@dataclass
class World:
    """Rank and number of workers (N), and the collectives; a single worker does not communicate.

    A collective of tensors inside a graph needs the same `name` on every worker. Values on the host go through MPI where MPI started the
    workers, so that they can agree before TensorFlow is imported; otherwise they go through Horovod, as tensors do.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    horovod: Any = None
    mpi: Any = None  # mpi4py's communicator
    # Seconds of each exchange in the graph that is being traced, while `timed` is open.
    _seconds: list | None = field(default=None, repr=False, compare=False)

    @property
    def meets(self) -> bool:
        """True where the workers can already exchange values on the host."""
        return self.size == 1 or self.mpi is not None or self.horovod is not None

    @property
    def first(self) -> bool:
        """True on the worker of rank 0, which prints and logs."""
        return self.rank == 0

    # Tensors, every step -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def timed(self, on_device: bool) -> Iterator[list]:
        """Measure the exchanges of tensors that are traced in the block; yield a list that gets the seconds of each, float64 scalars of the graph.

        Blocks may be nested; each gets its own exchanges only. With a single worker there are none, and the graph is as without; nor are there any
        `on_device`, a GPU, which works behind the host's clock.
        """
        outer, self._seconds = self._seconds, None if on_device else []
        try:
            yield [] if self._seconds is None else self._seconds
        finally:
            self._seconds = outer

    def _measured(self, flat, exchange: Callable):
        """Return `exchange(flat)`; inside `timed`, with its time: from when its input is there until its result is."""
        if self._seconds is None:
            return exchange(flat)
        import tensorflow as tf

        with tf.control_dependencies([flat]):
            begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            received = exchange(flat)
        with tf.control_dependencies([received]):
            self._seconds.append(tf.timestamp() - begin)
        return received

    def alltoall(self, flat, splits: Sequence[int], name: str):
        """Send `splits[r]` consecutive elements of a vector to worker r; return the received elements in the order of their senders' ranks.

        bfloat16 is sent as 16-bit integers, which Horovod supports.
        """
        if self.size == 1:
            return flat
        import tensorflow as tf

        dtype = flat.dtype
        if dtype == tf.bfloat16:
            flat = tf.bitcast(flat, tf.uint16)
        sizes = tf.constant(list(splits), tf.int32)
        received = self._measured(flat, lambda flat: self.horovod.alltoall(flat, splits=sizes, name=name)[0])
        return tf.bitcast(received, dtype) if received.dtype != dtype else received

    def sum(self, flat, name: str):
        """Sum a vector over the workers."""
        return flat if self.size == 1 else self._measured(flat, lambda flat: self.horovod.allreduce(flat, op=self.horovod.Sum, name=name))

    def all_gather(self, flat, name: str):
        """Concatenate the vectors of all workers, by rank."""
        return flat if self.size == 1 else self._measured(flat, lambda flat: self.horovod.allgather(flat, name=name))

    # Values on the host, now and then ----------------------------------------------------------------------------------

    def broadcast(self, flat: "np.ndarray", name: str) -> "np.ndarray":
        """Return the first worker's vector on every worker."""
        return flat if self.size == 1 else self.horovod.broadcast(flat, root_rank=0, name=name).numpy()

    def gather_to_first(self, flat: "np.ndarray", name: str) -> "np.ndarray":
        """Concatenate the vectors of all workers on the first one, by rank; return an empty vector on the others."""
        if self.size == 1:
            return flat
        splits = [len(flat)] + [0] * (self.size - 1)
        received, _ = self.horovod.alltoall(flat, splits=splits, name=name)
        return received.numpy()

    def everyone(self, value: Any, name: str) -> list:
        """Gather a small picklable value from every worker, by rank."""
        if self.size == 1:
            return [value]
        return self.mpi.allgather(value) if self.mpi else self.horovod.allgather_object(value, name=name)

    def from_first(self, value: Any, name: str) -> Any:
        """Return the first worker's small picklable value on every worker."""
        if self.size == 1:
            return value
        return self.mpi.bcast(value) if self.mpi else self.horovod.broadcast_object(value, root_rank=0, name=name)

    def together(self, action: Callable[[], T], name: str) -> T:
        """Call an action that may fail on some workers only, and raise on all of them if it fails on any.

        Before the workers can exchange values (`meets`), each one calls it on its own.

        Raises:
            UserError: the error that the action raised, on this worker or another.
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
        """Wait for all workers; where any has an error, raise it on all, so that none waits for a worker that failed.

        Raises:
            AgreedError: the first error by rank, with the rank of its worker unless all had the same error.
        """
        errors = self.everyone(error, name)
        found = [rank for rank, text in enumerate(errors) if text is not None]
        if found:
            text = errors[found[0]]
            everywhere = self.size == 1 or len(set(errors)) == 1
            raise AgreedError(text if everywhere else f"worker {found[0]}: {text}")


def meet() -> World:
    """Return the worker's `World` before TensorFlow is imported; see `World.meets`. Without a launcher, it is a world of one worker."""
    if not launch.launched():
        return World()
    return World(launch.rank(), launch.size(), mpi=host_world.communicator())


def join(world: World | None = None) -> World:
    """Initialise Horovod and return a `World` with collectives of tensors. Imports TensorFlow where there are other workers."""
    if not launch.launched():
        return World()
    yield_processors()
    import horovod.tensorflow as hvd

    hvd.init()
    return World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd, world.mpi if world else None)
