"""The sources of `dataloading.transcribe`: for each type, its features, its splits, its files and its rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dataloading.batches import Split
from dataloading.blocks import RowBlock, drawn_blocks, stored_blocks
from dataloading.contract import PARQUET, SPLIT, TFRECORD, TFRECORDS, check_quick, split_files
from dataloading.criteo_rows.facebook import facebook_rows
from dataloading.criteo_rows.nvidia_binary import binary_rows
from dataloading.criteo_rows.rows import CriteoRows
from dataloading.csv_files.source import check_csv_files, csv_paths, read_csv_split
from dataloading.csv_files.spec import read_csv_spec
from dataloading.feature_spec import SPLITS, FeatureSpec
from dataloading.keys import check_keys
from dataloading.parquet.files import files_of
from dataloading.parquet.notes import notes as parquet_notes
from dataloading.parquet.spec import parquet_spec, with_usual_widths
from dataloading.parquet.split import ParquetSplit
from dataloading.split_dataset import split_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from dataloading.tfrecord.batch_folders import batch_spec
from dataloading.tfrecord.batch_split import BatchRecordSplit
from dataloading.tfrecord.spec import split_records, tfrecord_spec, unread_features
from dataloading.tfrecord.split import TfRecordSplit

TF_RAW, SYNTHETIC, CSV, BINARY, FACEBOOK = "tf_raw", "synthetic", "csv", "binary", "facebook"
TYPES = (SYNTHETIC, TF_RAW, CSV, SPLIT, BINARY, FACEBOOK, TFRECORDS, TFRECORD, PARQUET)
CRITEO_ROWS = (BINARY, FACEBOOK)  # types that name no features: their rows have Criteo's form

Rows = tuple[Iterator[RowBlock], int | None]


def _nothing(splits: Sequence[str]) -> None:
    return None


def _no_files(split: str) -> Sequence[Path]:
    return ()


@dataclass(frozen=True)
class Source:
    """A dataset to transcribe.

    Attributes:
        spec: the features.
        known: the splits that can be written, train, valid and test first.
        all_of_them: the splits that are written unless flags name others.
        rows: returns the rows of a split in blocks, and their number (None if it is known only after reading), given the split, the number of
            batches (-1 for all) and the rows of a batch.
        paths: returns the files of a split.
        check: checks the files of splits before anything is written; raises DatasetError.
        notes: returns lines for the user about what is not read; called after `check`.
    """

    spec: FeatureSpec
    known: tuple[str, ...]
    all_of_them: tuple[str, ...]
    rows: Callable[[str, int, int], Rows]
    paths: Callable[[str], Sequence[Path]] = _no_files
    check: Callable[[Sequence[str]], None] = _nothing
    notes: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True)
class Options:
    """The flags that some types of sources need."""

    seed: int
    signal: float
    max_ind_range: int | None
    numerical_dtype: str


def open_source(kind: str, folder: Path, spec_name: str, options: Options) -> Source:
    """Return the source of a type, its specification read.

    Args:
        kind: one of TYPES.
        folder: folder of the source.
        spec_name: file name of the specification in it.
        options: flags of some types.

    Raises:
        FeatureSpecError, DatasetError: the specification or a file is missing or invalid.
    """
    flags = "--src_dataset_path and --src_feature_spec"
    if kind == SYNTHETIC:
        return _synthetic(FeatureSpec.from_yaml(folder / spec_name, flags), options)
    if kind == CSV:
        return _csv(read_csv_spec(folder / spec_name, flags))
    if kind == FACEBOOK:
        return _criteo(facebook_rows(folder, options.max_ind_range, options.numerical_dtype))
    if kind == BINARY:
        return _criteo(binary_rows(folder, options.numerical_dtype))
    if kind == TFRECORDS:
        return _prebatched(FeatureSpec.from_yaml(folder / spec_name, flags))
    if kind == TFRECORD:
        return _tfrecord(tfrecord_spec(folder, spec_name))
    if kind == PARQUET:
        return _parquet(with_usual_widths(parquet_spec(folder, spec_name, flags)))
    return _tf_raw(split_spec(folder) if kind == SPLIT else FeatureSpec.from_yaml(folder / spec_name, flags))


def _synthetic(spec: FeatureSpec, options: Options) -> Source:
    def rows(split: str, batches: int, size: int) -> Rows:
        drawn = SyntheticSplit(spec, split, batches * size, options.seed, options.signal)
        return drawn_blocks(drawn, size), drawn.num_samples

    return Source(spec, SPLITS, ("train", "test"), rows)


def _csv(spec: FeatureSpec) -> Source:
    def rows(split: str, batches: int, size: int) -> Rows:
        blocks = islice(read_csv_split(spec, split, size), None if batches == -1 else batches)
        return (RowBlock(*columns, groups=groups, weights=weights) for *columns, groups, weights in blocks), None

    def check(splits: Sequence[str]) -> None:
        for split in splits:
            check_csv_files(spec, split)

    known = ("train", "test") if spec.sources is None else _splits_of(spec)
    return Source(spec, known, known, rows, lambda split: csv_paths(spec, split), check)


def _criteo(found: CriteoRows) -> Source:
    def rows(split: str, batches: int, size: int) -> Rows:
        count = len(found.parts[split]) if batches == -1 else min(len(found.parts[split]), batches * size)
        return found.blocks(split, count, size), count

    known = _splits_of(found.spec)
    return Source(found.spec, known, known, rows, found.paths)


def _tf_raw(spec: FeatureSpec) -> Source:
    def check(splits: Sequence[str]) -> None:
        for split, count in check_quick(spec, tuple(splits)).items():
            check_keys(spec, split, count)

    known = _splits_of(spec)
    return Source(spec, known, known, _stored(spec, TfRawSplit), lambda split: split_files(spec, split).all(), check)


def _tfrecord(spec: FeatureSpec) -> Source:
    unread, known = unread_features(spec), _splits_of(spec)
    lines = (f"features of the records that {spec.path} does not list are ignored: {', '.join(unread)}",) if unread else ()
    return Source(spec, known, known, _stored(spec, TfRecordSplit), lambda split: split_records(spec, split), notes=lambda: lines)


def _parquet(spec: FeatureSpec) -> Source:
    opened: dict[str, ParquetSplit] = {}

    def check(splits: Sequence[str]) -> None:
        opened.update({split: ParquetSplit(spec, split) for split in splits})

    def notes() -> list[str]:
        return [f"warning: {line}" for line in parquet_notes(spec, opened.values())]

    known = _splits_of(spec)
    return Source(spec, known, known, _stored(spec, ParquetSplit), lambda split: files_of(spec, split), check, notes)


def _prebatched(given: FeatureSpec) -> Source:
    opened: dict[str, BatchRecordSplit] = {}
    spec = batch_spec(given)

    def open_once(spec: FeatureSpec, split: str) -> BatchRecordSplit:
        return opened.pop(split, None) or BatchRecordSplit(spec, split)

    def check(splits: Sequence[str]) -> None:
        opened.update({split: BatchRecordSplit(spec, split) for split in splits})

    def notes() -> list[str]:
        ignored = [f"warning: source_spec of {spec.path} is ignored: the paths of {TFRECORDS} files are fixed"] if given.sources else []
        return ignored + [f"warning: {line}" for split in opened.values() for line in split.notes()]

    known = _splits_of(spec)
    folders = {split: [spec.base_directory / file for chunk in chunks for file in chunk.files] for split, chunks in spec.sources.items()}
    return Source(spec, known, known, _stored(spec, open_once), lambda split: folders[split], check, notes)


def _stored(spec: FeatureSpec, open_split: Callable[[FeatureSpec, str], Split]) -> Callable[[str, int, int], Rows]:
    def rows(split: str, batches: int, size: int) -> Rows:
        stored = open_split(spec, split)
        count = stored.num_samples if batches == -1 else min(stored.num_samples, batches * size)
        return stored_blocks(stored, count, size), count

    return rows


def _splits_of(spec: FeatureSpec) -> tuple[str, ...]:
    """Return the splits of a specification: train, valid and test first, then the others in its order; train and test where it names no files."""
    if spec.sources is None:
        return "train", "test"
    return tuple(sorted(spec.sources, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS)))
