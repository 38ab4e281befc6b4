"""The collectives of a training step: the bytes that they move, and an action that runs them alone. This module imports TensorFlow."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from benchmarks.peers import steps
from benchmarks.rounds import Action


@dataclass(frozen=True)
class Collective:
    """One call: the operation, the number of elements of its vector, and for an alltoall the number that goes to each worker."""

    operation: str
    name: str
    dtype: tf.DType
    elements: int
    splits: tuple[int, ...] = ()

    def sent_bytes(self, rank: int, size: int) -> int:
        """Return the bytes that this worker sends to others.

        An allreduce is counted as a ring, which moves the fewest bytes: the parts are sent for summing, then the sums are sent back.
        """
        elements = {
            "alltoall": sum(self.splits) - (self.splits[rank] if self.splits else 0),
            "allreduce": -(-self.elements // size) * 2 * (size - 1),
            "allgather": self.elements * (size - 1),
        }
        return elements[self.operation] * self.dtype.size


class Recorder:
    """A proxy of Horovod's module that records the collectives of a step while the step is traced."""

    def __init__(self, horovod: Any):
        self._horovod = horovod
        self.calls: dict[str, Collective] = {}  # by name: a step uses each name once, but may be traced twice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._horovod, name)

    def _note(self, operation: str, name: str, tensor: tf.Tensor, splits: tuple[int, ...] = ()) -> None:
        self.calls[name] = Collective(operation, name, tensor.dtype, tensor.shape.num_elements(), splits)

    def alltoall(self, tensor, splits, name):
        """Record and run Horovod's alltoall."""
        self._note("alltoall", name, tf.convert_to_tensor(tensor), tuple(int(part) for part in tf.get_static_value(tf.convert_to_tensor(splits))))
        return self._horovod.alltoall(tensor, splits=splits, name=name)

    def allreduce(self, tensor, op, name):
        """Record and run Horovod's allreduce."""
        self._note("allreduce", name, tensor)
        return self._horovod.allreduce(tensor, op=op, name=name)

    def allgather(self, tensor, name):
        """Record and run Horovod's allgather."""
        self._note("allgather", name, tensor)
        return self._horovod.allgather(tensor, name=name)

    def alone(self) -> Action:
        """Return an action that runs the recorded collectives one after another, on vectors of zeros."""

        def again(call: Collective, vector: tf.Tensor) -> tf.Tensor:
            name = f"{call.name}_alone"
            if call.operation == "alltoall":
                return self._horovod.alltoall(vector, splits=tf.constant(call.splits, tf.int32), name=name)[0]
            if call.operation == "allreduce":
                return self._horovod.allreduce(vector, op=self._horovod.Sum, name=name)
            return self._horovod.allgather(vector, name=name)

        @tf.function(autograph=False)
        def run(vectors):
            ends = []
            for call, vector in zip(self.calls.values(), vectors, strict=True):
                with tf.control_dependencies(ends[-1:]):
                    ends.append(again(call, vector))
            return [end[:1] for end in ends]

        # The vectors are arguments: TensorFlow would fold constants, and the collectives on them, when it makes the graph.
        vectors = [tf.zeros([call.elements], call.dtype) for call in self.calls.values()]
        return steps(lambda _: run(vectors))
