"""Options of the placement of tables on workers: typed, documented, checked when constructed."""

from dataclasses import dataclass

from utils.config.option import FROM_1, POSITIVE, Bounds, check_options, option
from utils.config.options import PLAN

_MAX_WORKERS = 4096  # planning takes some seconds; ten times as many workers take minutes


@dataclass(frozen=True)
class PlacementConfig:
    """Placement of tables on workers."""

    dist_strategy: str = option(
        "memory_balanced",
        "memory_balanced evens out what is looked up, then what is stored; memory_optimized fills the fullest worker least; basic deals round robin",
        choices=("memory_balanced", "memory_optimized", "basic"),
    )
    column_slice_threshold: int = option(
        10_000_000_000, "tables of more elements than this are split by columns over workers", unit="elements", bounds=FROM_1
    )
    data_parallel_threshold: int = option(
        0, "tables of at most so many elements are replicated on every worker", unit="elements", bounds=Bounds("0 or more elements", 0)
    )
    worker_memory_gb: float | None = option(
        None, "memory for tables on one worker; the default is what its device has", unit="10^9 bytes", bounds=POSITIVE
    )
    cpu_offloading_threshold_gb: float | None = option(
        None,
        "on a GPU, tables beyond this size on one worker live in host memory; the default is what the device has",
        unit="10^9 bytes",
        not_with=("cpu",),
        bounds=POSITIVE,
    )
    plan_workers: int = option(8, "workers to plan for", modes=(PLAN,), bounds=Bounds(f"at least 1 and at most {_MAX_WORKERS}", 1, _MAX_WORKERS))
    plan_format: str = option("table", "how the plan is printed", choices=("table", "json"), modes=(PLAN,))

    def __post_init__(self):
        check_options(self)
