"""What all workers must have in common: the run they were started with, the rows they read, the weights they hold copies of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from utils.distributed import World
from utils.errors import AgreedError

# Each worker may have its own: paths that are written or read by it alone. That the rows are the same is told by the fingerprint.
OWN = frozenset({"log_path", "predictions_path", "dataset_path"})


class DivergedError(AgreedError):
    """Copies that should be equal on all workers are not."""


def compare_flags(flags: Mapping[str, Any], world: World) -> None:
    """Compare the workers' options.

    Args:
        flags: every option's value by its flag's name.
        world: the workers; each calls this at the same point.

    Raises:
        DivergedError: two workers have different ones; on all workers.
    """
    mine = {name: repr(value) for name, value in flags.items() if name not in OWN}
    for name, rank, other, first in _differing(world.everyone(mine, "flags")):
        raise DivergedError(f"worker {rank} was started with --{name} {other}, worker 0 with {first}; expected the same flags on all workers")


def compare_rows(fingerprint: str, path: str | None, world: World) -> None:
    """Compare the datasets that the workers read. Raises DivergedError; see `compare_flags`."""
    for _, rank, _, _ in _differing(world.everyone({"": fingerprint}, "fingerprint")):
        where = f"--dataset_path {path}" if path else "--dataset_type synthetic"
        raise DivergedError(f"{where}: worker {rank} reads other rows there than worker 0; expected the same dataset on all workers")


def compare_restored(checkpoint: str, world: World) -> None:
    """Compare what the workers restore. Raises DivergedError; see `compare_flags`."""
    for _, rank, other, first in _differing(world.everyone({"": checkpoint}, "restored")):
        raise DivergedError(f"worker {rank} restores {other}, worker 0 {first}; expected a folder of checkpoints that all workers share")


def compare_operations(key: str, world: World, warn: Callable[[str], None]) -> None:
    """Say where workers compute with different operations: sound, but the last bits then depend on who computes what."""
    for _, rank, other, first in _differing(world.everyone({"": key}, "operations")):
        warn(
            f"worker {rank} computes with {other}, worker 0 with {first}: the bits of the result depend on the workers; install alike on all machines"
        )


def compare_weights(digests: Sequence[str]) -> None:
    """Compare a hash, by worker, of the weights that all of them hold copies of. Raises DivergedError."""
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        raise DivergedError(
            f"the dense weights of worker{'s' * (len(different) > 1)} {', '.join(map(str, different))} differ from worker 0's; "
            "nothing is saved. Check the machines (memory, network) and restore the last checkpoint: its copies were equal"
        )


def _differing(values: Sequence[Mapping[str, str]]):
    """(name, rank, that worker's value, worker 0's) where a worker differs from the first; one at most."""
    for rank, other in enumerate(values):
        for name, first in values[0].items():
            if other.get(name) != first:
                yield name, rank, other.get(name), first
                return
