"""How much memory there is, asked before anything large is allocated."""

import subprocess
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
    """Memory for tables on this worker's GPU: nine tenths of what it has, the rest being for activations."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        sizes = [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]
    except (OSError, ValueError, subprocess.CalledProcessError):
        raise UserError("the GPU's memory could not be asked for (nvidia-smi); say it with --worker_memory_gb") from None
    return int(0.9 * sizes[local_rank % len(sizes)] * (1 << 20))


def check_fits(needed: int, what: str, available: int) -> None:
    """Raise UserError, with the shortfall, where `needed` bytes are more than are available."""
    if needed > available:
        raise UserError(f"{what} need {_shown(needed)}, {_shown(available)} are free: {_shown(needed - available)} short")


def _shown(size: int) -> str:
    if size >= GIB / 10:
        return f"{size / GIB:.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.1f} KiB"
