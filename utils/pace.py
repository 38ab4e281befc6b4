"""Settings of Horovod and MPI by which threads that wait for other workers leave the processors to those that compute."""

import itertools
import os
from collections.abc import Sequence

from utils import launch

_FLOPS_PER_MS = 1e8  # of a worker, in float32; only the order of magnitude matters
_SPEEDUP_16_BITS = 3
_LOOKS_A_STEP = 50
_EXCHANGES = 3  # of a step that `_LOOKS_A_STEP` was measured for
_SHORTEST_MS = 1
_LONGEST_MS = 2.5  # times the workers of a processor, which all take part in a look


def expected_step_ms(batch_size: int, stacks: Sequence[Sequence[int]], num_workers: int, sixteen_bits: bool) -> float:
    """Estimate the duration of a training step in ms from the matrix products of the MLPs.

    Args:
        batch_size: B.
        stacks: the layer widths of each MLP.
        num_workers: N.
        sixteen_bits: the products are computed in 16 bits.
    """
    products = sum(inputs * outputs for stack in stacks for inputs, outputs in itertools.pairwise(stack))
    return 6 * batch_size / num_workers * products / (_FLOPS_PER_MS * (_SPEEDUP_16_BITS if sixteen_bits else 1))


def set_cycle_time(step_ms: float, gpu: bool = False, norms: int = 0) -> None:
    """Set Horovod's cycle time before it starts, unless HOROVOD_CYCLE_TIME is set or the machine has processors to spare.

    With a GPU it is 0.1 ms: a step takes few milliseconds and waits for three exchanges.

    In each cycle Horovod exchanges messages with the other workers, which wait for each other busily. The default is a thousand cycles a second: with
    two workers on two processors they took 30% of the time. Too few cycles delay short steps, which wait for three exchanges each, and for two more
    in each of the `norms` layers with batch normalisation.
    """
    if gpu:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
    elif 2 * launch.local_size() > (processors := os.cpu_count() or 1):
        looks = _LOOKS_A_STEP * (_EXCHANGES + 2 * norms) / _EXCHANGES
        cycle = max(min(step_ms / looks, _LONGEST_MS * launch.local_size() / processors), _SHORTEST_MS)
        os.environ.setdefault("HOROVOD_CYCLE_TIME", f"{cycle:.1f}")


def yield_processors() -> None:
    """Make MPI, before it starts, yield the processor whenever it waits, unless the environment sets it otherwise.

    Open MPI counts workers, not their threads: it waits busily as soon as every worker has a processor of its own, and then Horovod's thread
    competes with the training step for it. Four workers on two processors took twice the time (batch 512 and 8192), two up to 1.3 times.
    """
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
