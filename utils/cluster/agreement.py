"""What all workers must have in common: the run they were started with, the rows they read, the weights they hold copies of."""

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from utils.cluster import program
from utils.distributed import World
from utils.errors import AgreedError

# Each worker may have its own: paths that are written or read by it alone. That the rows are the same is told by the fingerprint.
OWN = frozenset({"log_path", "predictions_path", "dataset_path"})


ROOT = Path(__file__).resolve().parents[2]
# Whose version is a part of what is computed; a machine with GPUs has TensorFlow under another name than one without.
_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "horovod")


class DivergedError(AgreedError):
    """Copies that should be equal on all workers are not."""


def compare_programs(world: World) -> None:
    """Compare the workers' code: the project's own files, and the versions of what computes with them.

    Call it before anything else is compared: what differs may be how that is done.

    Raises:
        DivergedError: a worker has other code than most have, or than the first where there is no most; on all workers.
    """
    if world.size == 1:
        return
    mine = own_digests()
    said = world.everyone(f"program {program.summary(mine)} on {socket.gethostname()}", "program")
    known = [text.split() if isinstance(text, str) and text.startswith("program ") else ["", "", "", "?"] for text in said]
    ones = [words[1] for words in known]
    usual = max(ones, key=ones.count)
    others = [rank for rank, one in enumerate(ones) if one != usual]
    if not others:
        return
    first = ones.index(usual)
    # A worker of before this comparison takes no part in another one: it has ended by now.
    files = world.everyone(mine, "program files") if all(ones) else None
    what = f": {program.shown(program.differing(files[first], files[others[0]]))}" if files else ""
    hosts = list(dict.fromkeys(known[rank][3] for rank in others))
    raise DivergedError(
        f"worker{'s' * (len(others) > 1)} {_listed(others)} (host{'s' * (len(hosts) > 1)} {_listed(hosts)}) run{'s' * (len(others) == 1)} other code "
        f"than worker {first} (host {known[first][3]}){what}; expected the same project and packages on all machines"
    )


@functools.cache
def own_digests() -> dict[str, str]:
    """Digests of the code and versions of the packages, as they were when they were first asked for: a file that is changed later is not run."""
    found = program.digests(str(ROOT))
    for name in _PACKAGES:
        try:
            found[f"package {name.removesuffix('-cpu')}"] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _listed(values: Sequence[Any], most: int = 8) -> str:
    """The values with commas, the first ones of many."""
    return ", ".join(map(str, values[:most])) + (f", … ({len(values)} in all)" if len(values) > most else "")


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
