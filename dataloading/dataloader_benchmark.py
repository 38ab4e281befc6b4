"""Measure how fast the batches of a dataset's training split are read, with the flags and lines of NVIDIA's command of this name.

    python -m dataloading.dataloader_benchmark --dataset_path /data/criteo --dataset_type tf_raw --batch_size 65536
    python -m dataloading.dataloader_benchmark --dataset_path /data/records --dataset_type split_tfrecords

Batches are read as in training: values are checked, and a thread reads ahead. After the last batch of an epoch the next epoch begins. Under
`horovodrun` each worker reads its part of every batch, and the first one prints.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

from dataloading.batches import Batch, BatchReader, Share, Split, prefetched
from dataloading.contract import TFRECORDS
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import DatasetError
from dataloading.tf_raw import TfRawSplit
from dataloading.tfrecord.batch_folders import batch_spec
from dataloading.tfrecord.batch_split import BatchRecordSplit
from utils import launch
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import AgreedError

NAME = "dataloading.dataloader_benchmark"
SPLIT, TF_RAW = "train", "tf_raw"
_NO_EFFECT = {
    "xla": "no model runs here",
    "amp": "no model runs here",
    "run_eagerly": "batches are read without TensorFlow's graphs",
    "tfdata_debug": "the input pipeline does not use tf.data",
}


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line. Raises UserError."""
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add_argument
    add("--dataset_path", type=Path, default=Path("synthetic_dataset"), metavar="FOLDER", help="folder of the dataset (default: %(default)s)")
    add("--dataset_type", choices=(TF_RAW, TFRECORDS), default=TF_RAW, help="type of the dataset (default: %(default)s)")
    add("--feature_spec", default=DEFAULT_FILE_NAME, metavar="FILE", help="name of the specification in --dataset_path (default: %(default)s)")
    add("--batch_size", type=int, default=65536, metavar="N", help="samples of a batch, over all workers (default: %(default)s)")
    add("--max_batches", type=int, default=100, metavar="N", help="batches to measure (default: %(default)s)")
    add("--warmup_steps", type=int, default=5, metavar="N", help="batches before these, not measured (default: %(default)s)")
    add("--sleep", type=int, default=0, metavar="SECONDS", help="pause between the warm-up and the measurement (default: %(default)s)")
    for name, reason in _NO_EFFECT.items():
        add(f"--{name}", action="store_true", help=f"no effect: {reason}")
    args = parser.parse_strictly(argv)
    for name, least in (("batch_size", 1), ("max_batches", 1), ("warmup_steps", 0), ("sleep", 0)):
        if (value := getattr(args, name)) < least:
            raise AgreedError(f"--{name} {value}: expected at least {least}")
    if args.batch_size % launch.size():
        raise AgreedError(f"--batch_size {args.batch_size}: expected a multiple of the {launch.size()} workers")
    return args


def open_split(folder: Path, spec_name: str, kind: str) -> Split:
    """Return the training split. Raises FeatureSpecError or DatasetError where the dataset is missing or damaged."""
    spec = FeatureSpec.from_yaml(folder / spec_name)
    if kind == TF_RAW and (form := folder / SPLIT / "label" / "format.json").is_file():
        raise DatasetError(f"{form} exists, so these are pre-batched TFRecords; read them with --dataset_type {TFRECORDS}")
    split = BatchRecordSplit(batch_spec(spec), SPLIT) if kind == TFRECORDS else TfRawSplit(spec, SPLIT)
    if not split.labelled:
        raise DatasetError(f"{spec.path}: split {SPLIT} has no labels; expected a dataset to train on")
    return split


def batches(split: Split, batch_size: int) -> Iterator[Batch]:
    """Yield this worker's part of every batch, epoch after epoch; features are dealt to the workers in turn."""
    rank, size = launch.rank(), launch.size()
    features = tuple(range(len(split.spec.categorical)))[rank::size]
    reader = BatchReader(split, batch_size, Share(features, rank=rank, num_workers=size))
    return (batch for epoch in count() for batch in reader.epoch(epoch))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, read the batches and print the times. Raises UserError."""
    args, first = parse_arguments(sys.argv[1:] if argv is None else argv), launch.rank() == 0
    say = print if first else lambda *words: None
    for name, reason in _NO_EFFECT.items():
        if getattr(args, name) and first:
            print(f"{NAME}: warning: --{name} has no effect: {reason}", file=sys.stderr)
    say("Creating the pipelines")
    with closing(open_split(args.dataset_path, args.feature_spec, args.dataset_type)) as split:
        say("Benchmarking...")
        with closing(prefetched(batches(split, args.batch_size))) as pipeline:
            for step in range(args.warmup_steps):
                say(f"warmup step: {step}")
                next(pipeline)
            if args.sleep:
                say("sleeping...")
                time.sleep(args.sleep)
            samples, begin = 0, time.perf_counter()
            before = begin
            for step in range(args.max_batches):
                samples += next(pipeline).num_samples
                now = time.perf_counter()
                say(f"batch: {step}, step time: {now - before:.3f}")
                before = now
    say("Benchmark done")
    say(f"Batches per second: {args.max_batches / (before - begin):.2e}")
    say(f"Samples per second: {samples / (before - begin):.2e}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
