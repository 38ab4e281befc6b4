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
        "assignment of tables: memory_balanced evens out lookups, then memory; memory_optimized minimises the fullest worker; basic is round robin",
        choices=("memory_balanced", "memory_optimized", "basic"),
    )
    column_slice_threshold: int = option(
        10_000_000_000, "split tables of more elements than this by columns over workers", unit="elements", bounds=FROM_1
    )
    data_parallel_threshold: int = option(
        0, "replicate tables of at most so many elements on every worker", unit="elements", bounds=Bounds("0 or more elements", 0)
    )
    worker_memory_gb: float | None = option(
        None, "memory for tables on one worker; the default is the memory available on its device", unit="10^9 bytes", bounds=POSITIVE
    )
    cpu_offloading_threshold_gb: float | None = option(
        None,
        "memory for tables on one GPU; tables beyond it are kept in host memory; the default is the memory available on the GPU",
        unit="10^9 bytes",
        not_with=("cpu",),
        bounds=POSITIVE,
    )
    plan_workers: int = option(8, "workers to plan for", modes=(PLAN,), bounds=Bounds(f"at least 1 and at most {_MAX_WORKERS}", 1, _MAX_WORKERS))
    plan_format: str = option("table", "output format of the plan", choices=("table", "json"), modes=(PLAN,))

    def __post_init__(self):
        check_options(self)
