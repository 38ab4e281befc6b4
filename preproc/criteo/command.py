"""Conversion of raw Criteo click logs to a tf_raw dataset.

    python -m preproc.criteo --train day_0.gz day_1.gz --test day_2.gz --dst criteo_t15 --frequency_threshold 15

    # the same dataset, made by a Spark cluster (docs/preprocessing.md)
    python -m preproc.criteo --engine spark --spark_master spark://HOST:7077 --train day_0 --test day_1 --dst criteo_t15 --frequency_threshold 15

    # the ids of that dataset for the days that follow, so that a model trained on it can score them
    python -m preproc.criteo --unlabelled day_3.gz --vocabulary criteo_t15 --dst day_3

Dictionaries come from the training days only: ids from 1 by falling frequency (equal counts by rising value), and 0 for
values that are missing, rare or not in the training days. Rows keep the order of the logs.
"""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from tqdm import tqdm

from dataloading.contract import bytes_per_sample, stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, NEGATIVE_RATE, FeatureSpec, generator_spec
from dataloading.features import VOCABULARY, DatasetError
from dataloading.tf_raw import TfRawWriter, refuse_dataset
from dataloading.vocabulary import read_vocabulary
from preproc.criteo.id_table import write_table_ids
from preproc.criteo.known_vocabulary import KnownVocabularies, known_vocabularies
from preproc.criteo.on_spark import SparkCriteo
from preproc.criteo.options import NAME, NEW, SPLITS, Options, parse
from preproc.criteo.reading import halve, read_logs
from preproc.criteo.row_order import INPUT, shuffle_file, shuffled_parts
from preproc.criteo.rows import SplitCounts
from preproc.criteo.staging import Staging, labels_of
from preproc.reading.stores import Source
from preproc.shared.in_order import by_size
from preproc.shared.into_store import made
from preproc.shared.negatives import TRAIN, KeptRows, choose_rows
from preproc.shared.resume import DATASET, Progress, dataset_files, link
from preproc.shared.vocabulary_file import write_vocabulary
from preproc.spark.engine import SparkEngine
from utils.encoding import transforms
from utils.encoding.vocabulary import build_vocabulary
from utils.naming import naming

_SMALL = 4_000_000  # values; two tables of up to this size may be in memory at once


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    Raises:
        UserError: a log is missing, empty, damaged or malformed, the destination holds a dataset, or a value does not fit. Nothing is left
            at the destination then.
    """
    options = parse(argv, __doc__)
    print(f"{options.target}: {run(options)}")
    return 0


def run(options: Options) -> str:
    """Run the command with parsed options, see `main`; return the summary to print."""
    for paths in options.logs.values():
        for path in paths:
            _check_log(path, options.destination)
    progress = _progress(options)
    return made(NAME, options.target, partial(make_dataset, options, progress), progress.run, options.overwrite)


def make_dataset(options: Options, progress: Progress) -> str:
    """Make the dataset in a local folder; return the summary to print."""
    started = time.monotonic()
    refuse_dataset(options.destination, DEFAULT_FILE_NAME, options.overwrite)
    known = options.vocabulary and known_vocabularies(options.vocabulary, options.form.categorical)
    transform = _transform(options, known)
    if options.leak:
        _warn("--dictionary_days all: values of test rows are in the dictionaries, so test scores are too optimistic")

    with Staging(options.target.staging or options.destination, options.splits, progress) as staging, _spark(options, staging) as spark:
        progress.start(staging.folder)
        tallies = _stage(staging, options, transform, progress, spark)
        kept = _sampled(staging, options, tallies)
        dataset = staging.folder / DATASET
        folder = dataset / VOCABULARY
        folder.mkdir(parents=True, exist_ok=True)
        cardinalities = _vocabularies(staging, options, known, folder, progress, spark)
        spec = generator_spec(cardinalities, options.form.num_numerical, alpha=0.0)
        within = dataset if options.target.staging is None else None  # write inside the staging folder, which is on the destination's disk
        splits = () if options.only_dictionaries else options.splits
        with TfRawWriter(options.destination, spec, splits, overwrite=options.overwrite, unlabelled=[NEW], within=within) as writer:
            if splits:
                _write_columns(staging, writer, options, kept, progress)
                if spark:
                    spark.write_ids(folder, writer, kept)
                else:
                    _write_ids(staging, writer, options, kept, folder, progress)
            if splits and options.ordering != INPUT:
                scratch = (staging.folder if within else writer.folder) / "shuffled"
                _shuffle(writer, shuffled_parts(options.ordering, tallies["train"].file_rows), options.seed, scratch, progress)
            metadata = _metadata(tallies, options, transform, writer.spec, folder)
            if within is None:
                shutil.move(folder, writer.folder / VOCABULARY)
            progress.publishing(dataset)
            spec = writer.publish(metadata)
    return _summary(spec, tallies, time.monotonic() - started)


def _progress(options: Options) -> Progress:
    """Return the progress of this run, which is identified by the options on which bytes depend and by all files that are read."""
    read = [path for paths in options.logs.values() for path in paths] + (dataset_files(options.vocabulary) if options.vocabulary else [])
    return Progress(NAME, options.of_the_bytes(), read, options.destination, options.resume)


@contextlib.contextmanager
def _spark(options: Options, staging: Staging) -> Iterator[SparkCriteo | None]:
    """Yield the steps that executors run, if Spark is the engine; else None."""
    if options.spark is None:
        yield None
        return
    with SparkEngine(options.spark, staging.folder) as engine:
        yield SparkCriteo(engine, options, staging)


def _check_log(path: Source, destination: Path) -> None:
    """Raise DatasetError where a log cannot be read, or lies where the dataset will be published; called before anything is written."""
    if not isinstance(path, Path):
        path.open().close()
        return
    if not path.is_file():
        raise DatasetError(
            f"{path}: {'not a file' if path.exists() else 'no such file'}; expected a click log (--train, --valid, --test, --unlabelled)"
        )
    path.open("rb").close()
    for folder in (*SPLITS, VOCABULARY):
        if path.resolve().is_relative_to((destination / folder).resolve()):  # publishing replaces these folders and all files in them
            raise DatasetError(f"{path} lies in {destination / folder}, which the dataset will replace; choose another --dst")


def _transform(options: Options, known: KnownVocabularies | None) -> str:
    """Return the transform of the integers; with --vocabulary it is that dataset's, so that a model trained on it can score the rows."""
    if known is None:
        return options.transform
    if options.transform not in (None, known.numerical_transform):
        raise DatasetError(
            f"--numerical_transform {options.transform}: --vocabulary {options.vocabulary} was made with {known.numerical_transform}, and a model "
            "trained on one cannot score the other; drop the flag"
        )
    return known.numerical_transform


def _stage(staging: Staging, options: Options, transform: str, progress: Progress, spark: SparkCriteo | None) -> dict[str, SplitCounts]:
    """Read every log once; return the counts of each split."""
    tallies = {split: SplitCounts([path.name for path in paths], labelled=split != NEW) for split, paths in options.logs.items()}
    if spark:
        spark.stage(tallies, transform)
        staging.flush()
        if options.halve:
            tallies["valid"] = halve(staging, tallies["test"])
    else:
        read_logs(staging, options, transform, tallies, progress)
    return {split: tallies[split] for split in options.splits}


def _sampled(staging: Staging, options: Options, tallies: dict[str, SplitCounts]) -> KeptRows | None:
    """Choose the training rows that are kept, and put their counts in place of those of all rows; return None where all are kept."""
    if options.negative_rate is None:
        return None
    blocks = ((labels, None) for labels in labels_of(staging.labels(TRAIN)))
    kept = choose_rows(options.negative_rate, options.seed, blocks, staging.folder, _warn)
    tallies[TRAIN] = tallies[TRAIN].sampled(kept, options.negative_rate)
    return kept


def _vocabularies(
    staging: Staging, options: Options, known: KnownVocabularies | None, folder: Path, progress: Progress, spark: SparkCriteo | None
) -> list[int]:
    """Write the vocabulary of every feature; return the cardinalities."""
    makes = known is None or options.extend
    counted = [split for split in options.splits if split != NEW] if options.leak else ["train"]
    dictionaries = spark.dictionaries(known) if spark and makes else None

    def write(place: int, feature: str) -> int:
        path = folder / f"{feature}.parquet"
        if not makes:
            known.scan(feature)  # raises where the file is damaged
            rows = known.rows(feature)
            with naming(path):
                shutil.copyfile(stored_vocabulary(known.spec, feature), path)
        elif dictionaries:
            rows = dictionaries.write(place, path)
        else:
            values, threshold = staging.values(counted, feature), options.thresholds.of(feature)
            vocabulary = build_vocabulary(values, threshold) if known is None else known.extended(feature, values, threshold)
            rows = vocabulary.height
            write_vocabulary(path, [vocabulary], rows, vocabulary.schema)
        bar.update()
        return rows + 1

    def once(place: int, feature: str) -> int:
        return progress.once(f"vocabulary {feature}", [folder / f"{feature}.parquet"], partial(write, place, feature))

    rows = staging.num_rows(counted) if makes else 0  # the most distinct values that a feature can have
    with tqdm(total=len(options.form.categorical), desc="vocabularies", unit="feature", disable=None) as bar:
        tasks = [partial(once, place, feature) for place, feature in enumerate(options.form.categorical)]
        return [task() for task in tasks] if spark else by_size([(rows, task) for task in tasks], _SMALL)


def _write_columns(staging: Staging, writer: TfRawWriter, options: Options, kept: KeptRows | None, progress: Progress) -> None:
    """Move the staged labels and numerical features into the dataset; with --resume link them, so that the staged files stay.

    Of the training rows only the kept ones are written, if `kept` says which.
    """
    move = link if progress.on else shutil.move
    for split in options.splits:
        files = writer.files(split)
        for source, path in ((staging.labels(split), files.label), (staging.numerical(split), files.numerical)):
            if path is not None:
                work = partial(move, source, path)
                if kept is not None and split == TRAIN:
                    work = partial(kept.write if progress.on else kept.join, [source], path)
                _once(split, path, work, options, progress)


def _write_ids(staging: Staging, writer: TfRawWriter, options: Options, kept: KeptRows | None, vocabularies: Path, progress: Progress) -> None:
    """Write the dataset's files of ids, column by column; of the training rows only the kept ones, if `kept` says which."""

    def write(place: int) -> None:
        feature = writer.spec.categorical[place]
        vocabulary = pl.read_parquet(vocabularies / f"{feature.name}.parquet", columns=["value", "id"], glob=False)
        for split in options.splits:
            path = writer.files(split).categorical[place]
            columns = staging.columns(split, feature.name)
            rows = columns if kept is None or split != TRAIN else kept.of(columns)
            work = partial(write_table_ids, rows, vocabulary, feature.dtype, path)
            _once(split, path, work, options, progress)
            bar.update(1 / len(options.splits))

    sizes = [feature.cardinality for feature in writer.spec.categorical]
    with tqdm(total=len(sizes), desc="ids", unit="feature", disable=None) as bar:
        by_size([(size, partial(write, place)) for place, size in enumerate(sizes)], _SMALL)


def _once(split: str, path: Path, work: Callable[[], None], options: Options, progress: Progress) -> None:
    """Write a file of the dataset, unless that is done; a training file that will be shuffled is done only when it is shuffled."""
    stage = _column(path)
    if split == "train" and options.ordering != INPUT:
        if not progress.done(stage):
            work()
    else:
        progress.once(stage, [path], work)


def _column(path: Path) -> str:
    return f"column {path.parent.name}/{path.name}"


def _shuffle(writer: TfRawWriter, parts: Sequence[int], seed: int, scratch: Path, progress: Progress) -> None:
    """Bring the training rows into their random order, column by column."""
    columns = zip(writer.files("train").all(), bytes_per_sample(writer.spec).values(), strict=True)
    for path, row_bytes in tqdm(list(columns), desc="shuffling", unit="column", disable=None):
        progress.once(_column(path), [path], partial(shuffle_file, path, row_bytes, parts, seed, scratch))


def _metadata(tallies: dict[str, SplitCounts], options: Options, transform: str, spec: FeatureSpec, folder: Path) -> dict[str, Any]:
    """Return the metadata of the specification; optional entries are left out where the option has its default value."""
    found = {
        "source": "criteo",
        **{split: tally.statistics() for split, tally in tallies.items()},
        "frequency_threshold": options.thresholds.described() if options.thresholds else None,
        "numerical_transform": transform,
        transforms.NAME: transforms.criteo_transforms(options.form.numerical, options.form.categorical, transform),
        "vocabulary": f"{VOCABULARY}/<feature>.parquet",
    }
    if options.ordering != INPUT:
        found["output_ordering"] = {"train": options.ordering, "seed": options.seed}
    if options.negative_rate is not None:
        found[NEGATIVE_RATE] = options.negative_rate
    if options.leak:
        found["dictionary_days"] = "all"
    if options.vocabulary:
        digests = {feature.name: read_vocabulary(folder / f"{feature.name}.parquet", 0, feature.cardinality)[0] for feature in spec.categorical}
        found["vocabulary_use"] = "extended" if options.extend else "frozen"
        found["vocabulary_digests"] = {name: vocabulary.digest for name, vocabulary in digests.items()}
    return found


def _summary(spec: FeatureSpec, tallies: dict[str, SplitCounts], seconds: float) -> str:
    rows = sum(tally.rows if tally.rows_before is None else tally.rows_before for tally in tallies.values())
    splits = ", ".join(f"{split} {tally.described()}" for split, tally in tallies.items())
    skipped = sum(tally.bad_lines for tally in tallies.values())
    tables = f"{len(spec.categorical)} categorical features with {sum(spec.cardinalities):,} table rows"
    return f"{splits}; {tables}; {skipped:,} bad lines skipped; {seconds:.1f} s, {rows / seconds:,.0f} rows/s"


def _warn(message: str) -> None:
    print(f"{NAME}: warning: {message}", file=sys.stderr)
