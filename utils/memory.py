"""Checks of the available memory and disk space before large allocations."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from utils.errors import UserError

GIB = 1 << 30


# Address space used beside the tables, mostly for the stacks and heaps of threads: 520 MiB measured on 2 processors.
_RESERVED, _RESERVED_PER_PROCESSOR = GIB // 2, GIB // 16
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_bytes() -> int:
    """Return the host memory available to this process: the least of the machine's free memory, its control groups' and its limits' (`ulimit`)."""
    return min([psutil.virtual_memory().available, *_left_in_groups(), *_left_to_process()])


def resident_gib() -> float:
    """Return the memory that this process holds now, in GiB."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / GIB


def peak_gib() -> float:
    """Return the most memory that this process has held so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def _left_in_groups() -> Iterator[int]:
    """Yield the bytes that each control group of this process still allows."""
    group = GROUPS
    with contextlib.suppress(OSError):  # no control groups, or not of version 2: only the machine's free memory counts
        group /= next((line[3:].strip("/\n") for line in OWN_GROUP.read_text().splitlines() if line.startswith("0::")), "")
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                used = int((folder / "memory.current").read_text())
                reclaimable = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines()).get("inactive_file", "0")
                yield max(int(limit) - used + int(reclaimable), 0)


def _left_to_process() -> Iterator[int]:
    """Yield the bytes that `ulimit -v` and `ulimit -d` leave for tables.

    Only half of the remaining address space counts: TensorFlow's allocator on a CPU takes address space by doubling, up to twice the size asked
    for or all that there is, and later allocations that find none crash inside C++ code.
    """
    taken = psutil.Process().memory_info()
    reserved = _RESERVED + _RESERVED_PER_PROCESSOR * (os.cpu_count() or 1)
    for limit, used in zip(_limits().values(), (taken.vms, taken.data), strict=True):
        if limit is not None:
            yield max(limit - used - reserved, 0) // 2


def _limits() -> dict[str, int | None]:
    """Return the limits of this process in bytes, by the shell command that sets them; None for no limit."""
    found = {name: resource.getrlimit(kind)[0] for name, kind in (("ulimit -v", resource.RLIMIT_AS), ("ulimit -d", resource.RLIMIT_DATA))}
    return {name: None if limit == resource.RLIM_INFINITY else limit for name, limit in found.items()}


def limit_note() -> str:
    """Return a note for out-of-memory messages where a limit of this process, not the machine, is the bottleneck; else an empty text."""
    if not (left := list(_left_to_process())) or min(left) >= min([psutil.virtual_memory().available, *_left_in_groups()]):
        return ""
    limits = ", ".join(f"{name} {limit >> 10}" for name, limit in _limits().items() if limit is not None)
    return f" (limited by {limits}, not by the machine's memory)"


def device_bytes(local_rank: int) -> int:
    """Return the memory for tables on this worker's GPU, of those in CUDA_VISIBLE_DEVICES: 0.9 of its free memory; the rest is for activations.

    Raises:
        UserError: nvidia-smi does not report the free memory.
    """
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
        gpus = [(index, uuid, int(free)) for index, uuid, free in (map(str.strip, line.split(",")) for line in lines if line.strip())]
        free = [free for *_, free in _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))]
        return int(0.9 * free[local_rank % len(free)] * (1 << 20))
    except (OSError, ValueError, ZeroDivisionError, subprocess.CalledProcessError):
        raise UserError("nvidia-smi does not report the GPU's free memory; give it with --worker_memory_gb") from None


def _visible(gpus: Sequence[tuple[str, str, int]], words: str | None) -> list[tuple[str, str, int]]:
    """Return the GPUs that CUDA sees, in its order: those named by index or by the beginning of the UUID, up to the first word that names none."""
    if words is None:
        return list(gpus)
    found = []
    for word in map(str.strip, words.split(",")):
        named = [gpu for gpu in gpus if gpu[0] == word or (word.startswith("GPU-") and gpu[1].startswith(word))]
        if not named:
            break
        found.append(named[0])
    return found


def check_fits(needed: int, what: str, available: int) -> None:
    """Raise UserError, with the shortfall, where `needed` bytes are more than are available."""
    if needed > available:
        raise UserError(f"{what} need {shown(needed)}, {shown(available)} are free: {shown(needed - available)} short{limit_note()}")


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise UserError, with the shortfall, where fewer than `needed` bytes are free on a folder's disk; the folder need not exist yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    status = os.statvfs(there)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise UserError(f"{what} {folder}: {shown(needed)} are needed on its disk, {shown(free)} are free: {shown(needed - free)} short")


def shown(size: int) -> str:
    """Return bytes as GiB, MiB or KiB, for a message."""
    if size >= GIB / 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.1f} KiB"
