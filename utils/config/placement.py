"""Options of the placement of tables on workers: typed, documented, checked when constructed."""

from dataclasses import dataclass

from utils.config.option import FROM_0, FROM_1, INHERIT, POSITIVE, Bounds, check_options, option
from utils.config.options import PLAN, TRAIN

IN_MEMORY, LAZY = "memory", "lazy"  # storages of tables
ALL, TOUCHED = "all", "touched"  # rows of tables in memory that checkpoints hold
_NEEDS_LAZY = f"table_storage {LAZY}"
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
    table_storage: str = option(
        IN_MEMORY,
        "storage of large tables: memory holds all their rows, lazy only the rows that a batch has named, so that tables may be larger than the "
        "memory (on a CPU; docs/large.md)",
        choices=(IN_MEMORY, LAZY),
        resume=INHERIT,
        in_scores=True,
    )
    table_memory_gb: float | None = option(
        None,
        "memory of one worker for the rows of its lazy tables and their optimizer slots; the default is half of the memory available to it",
        unit="10^9 bytes",
        needs=_NEEDS_LAZY,
        bounds=POSITIVE,
    )
    table_storage_above: int = option(
        64 << 20,
        "tables that take at least so many bytes with their optimizer slots are lazy, smaller ones stay in memory",
        unit="bytes",
        needs=_NEEDS_LAZY,
        resume=INHERIT,
        in_scores=True,
        bounds=FROM_0,
    )
    checkpoint_rows: str = option(
        ALL,
        "rows of tables in memory that checkpoints hold: all, or touched, those that may differ from their initial values, and for the others what "
        "draws them; of lazy tables always the latter",
        choices=(ALL, TOUCHED),
        modes=(TRAIN,),
        needs="save_checkpoint_path",
        resume=INHERIT,
    )
    plan_workers: int = option(8, "workers to plan for", modes=(PLAN,), bounds=Bounds(f"at least 1 and at most {_MAX_WORKERS}", 1, _MAX_WORKERS))
    plan_touched: bool = option(
        False,
        "read the ids of the train split once, and count for each lazy table the rows that the planned steps touch",
        modes=(PLAN,),
        needs=_NEEDS_LAZY,
    )
    plan_format: str = option("table", "output format of the plan", choices=("table", "json"), modes=(PLAN,))

    def __post_init__(self):
        check_options(self)
