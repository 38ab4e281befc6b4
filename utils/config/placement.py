"""Options of the placement of tables on workers: typed, documented, checked when constructed."""

import math
from dataclasses import dataclass

from utils.config.option import check, check_types, option
from utils.config.options import PLAN

_MAX_WORKERS = 4096  # planned for in some seconds; ten times as many take minutes


@dataclass(frozen=True)
class PlacementConfig:
    """Placement of tables on workers."""

    dist_strategy: str = option(
        "memory_balanced",
        "memory_balanced evens out what is looked up, then what is stored; memory_optimized fills the fullest worker least; basic deals round robin",
        choices=("memory_balanced", "memory_optimized", "basic"),
    )
    column_slice_threshold: int = option(10_000_000_000, "tables of more elements than this are split by columns over workers", unit="elements")
    data_parallel_threshold: int = option(0, "tables of at most so many elements are replicated on every worker", unit="elements")
    worker_memory_gb: float | None = option(None, "memory for tables on one worker; the default is what its device has", unit="10^9 bytes")
    cpu_offloading_threshold_gb: float | None = option(
        None,
        "on a GPU, tables beyond this size on one worker live in host memory; the default is what the device has",
        unit="10^9 bytes",
        not_with=("cpu",),
    )
    plan_workers: int = option(8, "workers to plan for", modes=(PLAN,))
    plan_format: str = option("table", "how the plan is printed", choices=("table", "json"), modes=(PLAN,))

    def __post_init__(self):
        check_types(self)
        check(self.column_slice_threshold >= 1, "column_slice_threshold", self.column_slice_threshold, "at least 1")
        check(1 <= self.plan_workers <= _MAX_WORKERS, "plan_workers", self.plan_workers, f"at least 1 and at most {_MAX_WORKERS}")
        check(self.data_parallel_threshold >= 0, "data_parallel_threshold", self.data_parallel_threshold, "0 or more elements")
        for name in ("worker_memory_gb", "cpu_offloading_threshold_gb"):
            value = getattr(self, name)
            check(value is None or (math.isfinite(value) and value > 0), name, value, "a positive number")
