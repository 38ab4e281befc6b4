"""How much memory there is, asked before anything large is allocated."""

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


def check_fits(needed: int, what: str, available: int | None = None) -> None:
    """Raise UserError, with the shortfall in GiB, where `needed` bytes are more than there are."""
    available = available_bytes() if available is None else available
    if needed > available:
        raise UserError(
            f"{what} need {needed / GIB:.1f} GiB and {available / GIB:.1f} GiB of memory are available, {(needed - available) / GIB:.1f} GiB short; "
            "use a smaller --embedding_dim, --max_table_size with --hash_indices, --optimizer sgd, or more machines"
        )
