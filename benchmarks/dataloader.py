"""Measure how fast batches are read from a tf_raw dataset in the page cache, compared with plain tf.data pipelines over the same files.

  python -m benchmarks.dataloader
  python -m benchmarks.dataloader --dataset_path DATASET --batch_size 8192

Every round measures all readers in turn. The project's reader checks that ids are in range, the pipelines of tf.data do not; all deliver ids `[F, B]`
as int32, numericals `[B, M]` and labels `[B]`. Without --dataset_path a dataset is written with the cardinalities of the 4.2-billion-parameter model,
so that all three widths of ids occur.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.rounds import interleave, median, speedup, spread
from benchmarks.scratch import SPLIT, scratch, write_dataset
from benchmarks.workload import t15_rows
from dataloading.batches import BatchReader, Order, prefetched
from dataloading.contract import bytes_per_sample
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.tf_raw import TfRawSplit
from utils.config.option import option
from utils.errors import UserError

RECORDS_OF_BATCHES, RECORDS_OF_SAMPLES = "tf.data, a record a batch", "tf.data, a record a sample"


@dataclass(frozen=True)
class DataloaderOptions(Options):
    """Input pipeline benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {"num_samples": 20_000, "batch_size": 1000, "record_batches": 1}

    dataset_path: str | None = option(None, "folder of a tf_raw dataset; the default is a new one in a temporary folder")
    num_samples: int = option(4_000_000, "rows of the new dataset", unit="samples")
    batch_size: int = option(65536, "batch size", unit="samples")
    record_batches: int = option(1, "batches in a turn of the pipeline with a record a sample, which is slow", unit="batches")
    shuffle_window: int = option(8, "shuffle window of the row with --shuffle_window", unit="batches")
    folder: str | None = option(None, "folder for the new dataset; the default is the system's temporary folder")


def main(options: DataloaderOptions, report: Report) -> None:
    """Measure and print."""
    if options.dataset_path:
        return _measure(options, report, Path(options.dataset_path))
    with scratch(options.folder, 100 * options.num_samples, "the dataset") as folder:
        report.say(f"writing {options.num_samples:,} samples to {folder}")
        write_dataset(folder, t15_rows(), options.num_samples, 0.0)
        _measure(options, report, folder)


def _measure(options: DataloaderOptions, report: Report, folder: Path) -> None:
    from run.devices import configure_tensorflow
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    from benchmarks.tf_data import pipeline
    from training.device_batch import to_device
    from utils.config.device import DeviceConfig

    configure_tensorflow(DeviceConfig(cpu=True), 0)
    spec = FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME)
    with closing(TfRawSplit(spec, SPLIT)) as split:
        count, size = split.num_samples // options.batch_size, options.batch_size
        if count == 0:
            raise UserError(f"--batch_size {size}: the dataset has {split.num_samples} samples; expected at least one batch")
        few = min(options.record_batches, count)
        in_order, shuffled = BatchReader(split, size), BatchReader(split, size, order=Order(0))
        mixed = BatchReader(split, size, order=Order(0, options.shuffle_window))
        by_batch = pipeline(spec, SPLIT, size, count, whole_batches=True)
        by_sample = pipeline(spec, SPLIT, size, few, whole_batches=False)
        sources: dict[str, tuple[int, Callable[[], Iterable]]] = {
            "BatchReader, not prefetched": (len(in_order), in_order.epoch),
            "BatchReader, prefetched": (len(in_order), lambda: prefetched(in_order.epoch())),
            "BatchReader, prefetched to the device": (len(in_order), lambda: prefetched(in_order.epoch(), to_device)),
            "BatchReader, the same, --shuffle_batch_order": (len(in_order), lambda: prefetched(shuffled.epoch(), to_device)),
            "BatchReader, the same, --shuffle_window": (len(in_order), lambda: prefetched(mixed.epoch(), to_device)),
            RECORDS_OF_BATCHES: (count, lambda: by_batch),
            RECORDS_OF_SAMPLES: (few, lambda: by_sample),
        }
        per_turn = interleave({name: lambda _, make=make: _drain(make()) for name, (_, make) in sources.items()}, options.num_rounds)
    seconds = {name: [turn / sources[name][0] for turn in turns] for name, turns in per_turn.items()}  # seconds of one batch
    sample_bytes = sum(bytes_per_sample(spec).values())
    peer = min((RECORDS_OF_BATCHES, RECORDS_OF_SAMPLES), key=lambda name: median(seconds, name))
    figures = {
        name: {
            "samples_per_s": size / median(seconds, name),
            "batch_ms": 1000 * median(seconds, name),
            "gb_per_s": size * sample_bytes / median(seconds, name) / 1e9,
            "of_best_peer": speedup(seconds, name, peer),
            "spread": spread(seconds, name),
        }
        for name in sources
    }
    report.figures |= {
        "num_samples": split.num_samples,
        "bytes_per_sample": sample_bytes,
        "best_peer": peer,
        "pipelines": figures,
        "seconds": seconds,
    }
    widths = {dtype: sum(feature.dtype == dtype for feature in spec.categorical) for dtype in ("int8", "int16", "int32")}
    report.say(f"{', '.join(f'{number} features of {dtype}' for dtype, number in widths.items())}; best peer: {peer}")
    report.table(
        f"{split.num_samples:,} samples of {sample_bytes} bytes, batch {size}, medians of {options.num_rounds} rounds",
        ["", "samples/s", "ms a batch", "GB/s", "of the best peer", "spread"],
        [(name, *facts.values()) for name, facts in figures.items()],
    )


def _drain(batches: Iterable) -> None:
    for _ in batches:
        pass


if __name__ == "__main__":
    sys.exit(run(DataloaderOptions, main, __doc__))
