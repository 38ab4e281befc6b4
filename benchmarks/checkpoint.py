"""Measure how fast a checkpoint is saved and restored, beside plain writes and reads of the same disk.

  python -m benchmarks.checkpoint --gib 4 --folder /where/checkpoints/go

In every round plain files of 32 MiB are written with fdatasync by as many threads as there are processors, and the model is saved to an empty folder;
then the page cache is dropped, the plain files are read and the model is restored. The order of plain files and model alternates from round to round,
because cloud disks are fast until an I/O budget is spent.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.options import Options, run
from benchmarks.peak_memory import PeakMemory, resident_bytes
from benchmarks.raw_disk import RawDisk, drop_from_cache
from benchmarks.report import Report
from benchmarks.rounds import median, speedup, timed
from benchmarks.scratch import scratch
from utils.config.option import option
from utils.memory import GIB, available_bytes, check_fits

DIM = 128
MIB = 1 << 20


@dataclass(frozen=True)
class CheckpointOptions(Options):
    """Checkpoint benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"gib": 0.06}

    num_rounds: int = option(4, "number of rounds, even for a fair order; medians over them are shown", unit="rounds")
    gib: float = option(4.0, "size of the tables", unit="GiB")
    num_tables: int = option(6, "number of tables, of one size", unit="tables")
    folder: str | None = option(None, "folder on the disk to measure; the default is the system's temporary folder")


def main(options: CheckpointOptions, report: Report) -> None:
    """Measure and print."""
    rows = max(int(options.gib * GIB) // (4 * DIM * options.num_tables), 1)
    size = 4 * DIM * rows * options.num_tables
    check_fits(int(1.2 * size), "--gib: the tables", available_bytes())
    with scratch(options.folder, int(2.2 * size), "two copies of the tables") as work:
        _measure(options, report, work, rows, size)


def _measure(options: CheckpointOptions, report: Report, work: Path, rows: int, size: int) -> None:
    from run.devices import configure_tensorflow
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    from model.build import build_model
    from model.embedding.placement import single
    from model.embedding.table import Table
    from model.embedding.table_memory import read_rows, write_rows
    from training.state import arrays, parts, restore
    from utils.checkpoint.reading import Checkpoint
    from utils.checkpoint.writing import Array, ArrayPart, save
    from utils.config.device import DeviceConfig
    from utils.config.options import ModelConfig
    from utils.distributed import World

    configure_tensorflow(DeviceConfig(cpu=True), 0)
    config, world = ModelConfig(embedding_dim=DIM), World()
    names = [f"cat_{i}" for i in range(options.num_tables)]
    placement = single([Table(name, rows, DIM) for name in names])
    model = build_model(config, placement, world, num_numerical=13, seed=0)
    disk = RawDisk(work / "raw", size)
    checkpoint = work / "checkpoint"

    def save_all() -> None:
        save(checkpoint, 1, arrays(model), parts(model), {}, world)

    def restore_all() -> None:
        restore(model, Checkpoint(checkpoint))

    def files() -> list[Path]:
        return [path for path in checkpoint.rglob("*") if path.is_file()]

    last = model.embedding.shards[-1].weights
    expected = read_rows(last, rows - 1, rows)
    one_row = {"row": Array(expected.shape)}, [ArrayPart("row", lambda *_: expected)]
    save(work / "first", 1, *one_row, {}, world)  # the first save loads libraries, which the first round must not measure
    peaks = {"save": PeakMemory(), "restore": PeakMemory()}
    seconds: dict[str, list[float]] = {"raw write": [], "save": [], "raw read": [], "restore": []}
    before = resident_bytes()

    def write_plain() -> None:
        seconds["raw write"].append(timed(disk.write))

    def save_model() -> None:
        with peaks["save"]:
            seconds["save"].append(timed(save_all))

    def read_plain() -> None:
        drop_from_cache(disk.files)
        seconds["raw read"].append(timed(disk.read))

    def restore_model() -> None:
        write_rows(last, rows - 1, 0 * expected)
        drop_from_cache(files())
        with peaks["restore"]:
            seconds["restore"].append(timed(restore_all))
        if not (read_rows(last, rows - 1, rows) == expected).all():
            raise RuntimeError("the restored tables differ from the saved tables")

    for number in range(options.num_rounds):
        for leftover in (work / "raw", checkpoint):
            shutil.rmtree(leftover, ignore_errors=True)
        for pair in ((write_plain, save_model), (read_plain, restore_model)):
            for action in pair if number % 2 == 0 else reversed(pair):
                action()

    rates = {name: size / 1e9 / median(seconds, name) for name in seconds}
    ratios = {"save": speedup(seconds, "save", "raw write"), "restore": speedup(seconds, "restore", "raw read")}
    extra = {name: peak.peak_bytes - before for name, peak in peaks.items()}
    report.figures |= {"bytes": size, "seconds": seconds, "gb_per_s": rates, "of_raw": ratios, "extra_memory_bytes": extra}
    report.table(
        f"{size / GIB:.2f} GiB in {options.num_tables} tables, medians of {options.num_rounds} rounds",
        ["", "GB/s", "of the raw disk's", "slowest round GB/s", "fastest round GB/s", "memory beside the model, MiB"],
        [
            (name, rates[name], ratios.get(name), size / 1e9 / max(times), size / 1e9 / min(times), extra[name] / MIB if name in extra else None)
            for name, times in seconds.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(run(CheckpointOptions, main, __doc__))
