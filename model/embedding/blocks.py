"""The layout of the columns when workers exchange vectors: one block for each worker, which holds that worker's columns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.embedding.placement import Placement


@dataclass(frozen=True)
class Blocks:
    """Runs of columns that are consecutive both in a worker's block and in a sample's vectors `[C]`.

    Every list has one entry for each run, counted in columns. For n samples, run i of sample s begins at element
    `before[i]·n + s·strides[i] + places[i]` of the concatenated blocks.
    """

    before: list[int]  # columns of all blocks before the run's own block
    strides: list[int]  # columns of the run's own block
    places: list[int]  # columns before the run in its block
    columns: list[int]  # columns before the run in a sample's vectors
    widths: list[int]  # columns of the run

    @classmethod
    def of(cls, placement: "Placement", last: int) -> "Blocks":
        """Return the runs of the shards that single workers hold (replicated tables are not exchanged).

        Blocks are in the order of the ranks, but worker `last`'s is the last one.
        """
        runs: list[list[int]] = []
        before = 0
        for worker in sorted(range(len(placement.lookups)), key=lambda worker: worker == last):
            stride, place = placement.columns(worker), 0
            for feature, shard in placement.lookups[worker]:
                column = placement.columns_before[feature] + shard.first
                run = runs[-1] if runs else None
                if run and run[0] == before and run[2] + run[4] == place and run[3] + run[4] == column:
                    run[4] += shard.width
                else:
                    runs.append([before, stride, place, column, shard.width])
                place += shard.width
            before += stride
        return cls(*([run[i] for run in runs] for i in range(5)))
