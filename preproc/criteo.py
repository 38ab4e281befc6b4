"""Raw Criteo click logs to a tf_raw dataset.

    python -m preproc.criteo --train day_0.gz day_1.gz --test day_2.gz --dst criteo_t15 --frequency_threshold 15

    # the same bytes by a Spark cluster (docs/preprocessing.md)
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from tqdm import tqdm

from dataloading.contract import VOCABULARY, DatasetError, bytes_per_sample, stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec, generator_spec
from dataloading.tf_raw import TfRawWriter, refuse_dataset
from dataloading.vocabularies import read_vocabulary
from preproc.clicklog import LABEL, read_rows
from preproc.criteo_options import NAME, NEW, SPLITS, Options, parse
from preproc.criteo_rows import Tally, skipped, transformed
from preproc.criteo_spark import SparkCriteo
from preproc.engines.spark_engine import SparkEngine
from preproc.id_table import write_table_ids
from preproc.known_vocabulary import KnownVocabularies, known_vocabularies
from preproc.row_order import INPUT, shuffle_file, shuffled_parts
from preproc.staging import Staging
from preproc.vocabulary_file import write_vocabulary
from utils.encoding import transforms
from utils.encoding.vocabulary import build_vocabulary
from utils.errors import run_command
from utils.interrupt import EndedBySignals
from utils.naming import naming

_SMALL = 1_000_000  # values of a table of which two may be in memory
_THREADS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    Raises:
        UserError: a log that is missing, empty, damaged or malformed, a destination that holds a dataset, a value that
            does not fit. Nothing is left at the destination then.
    """
    options = parse(argv, __doc__)
    started = time.monotonic()
    for paths in options.logs.values():
        for path in paths:
            _check_log(path, options.destination)
    refuse_dataset(options.destination, DEFAULT_FILE_NAME, options.overwrite)
    known = options.vocabulary and known_vocabularies(options.vocabulary, options.form.categorical)
    transform = _transform(options, known)
    if options.leak:
        print(f"{NAME}: warning: --dictionary_days all: values of test rows are in the dictionaries, which flatters the model", file=sys.stderr)

    with Staging(options.staging or options.destination, options.splits) as staging, _spark(options, staging) as spark:
        tallies = _stage(staging, options, transform, spark)
        folder = staging.folder / VOCABULARY
        folder.mkdir()
        cardinalities = _vocabularies(staging, options, known, folder, spark)
        spec = generator_spec(cardinalities, options.form.num_numerical, alpha=0.0)
        with TfRawWriter(options.destination, spec, options.splits, overwrite=options.overwrite, unlabelled=[NEW]) as writer:
            _write_columns(staging, writer, options.splits)
            if spark:
                spark.write_ids(folder, writer)
            else:
                _write_ids(staging, writer, options.splits)
            if options.ordering != INPUT:
                _shuffle(writer, shuffled_parts(options.ordering, tallies["train"].file_rows), options.seed, writer.folder / "shuffled")
            metadata = _metadata(tallies, options, transform, writer.spec, folder)
            shutil.move(folder, writer.folder / VOCABULARY)
            spec = writer.publish(metadata)
    print(_summary(options.destination, spec, tallies, time.monotonic() - started))
    return 0


@contextlib.contextmanager
def _spark(options: Options, staging: Staging) -> Iterator[SparkCriteo | None]:
    """The steps that executors do, where Spark is the engine."""
    if options.spark is None:
        yield None
        return
    with SparkEngine(options.spark, staging.folder) as engine:
        yield SparkCriteo(engine, options, staging)


def _check_log(path: Path, destination: Path) -> None:
    """Find out before anything is written, and not after an hour of work, that a log cannot be read."""
    if not path.is_file():
        raise DatasetError(
            f"{path}: {'not a file' if path.exists() else 'no such file'}; expected a click log (--train, --valid, --test, --unlabelled)"
        )
    path.open("rb").close()
    for folder in (*SPLITS, VOCABULARY):
        if path.resolve().is_relative_to((destination / folder).resolve()):  # publishing replaces these folders, the log with them
            raise DatasetError(f"{path} lies in {destination / folder}, which the dataset will replace; choose another --dst")


def _transform(options: Options, known: KnownVocabularies | None) -> str:
    """What becomes of the integers: as in the dataset whose ids are used, for a model of that one."""
    if known is None:
        return options.transform
    if options.transform not in (None, known.numerical_transform):
        raise DatasetError(
            f"--numerical_transform {options.transform}: --vocabulary {options.vocabulary} has {known.numerical_transform}, and a model of one reads "
            "nothing of the other; drop the flag"
        )
    return known.numerical_transform


def _stage(staging: Staging, options: Options, transform: str, spark: SparkCriteo | None) -> dict[str, Tally]:
    """Read every log once; returns what was found in each split."""
    tallies = {split: Tally([path.name for path in paths], labelled=split != NEW) for split, paths in options.logs.items()}
    if spark:
        spark.stage(tallies, transform)
    else:
        _read(staging, options, transform, tallies)
    staging.flush()
    if options.halve:
        tallies["valid"] = _halve(staging, tallies["test"])
    return {split: tallies[split] for split in options.splits}


def _read(staging: Staging, options: Options, transform: str, tallies: dict[str, Tally]) -> None:
    """Read every log in this process."""
    total_bytes = sum(path.stat().st_size for paths in options.logs.values() for path in paths)
    with tqdm(total=total_bytes, desc="reading", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        for split, paths in options.logs.items():
            tally = tallies[split]
            form = replace(options.form, labelled=tally.labelled)
            for path in paths:
                bad_lines, first_fault, before = 0, "", tally.rows
                for rows in read_rows(path, options.block_bytes, options.skip_bad_lines, bar.update, form):
                    first_fault = first_fault or next(iter(rows.faults), "")
                    bad_lines += len(rows.faults)
                    if rows.lines:
                        labels = rows.frame[LABEL].to_numpy() if tally.labelled else None
                        numbers = transformed(path, rows, options.form.numerical, transform)
                        staging.append(split, labels, numbers, rows.frame.select(options.form.categorical))
                        tally.rows += rows.frame.height
                        tally.clicks += 0 if labels is None else int(labels.sum())
                if bad_lines:
                    bar.write(skipped(path, bad_lines, first_fault), file=sys.stderr)
                tally.bad_lines += bad_lines
                tally.file_rows.append(tally.rows - before)
            tally.check_rows(split)


def _halve(staging: Staging, test: Tally) -> Tally:
    """Make the second half of the last test day the valid split; of an odd number of rows the first half has one more."""
    held = test.file_rows[-1] // 2
    if not held:
        raise DatasetError(f"--halve_test: {test.files[-1]} holds {test.file_rows[-1]} rows; expected at least 2")
    clicks = staging.cut("test", test.rows - held, "valid")
    test.rows, test.clicks = test.rows - held, test.clicks - clicks
    return Tally(test.files[-1:], held, clicks)


def _vocabularies(staging: Staging, options: Options, known: KnownVocabularies | None, folder: Path, spark: SparkCriteo | None) -> list[int]:
    """Write the vocabulary of every feature; returns the cardinalities."""
    makes = known is None or options.extend
    counted = [split for split in options.splits if split != NEW] if options.leak else ["train"]
    dictionaries = spark.dictionaries(known) if spark and makes else None
    cardinalities = []
    for place, feature in enumerate(tqdm(options.form.categorical, desc="vocabularies", unit="feature", disable=None)):
        path = folder / f"{feature}.parquet"
        if not makes:
            known.scan(feature)  # checks it
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
        cardinalities.append(rows + 1)
    return cardinalities


def _write_columns(staging: Staging, writer: TfRawWriter, splits: Sequence[str]) -> None:
    """Fill the dataset's files of labels and numerical features, by moving them."""
    for split in splits:
        files = writer.files(split)
        if files.label is not None:
            shutil.move(staging.labels(split), files.label)
        if files.numerical is not None:
            shutil.move(staging.numerical(split), files.numerical)


def _write_ids(staging: Staging, writer: TfRawWriter, splits: Sequence[str]) -> None:
    """Fill the dataset's files of ids, column by column."""

    def write(place: int) -> None:
        feature = writer.spec.categorical[place]
        vocabulary = pl.read_parquet(staging.folder / VOCABULARY / f"{feature.name}.parquet", columns=["value", "id"], glob=False)
        for split in splits:
            write_table_ids(staging.columns(split, feature.name), vocabulary, feature.dtype, writer.files(split).categorical[place])
            progress.update(1 / len(splits))

    places = range(len(writer.spec.categorical))
    small = [place for place in places if writer.spec.categorical[place].cardinality <= _SMALL]
    with tqdm(total=len(places), desc="ids", unit="feature", disable=None) as progress, ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(write, small):
            pass
        for place in places:  # of the large ones, one table at a time is in memory
            if place not in small:
                write(place)


def _shuffle(writer: TfRawWriter, parts: Sequence[int], seed: int, scratch: Path) -> None:
    """Bring the training rows into their random order, column by column."""
    columns = zip(writer.files("train").all(), bytes_per_sample(writer.spec).values(), strict=True)
    for path, row_bytes in tqdm(list(columns), desc="shuffling", unit="column", disable=None):
        shuffle_file(path, row_bytes, parts, seed, scratch)


def _metadata(tallies: dict[str, Tally], options: Options, transform: str, spec: FeatureSpec, folder: Path) -> dict[str, Any]:
    """What the specification says of its making; what is as it always was is left out."""
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
    if options.leak:
        found["dictionary_days"] = "all"
    if options.vocabulary:
        digests = {feature.name: read_vocabulary(folder / f"{feature.name}.parquet", 0, feature.cardinality)[0] for feature in spec.categorical}
        found["vocabulary_use"] = "extended" if options.extend else "frozen"
        found["vocabulary_digests"] = {name: vocabulary.digest for name, vocabulary in digests.items()}
    return found


def _summary(destination: Path, spec: FeatureSpec, tallies: dict[str, Tally], seconds: float) -> str:
    rows = sum(tally.rows for tally in tallies.values())
    splits = ", ".join(f"{split} {tally.described()}" for split, tally in tallies.items())
    skipped = sum(tally.bad_lines for tally in tallies.values())
    tables = f"{len(spec.categorical)} categorical features with {sum(spec.cardinalities):,} table rows"
    return f"{destination}: {splits}; {tables}; {skipped:,} bad lines skipped; {seconds:.1f} s, {rows / seconds:,.0f} rows/s"


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
