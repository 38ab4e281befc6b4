"""The TFRecords of NVIDIA's Wide & Deep, made of a finished tf_raw dataset (`preproc.outbrain --format`)."""

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
RECORDS = "tfrecords"  # folder of the dataset that holds them, where both are written
_BLOCK_ROWS = 65536


@contextmanager
def written_as(form: str, destination: Path, num_files: int | None, overwrite: bool) -> Iterator[Path]:
    """The folder for the tf_raw dataset; when the block has written it, TFRecords are made of it where they are wanted.

    Args:
        form: of FORMATS. TFRECORD: they take the dataset's place in the destination. BOTH: they go to its folder `tfrecords`.
        destination: as the command has it.
        num_files: of a split's records; None for 40.
        overwrite: replace what is there.

    Raises:
        DatasetError: the destination holds something already.
    """
    if form == TF_RAW:
        if overwrite and (old := destination / RECORDS / DEFAULT_FILE_NAME).exists():
            print(f"{old.parent}: TFRecords of the dataset that is replaced; they stay (--format {BOTH} replaces them, too)", file=sys.stderr)
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
    """The folders that records take of their destination."""
    return *FOLDERS.values(), SCHEMA


def write_tfrecords(dataset: Path, destination: Path, num_files: int | None = None, overwrite: bool = False) -> FeatureSpec:
    """Make TFRecords of a tf_raw dataset of one id a sample; returns their specification.

    Args:
        dataset: its folder.
        destination: `train`, `eval`, `transformed_metadata` and `feature_spec.yaml` appear there when all are written.
        num_files: of a split, fewer where it has not as many records of 4,096 rows; None for 40.
        overwrite: replace what is there.

    Raises:
        DatasetError: the dataset is damaged or has what records cannot hold, or the destination holds something already.
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
