"""CPU affinity of the workers: `--affinity`. Imports no TensorFlow."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from utils.config.device import AFFINITIES
from utils.errors import UserError

SOCKET, SINGLE, SINGLE_UNIQUE, INTERLEAVED, CONTINUOUS, DISABLED = AFFINITIES
OWN = (SINGLE_UNIQUE, INTERLEAVED, CONTINUOUS)  # these give no two workers the same processor, as long as there are cores enough
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_SYS = Path("/sys")

Core = tuple[int, ...]  # the hyper-threads of one core, by processor number


class Machine(NamedTuple):
    """The sockets of a machine, each with its cores, and for each GPU the processors near it."""

    sockets: tuple[tuple[Core, ...], ...]
    gpus: tuple[frozenset[int], ...] = ()


def processors(affinity: str, machine: Machine, local_rank: int, local_size: int) -> frozenset[int]:
    """Return the processors of worker r of the n on a machine.

    Worker r runs on the socket nearest to GPU r; without GPUs on socket r·S/n of S. The cores of a socket are divided among its workers. Workers
    share cores where a socket has more workers than cores.

    Args:
        affinity: one of `AFFINITIES`, not disabled.
        machine: with at least one socket.
        local_rank: r.
        local_size: n.
    """
    sockets = [_socket(machine, rank, local_size) for rank in range(local_size)]
    mine = sockets[local_rank]
    cores, place, count = machine.sockets[mine], sockets[:local_rank].count(mine), sockets.count(mine)
    if affinity == SOCKET:
        return _all(cores)
    if affinity == SINGLE:
        return frozenset(cores[0][:1])
    one = cores[place % len(cores)]
    if affinity == SINGLE_UNIQUE:
        return frozenset(one[:1])
    if affinity == INTERLEAVED:
        return _all(cores[place::count] or (one,))
    return _all(cores[place * len(cores) // count : (place + 1) * len(cores) // count] or (one,))


def _socket(machine: Machine, rank: int, local_size: int) -> int:
    if machine.gpus:
        near = machine.gpus[rank % len(machine.gpus)]
        return max(range(len(machine.sockets)), key=lambda number: len(near & _all(machine.sockets[number])))
    return rank * len(machine.sockets) // local_size


def _all(cores: Sequence[Core]) -> frozenset[int]:
    return frozenset(one for core in cores for one in core)


def this_machine(allowed: frozenset[int], gpus: bool, root: Path = _SYS) -> Machine:
    """Return the machine's topology as the kernel reports it, restricted to the processors that this process may use.

    Args:
        allowed: processors that this process may use.
        gpus: whether to place workers near GPUs.
        root: folder of the kernel's files.
    """
    sockets: dict[int, set[Core]] = {}
    for one in sorted(allowed):
        topology = root / f"devices/system/cpu/cpu{one}/topology"
        siblings = tuple(sorted(_numbers(_read(topology / "thread_siblings_list") or str(one)) & allowed)) or (one,)
        sockets.setdefault(int(_read(topology / "physical_package_id") or 0), set()).add(siblings)
    near = []
    for device in sorted((root / "bus/pci/devices").glob("*")) if gpus else []:
        if _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_DISPLAY):
            near.append(frozenset(_numbers(_read(device / "local_cpulist"))) or allowed)
    return Machine(tuple(tuple(sorted(sockets[number])) for number in sorted(sockets)), tuple(near))


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _numbers(text: str) -> frozenset[int]:
    """Parse a kernel list of processors: `0-2,8` -> 0, 1, 2, 8."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def set_affinity(affinity: str, gpus: bool, local_rank: int, local_size: int) -> None:
    """Pin this process, with all its threads and the threads they start, to its processors.

    Raises:
        UserError: the system refuses.
    """
    if affinity == DISABLED:
        return
    chosen = processors(affinity, this_machine(frozenset(os.sched_getaffinity(0)), gpus), local_rank, local_size)
    try:
        # Existing threads do not inherit the affinity set on another thread, so each is pinned.
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), chosen)
    except OSError as error:
        raise UserError(f"--affinity {affinity}: {error.strerror}; use --affinity disabled to set no affinity") from None
