"""Conversion of a finished tf_raw dataset to the TFRecords of NVIDIA's Wide & Deep (`preproc.outbrain --format`)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from dataloading.blocks import stored_blocks
from dataloading.contract import TFRECORD
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.tf_raw import TfRawSplit, refuse_replacing
from dataloading.tfrecord.spec import FOLDERS
from dataloading.tfrecord.writer import DEFAULT_FILES, SCHEMA, TfRecordWriter
from utils.scratch import Scratch

TF_RAW, BOTH = "tf_raw", "both"
FORMATS = (TF_RAW, TFRECORD, BOTH)
RECORDS = "tfrecords"  # folder inside the dataset that holds them if both are written
_BLOCK_ROWS = 65536


@contextmanager
def written_as(form: str, destination: Path, num_files: int | None, overwrite: bool) -> Iterator[Path]:
    """Yield the folder for the tf_raw dataset; after the block has written it, convert it to TFRecords if the format asks for them.

    Args:
        form: one of FORMATS. TFRECORD: the TFRecords take the dataset's place in the destination. BOTH: they go to its folder `tfrecords`.
        destination: destination of the command.
        num_files: number of TFRecord files of a split; None for 40.
        overwrite: replace existing files.

    Raises:
        DatasetError: the destination holds a dataset, or files in the folders of the TFRecords, and `overwrite` is not set.
    """
    if form == TF_RAW:
        if overwrite and (old := destination / RECORDS / DEFAULT_FILE_NAME).exists():
            print(f"{old.parent}: keeps the TFRecords of the replaced dataset; --format {BOTH} replaces them, too", file=sys.stderr)
        yield destination
        return
    target = destination if form == TFRECORD else destination / RECORDS
    refuse_replacing(target, DEFAULT_FILE_NAME, record_folders(), overwrite)
    if form == BOTH:
        yield destination
        spec = write_tfrecords(destination, target, num_files, overwrite)
    else:
        staging = Scratch(destination, "staging")
        try:
            yield staging.folder / "dataset"
            spec = write_tfrecords(staging.folder / "dataset", target, num_files, overwrite)
        finally:
            staging.remove()
    files = {split: len(chunks[0].files) for split, chunks in spec.sources.items()}
    print(f"{target}: TFRecords, {', '.join(f'{count} files of {split} rows' for split, count in files.items())}")


def record_folders() -> tuple[str, ...]:
    """Return the names of the folders that TFRecords occupy in their destination."""
    return *FOLDERS.values(), SCHEMA


def write_tfrecords(dataset: Path, destination: Path, num_files: int | None = None, overwrite: bool = False) -> FeatureSpec:
    """Convert a tf_raw dataset with one id a sample to TFRecords; return their specification.

    Args:
        dataset: folder of the dataset.
        destination: folder in which `train`, `eval`, `transformed_metadata` and `feature_spec.yaml` appear when all are written.
        num_files: number of files of a split, fewer where it has fewer records of 4,096 rows; None for 40.
        overwrite: replace existing files.

    Raises:
        DatasetError: the dataset is damaged or has features that TFRecords cannot hold, or the destination holds files that may not be replaced.
    """
    spec = FeatureSpec.from_yaml(dataset / DEFAULT_FILE_NAME)
    splits = {name: TfRawSplit(spec, name) for name in spec.sources}
    rows = {name: split.num_samples for name, split in splits.items()}
    unlabelled = [name for name, split in splits.items() if not split.labelled]
    files = DEFAULT_FILES if num_files is None else num_files
    with (
        TfRecordWriter(destination, spec, rows, files, overwrite=overwrite, unlabelled=unlabelled) as writer,
        tqdm(total=sum(rows.values()), desc=RECORDS, unit="row", unit_scale=True, disable=not sys.stderr.isatty()) as bar,
    ):
        for name, split in splits.items():
            for block in stored_blocks(split, split.num_samples, _BLOCK_ROWS):
                writer.append(name, block.numerical, block.ids, block.labels, block.groups)
                bar.update(len(block.numerical))
        writer.copy_vocabularies(spec)
        return writer.publish(spec.metadata)
