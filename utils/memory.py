"""How much memory there is, asked before anything large is allocated."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from utils.errors import UserError

GIB = 1 << 30


def available_bytes() -> int:
    """Host memory that this process can still take: what the machine has free, or what its control group still allows."""
    available = psutil.virtual_memory().available
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            reclaimable = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()).get("inactive_file", "0")
            available = min(available, int(limit) - used + int(reclaimable))
    except (OSError, ValueError):  # no control group, or one of another form: the machine's figure stands
        pass
    return available


def device_bytes(local_rank: int) -> int:
    """Memory for tables on this worker's GPU, of those that CUDA_VISIBLE_DEVICES leaves: nine tenths of what is free, the rest being for activations.

    Raises:
        UserError: nvidia-smi does not say.
    """
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
        gpus = [(index, uuid, int(free)) for index, uuid, free in (map(str.strip, line.split(",")) for line in lines if line.strip())]
        free = [free for *_, free in _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))]
        return int(0.9 * free[local_rank % len(free)] * (1 << 20))
    except (OSError, ValueError, ZeroDivisionError, subprocess.CalledProcessError):
        raise UserError("the GPU's memory could not be asked for (nvidia-smi); say it with --worker_memory_gb") from None


def _visible(gpus: Sequence[tuple[str, str, int]], words: str | None) -> list[tuple[str, str, int]]:
    """The GPUs that CUDA sees, in its order: by index or by the beginning of the UUID, up to the first word that names none."""
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
        raise UserError(f"{what} need {_shown(needed)}, {_shown(available)} are free: {_shown(needed - available)} short")


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise UserError, with the shortfall, where the disk of a folder, which need not exist yet, has fewer bytes free."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    status = os.statvfs(there)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise UserError(f"{what} {folder}: {_shown(needed)} are needed on its disk, {_shown(free)} are free: {_shown(needed - free)} short")


def _shown(size: int) -> str:
    if size >= GIB / 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.1f} KiB"
