"""The placement that the options ask for, and its plan: what every worker would hold, look up and send. Imports no TensorFlow."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from model.embedding.placement import GIB, Memory, Placement, PlacementError, place
from model.embedding.subtrees import sent
from model.embedding.table import NO_SLOTS, Feature, Storage, Table
from utils.config.config import Config
from utils.config.options import TRAIN
from utils.errors import AgreedError, UserError

_FLOAT_BYTES = 4
_MOMENTS_BYTES = 2 * 8 + 2 * 4  # of a unit that batch normalisation normalises: two float64 sums forward, two float32 sums backward
_REPORT = 5  # numbers that workers sum in every step: the loss and the four of `training.report.WorkerReport`


def build_placement(
    config: Config,
    tables: Sequence[Table],
    features: Sequence[Feature],
    num_workers: int,
    memory: float,
    host_memory: float = 0,
    storage: Storage = NO_SLOTS,
) -> Placement:
    """Place the tables as the options ask.

    Args:
        config: the configuration of the run.
        tables: the tables of the model.
        features: as in `place`.
        num_workers: N.
        memory: bytes for tables on one worker's device, where `--worker_memory_gb` is not given.
        host_memory: further bytes for tables in host memory.
        storage: the slots of the tables' optimizer; none where the tables are not trained.

    Raises:
        UserError: the tables do not fit.
    """
    options = config.placement
    given = options.worker_memory_gb
    device = memory if given is None else given * 1e9
    if options.cpu_offloading_threshold_gb is not None and not config.device.cpu:
        device = min(device, options.cpu_offloading_threshold_gb * 1e9)
    try:
        return place(
            tables,
            num_workers,
            features=features,
            strategy=options.dist_strategy,
            memory=Memory(device, host_memory),
            storage=storage,
            column_slice_threshold=options.column_slice_threshold,
            data_parallel_threshold=options.data_parallel_threshold,
        )
    except PlacementError as error:
        raise AgreedError(str(error)) from None


def check_shared(flag: str, size: int, num_workers: int) -> None:
    """Raise UserError, which names the nearest sizes that work, where N workers cannot share a global batch evenly."""
    if size % num_workers:
        below, above = size // num_workers * num_workers, -(-size // num_workers) * num_workers
        near = f"{below} and {above}" if below else str(above)
        raise UserError(f"--{flag} {size}: {num_workers} workers cannot share it evenly; the nearest sizes that work: {near}")


def share_batches(config: Config, num_workers: int) -> Config:
    """Return the configuration with batches that N workers can share evenly: the default evaluation batch is rounded up to a multiple of N.

    Raises:
        UserError: N does not divide a batch size that the user gave.
    """
    if "valid_batch_size" not in config.given:
        rounded = -(-config.data.valid_batch_size // num_workers) * num_workers
        config = replace(config, data=replace(config.data, valid_batch_size=rounded))
    sizes = [("batch_size", config.data.batch_size)] if config.run.mode == TRAIN else []
    sizes.append(("valid_batch_size", config.data.valid_batch_size))
    sizes += [("inference_benchmark_batch_sizes", size) for size in config.training.inference_benchmark_batch_sizes]
    for flag, size in sizes:
        check_shared(flag, size, num_workers)
    return config


@dataclass(frozen=True)
class Traffic:
    """Bytes that one worker sends to the others in a training step.

    `vectors` and `gradients` are the two alltoalls of the embedding, `squares` is the exchange of row-wise Adagrad's sums, `dense` the sum of the
    dense gradients over the workers, `statistics` the exchange of batch normalisation.
    """

    vectors: int
    gradients: int
    dense: int
    squares: int = 0
    statistics: int = 0

    @property
    def total(self) -> int:
        """The sum of all."""
        return self.vectors + self.gradients + self.squares + self.dense + self.statistics


def summed_elements(placement: Placement, dense: int) -> int:
    """Return the count of float32 numbers summed over workers in a step: loss, report, dense gradients, replicated tables' gradients and counts.

    A replicated table has one count a row beside its gradients, see `replicated.replicated_gradients`.
    """
    return _REPORT + dense + sum(placement.rows[table] * (placement.tables[table].dim + 1) for table in placement.replicated)


def traffic(placement: Placement, worker: int, batch_size: int, vector_bytes: int, dense: int, squares: bool = False, normalised: int = 0) -> Traffic:
    """Return the bytes that a worker sends in a step.

    Args:
        placement: the placement of the tables.
        worker: the rank of the worker.
        batch_size: B.
        vector_bytes: size of a number in the compute dtype, 4 or 2.
        dense: the number of dense weights.
        squares: whether the tables' optimizer needs the squares of whole rows.
        normalised: the number of units that batch normalisation normalises.

    Returns:
        the vectors of its columns for the other workers' samples; the gradients of its own samples for the others' columns; its share of
        a sum that moves no more bytes than a ring allreduce (all workers' parts out, the sums back); the sums of squares, if needed; and its sums for
        batch normalisation to every other worker.
    """
    workers = len(placement.workers)
    local = batch_size // workers
    mine = placement.columns(worker)
    everyone = sum(placement.columns(other) for other in range(workers))
    share = -(-summed_elements(placement, dense) // workers)
    cut = [table for other in range(workers) for table, _ in sent(placement, worker, other)] if squares else []
    return Traffic(
        vectors=local * (workers - 1) * mine * vector_bytes,
        gradients=local * (everyone - mine) * vector_bytes,
        dense=2 * (workers - 1) * share * _FLOAT_BYTES,
        squares=sum(placement.most_updated(table, batch_size) for table in cut) * _FLOAT_BYTES,
        statistics=(workers - 1) * normalised * _MOMENTS_BYTES,
    )


def report(placement: Placement, batch_size: int, vector_bytes: int, dense: int, squares: bool = False, normalised: int = 0) -> dict:
    """Return the plan as plain values.

    Arguments as in `traffic`.

    `minimum_alltoall_bytes` is the least that any placement without replicas must send: every vector whose table lies on another worker, and its
    gradient.
    """
    workers, names = [], [table.name for table in placement.tables]
    for rank, shards in enumerate(placement.workers):
        needed = traffic(placement, rank, batch_size, vector_bytes, dense, squares, normalised)
        workers.append(
            {
                "worker": rank,
                "tables": len({shard.table for shard in shards}),
                "slices": [
                    {
                        "table": names[shard.table],
                        "rows": shard.rows,
                        "columns": [shard.first, shard.last],
                        "bytes": placement.size(shard),
                        "host": shard in placement.hosted[rank],
                    }
                    for shard in shards
                ],
                "rows": sum(shard.rows for shard in shards),
                "stored_bytes": placement.stored(rank),
                "host_bytes": sum(placement.size(shard) for shard in placement.hosted[rank]),
                "lookups": batch_size * sum(placement.features[feature].hotness for feature, _ in placement.lookups[rank]),
                "looked_up_bytes": batch_size * placement.read_columns(rank) * _FLOAT_BYTES,
                "alltoall_bytes": needed.vectors + needed.gradients + needed.squares,
                "dense_bytes": needed.dense,
                "statistics_bytes": needed.statistics,
            }
        )
    stored = [worker["stored_bytes"] for worker in workers]
    columns, read = ([count(rank) for rank in range(len(workers))] for count in (placement.columns, placement.read_columns))
    elements = sum(table.rows * table.dim for table in placement.tables)
    return {
        "num_workers": len(workers),
        "batch_size": batch_size,
        "embedding_parameters": elements,
        "embedding_bytes": elements * _FLOAT_BYTES,
        "replicated": [names[table] for table in placement.replicated],
        "beyond_32_bits": sorted(
            {
                names[shard.table]
                for shards in placement.workers
                for shard in shards
                if shard.rows * shard.width > 1 << 31 and shard.table not in placement.lazy
            }
        ),
        "stored_bytes": sum(stored),
        "stored_imbalance": max(stored) * len(stored) / max(sum(stored), 1),
        "lookup_imbalance": max(read) * len(read) / max(sum(read), 1),
        "alltoall_bytes": sum(worker["alltoall_bytes"] for worker in workers),
        "minimum_alltoall_bytes": 2 * batch_size * sum(columns) * vector_bytes * (len(workers) - 1) // len(workers),
        "dense_bytes": sum(worker["dense_bytes"] for worker in workers),
        "statistics_bytes": sum(worker["statistics_bytes"] for worker in workers),
        "workers": workers,
    }


def lazy_report(placement: Placement, memory: float, touched: Mapping[int, int]) -> dict:
    """Return the memory of lazy tables as plain values.

    `touched_bytes_on_fullest` is what the touched rows take on the worker where they take the most, where they are known of all lazy tables: training
    needs as much of its memory.

    Args:
        placement: the placement of the tables.
        memory: bytes for the rows of a worker's lazy tables; infinite where the options do not say it.
        touched: the rows that the planned steps touch, by the table's index, as far as they are known.
    """
    rows = []
    for i in placement.lazy:
        table, of_rows = placement.tables[i], partial(placement.storage.bytes, width=placement.tables[i].dim)
        rows.append(
            {
                "table": table.name,
                "rows": table.rows,
                "bytes": of_rows(table.rows),
                "held_rows": table.held_rows,
                "held_bytes": of_rows(table.held_rows),
                "touched_rows": touched.get(i),
                "touched_bytes": of_rows(touched[i]) if i in touched else None,
            }
        )
    known = len(touched) == len(rows)
    needed = [
        sum(placement.storage.bytes(touched[shard.table], shard.width) for shard in shards if shard.table in touched) for shards in placement.workers
    ]
    return {
        "memory_bytes": None if math.isinf(memory) else int(memory),
        "touched_bytes_on_fullest": max(needed) if known else None,
        "total": {name: sum(row[name] for row in rows) if known or not name.startswith("touched") else None for name in rows[0] if name != "table"},
        "tables": rows,
    }


def as_json(plan: dict) -> str:
    """Return the report as JSON."""
    return json.dumps(plan, indent=1)


def as_table(plan: dict) -> str:
    """Return the report as text: one line for each worker, then the totals."""
    lines = [
        f"{plan['embedding_parameters']:,} embedding parameters, {plan['embedding_bytes'] / GIB:.2f} GiB; {plan['num_workers']} workers, "
        f"global batch {plan['batch_size']}",
        "worker tables slices          rows      GiB host GiB   lookups alltoall MB dense MB  holds",
    ]
    for worker in plan["workers"]:
        lines.append(
            f"{worker['worker']:>6} {worker['tables']:>6} {len(worker['slices']):>6} {worker['rows']:>13,} {worker['stored_bytes'] / GIB:>8.2f} "
            f"{worker['host_bytes'] / GIB:>8.2f} {worker['lookups']:>9,} {worker['alltoall_bytes'] / 1e6:>11.1f} "
            f"{worker['dense_bytes'] / 1e6:>8.1f}  " + _holds(worker["slices"])
        )
    lines.append(
        f"stored {plan['stored_bytes'] / GIB:.2f} GiB, fullest worker {plan['stored_imbalance']:.3f} x the mean; looked up: "
        f"{plan['lookup_imbalance']:.3f} x the mean on the busiest worker"
    )
    lines.append(
        f"a step sends {plan['alltoall_bytes'] / 1e6:,.1f} MB through the embedding's two alltoalls (any placement without replicas: at least "
        f"{plan['minimum_alltoall_bytes'] / 1e6:,.1f} MB) and {plan['dense_bytes'] / 1e6:,.1f} MB to sum dense gradients"
    )
    if plan["statistics_bytes"]:
        lines.append(f"and {plan['statistics_bytes'] / 1e6:,.1f} MB of statistics for batch normalisation")
    if plan["replicated"]:
        lines.append(f"replicated on every worker: {', '.join(plan['replicated'])}")
    if plan["beyond_32_bits"]:
        lines.append(f"tables of more than 2^31 elements on a worker, whose rows a GPU indexes by 64 bits: {', '.join(plan['beyond_32_bits'])}")
    return "\n".join([*lines, *(_of_lazy(plan["lazy"]) if "lazy" in plan else ())])


def _of_lazy(lazy: dict) -> Iterator[str]:
    """Yield the lines about lazy tables: one for each, their totals, and what the touched rows need."""
    limit, needed = lazy["memory_bytes"], lazy["touched_bytes_on_fullest"]
    yield f"lazy tables: rows of at most {limit / GIB:.2f} GiB a worker" if limit else "lazy tables: no --table_memory_gb limits their rows"
    width = max(len("lazy table"), *(len(row["table"]) for row in lazy["tables"]))
    yield f"{'lazy table':<{width}}          rows       GiB share GiB  touched rows       GiB"
    for row in (*lazy["tables"], {"table": "all", **lazy["total"]}):
        known = row["touched_rows"] is not None
        shown = f"{row['touched_rows']:>13,} {row['touched_bytes'] / GIB:>9.3f}" if known else f"{'unknown':>13} {'unknown':>9}"
        yield f"{row['table']:<{width}} {row['rows']:>13,} {row['bytes'] / GIB:>9.2f} {row['held_bytes'] / GIB:>9.2f} {shown}"
    of_steps = "" if lazy["steps"] is None else f" by {lazy['steps']:,} step{'s' * (lazy['steps'] != 1)} over {lazy['samples']:,} samples"
    if lazy["touched"]:
        counted = lazy["touched"] == "counted"
        yield f"rows touched{of_steps}: {'counted in the train split' if counted else 'expected from the power law of their ids'}"
    if lazy["advice"]:
        yield f"rows touched{of_steps} that are unknown: {lazy['advice']}"
    if needed is not None:
        enough = limit is None or needed <= limit
        yield f"touched rows take {needed / GIB:.3f} GiB on the fullest worker" + (
            "" if enough else f", more than its memory, so training would end early: give --table_memory_gb {rounded_up(needed)}"
        )


def rounded_up(size: float) -> str:
    """Return bytes as a number of 10^9 bytes with two digits, rounded up, as `--table_memory_gb` takes it."""
    unit = 10 ** (math.floor(math.log10(size / 1e9)) - 1)
    return f"{math.ceil(size / 1e9 / unit) * unit:.6g}"


def _holds(slices: Sequence[dict]) -> str:
    """List the four largest slices with their columns, `*` for host memory, and count the rest."""
    largest = sorted(slices, key=lambda shard: -shard["bytes"])
    words = [f"{shard['table']}[{shard['columns'][0]}:{shard['columns'][1]}]{'*' if shard['host'] else ''}" for shard in largest[:4]]
    more = len(largest) - len(words)
    return " ".join(words) + (f" +{more}" if more > 0 else "")
