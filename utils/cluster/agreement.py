"""Checks that all workers agree: on code, flags, dataset rows, the restored checkpoint and the weights that they hold copies of."""

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from utils.cluster import program
from utils.distributed import World
from utils.errors import AgreedError

# Flags that may differ by worker: paths that only the worker itself reads or writes. The fingerprint compares the dataset's rows.
OWN = frozenset({"log_path", "predictions_path", "dataset_path"})


ROOT = Path(__file__).resolve().parents[2]
# Packages whose version affects the results; TensorFlow's name differs between machines with and without GPUs.
_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "horovod")


class DivergedError(AgreedError):
    """The error for workers that differ where they should be equal."""


def compare_programs(world: World) -> None:
    """Compare the workers' code: the project's own files, and the versions of the packages that it computes with.

    Call this before the other comparisons, for different code may do these differently.

    Raises:
        DivergedError: a worker's code differs from the most common one, or from the first worker's where none is most common; on all workers.
    """
    if world.size == 1:
        return
    mine = own_digests()
    answers = world.everyone(f"program {program.summary(mine)} on {socket.gethostname()}", "program")
    known = [text.split() if isinstance(text, str) and text.startswith("program ") else ["", "", "", "?"] for text in answers]
    ones = [words[1] for words in known]
    usual = max(ones, key=ones.count)
    others = [rank for rank, one in enumerate(ones) if one != usual]
    if not others:
        return
    first = ones.index(usual)
    # A worker with code older than this comparison has ended by now, so no further exchange with it is possible.
    files = world.everyone(mine, "program files") if all(ones) else None
    what = f": {program.shown(program.differing(files[first], files[others[0]]))}" if files else ""
    hosts = list(dict.fromkeys(known[rank][3] for rank in others))
    raise DivergedError(
        f"worker{'s' * (len(others) > 1)} {_listed(others)} (host{'s' * (len(hosts) > 1)} {_listed(hosts)}) run{'s' * (len(others) == 1)} other code "
        f"than worker {first} (host {known[first][3]}){what}; expected the same project and packages on all machines"
    )


@functools.cache
def own_digests() -> dict[str, str]:
    """Return digests of the code and versions of the packages, as of the first call: later changes of files are not part of the running code."""
    found = program.digests(str(ROOT))
    for name in _PACKAGES:
        try:
            found[f"package {name.removesuffix('-cpu')}"] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _listed(values: Sequence[Any], most: int = 8) -> str:
    """Join values with commas, only the first ones of many."""
    return ", ".join(map(str, values[:most])) + (f", … ({len(values)} in all)" if len(values) > most else "")


def compare_flags(flags: Mapping[str, Any], world: World) -> None:
    """Compare the workers' options.

    Args:
        flags: every option's value by its flag's name.
        world: the workers; each calls this at the same point.

    Raises:
        DivergedError: two workers have different options; on all workers.
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
    """Compare the checkpoints that the workers restore. Raises DivergedError; see `compare_flags`."""
    for _, rank, other, first in _differing(world.everyone({"": checkpoint}, "restored")):
        raise DivergedError(f"worker {rank} restores {other}, worker 0 {first}; expected a folder of checkpoints that all workers share")


def compare_operations(key: str, world: World, warn: Callable[[str], None]) -> None:
    """Warn where workers compute with different operations: results are valid, but their last bits depend on which worker computes what."""
    for _, rank, other, first in _differing(world.everyone({"": key}, "operations")):
        warn(
            f"worker {rank} computes with {other}, worker 0 with {first}: the last bits of the result depend on the worker; "
            "install the same packages on all machines"
        )


def compare_weights(digests: Sequence[str]) -> None:
    """Compare the workers' hashes of the weights that all of them have copies of. Raises DivergedError."""
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        raise DivergedError(
            f"the dense weights of worker{'s' * (len(different) > 1)} {', '.join(map(str, different))} differ from worker 0's; "
            "nothing is saved. Check the machines (memory, network) and restore the last checkpoint: its copies were equal"
        )


def _differing(values: Sequence[Mapping[str, str]]):
    """Yield (name, rank, that worker's value, worker 0's value) for the first difference from worker 0, if there is one."""
    for rank, other in enumerate(values):
        for name, first in values[0].items():
            if other.get(name) != first:
                yield name, rank, other.get(name), first
                return
