"""The steps of `preproc.table` on one machine, by Polars; `table_spark.SparkTable` has the same ones."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl
from tqdm import tqdm

from dataloading.keys import KEYS
from dataloading.tf_raw import TfRawWriter
from preproc.reading.stores import Source
from preproc.shared import polars_engine as engine
from preproc.shared.resume import Progress
from preproc.table import writing as table_write
from preproc.table.columns import Plan, tables_of
from preproc.table.fit import RowFindings, fitted, write_vocabularies
from preproc.table.flags import NAME
from preproc.table.reading import FileCounts, Reading, stage
from preproc.table.splits import TRAIN, SplitRule
from preproc.table.staging import LABEL, SPLIT, Split, StagedRows, TableStaging
from preproc.table.writing import Filled
from utils.encoding.recipe import recipe_of


class Counted(NamedTuple):
    """The rows of a split, and those whose label is positive (0 where there are no labels)."""

    rows: int
    clicks: int


def counted(staged: StagedRows, labelled: bool) -> Counted:
    """Count some rows."""
    counts = [pl.len().alias("rows")] + ([pl.col(LABEL).sum().alias("clicks")] if labelled else [])
    found = staged.scan(*counts).collect(engine="streaming").sum().row(0, named=True)
    return Counted(found["rows"], found.get("clicks") or 0)


def say_cut(say: Callable[[str], object], split: str, plan: Plan, filled: Mapping[str, Filled]) -> None:
    """Say how many lists of each feature were cut."""
    for feature, found in filled.items():
        if found.cut:
            say(f"{NAME}: {split}: feature {feature}: lists cut to their first {plan.features[feature].max_hotness} values: {found.cut:,}")


class PolarsTable:
    """The steps of a run, in this order: `stage`, `split_counts` where it is asked for, `learn`, `fitted`, `vocabularies`, `write`.

    Args:
        staging: of the run.
        progress: knows which stages are complete.
        unlabelled: the split without labels; None where there is none.
        warn: is told what a user should know.
    """

    def __init__(self, staging: TableStaging, progress: Progress, unlabelled: str | None, warn: Callable[[str], None]):
        self._staging, self._progress, self._unlabelled, self._warn = staging, progress, unlabelled, warn
        self._learned: StagedRows | None = None

    def stage(self, files: Mapping[str, Sequence[Source]], plan: Plan, rule: SplitRule, reading: Reading) -> dict[str, FileCounts]:
        """Read every file into the staging; see `table_stage.stage`."""
        return stage(files, plan, rule, reading, self._staging, self._progress)

    def split_counts(self) -> pl.DataFrame:
        """What the training files are split by: each `value` and its `count`."""
        return engine.counts(self._staging.scan(TRAIN, None, pl.col(SPLIT).alias(engine.VALUE)))

    def learn(self, plan: Plan, splits: Mapping[str, Split], learned: Sequence[str], makes: bool) -> dict[str, Counted]:
        """Count the rows of each split.

        Args:
            plan: of the features.
            splits: of the dataset.
            learned: those that vocabularies, means and boundaries are made from.
            makes: whether vocabularies are made, or extended.
        """
        staging = self._staging
        self._learned = StagedRows(staging, [splits[split] for split in learned]) if makes else None
        return {name: counted(StagedRows(staging, [split]), name != self._unlabelled) for name, split in splits.items()}

    def fitted(self, plan: Plan) -> Plan:
        """The plan with what the rows say of numbers and lists; see `table_fit.fitted`."""
        found = RowFindings(self._learned)
        learned = self._progress.once(
            "learned", [], lambda: {name: recipe.to_dict() for name, recipe in fitted(plan, found, self._warn).features.items()}
        )
        return Plan({name: recipe_of(name, entry, fitted=True) for name, entry in learned.items()}, plan.label, plan.group, plan.ignored)

    def vocabularies(self, plan: Plan, old: Path | None, folder: Path) -> dict[str, int]:
        """Write the vocabularies to a folder; see `table_fit.write_vocabularies`."""
        with tqdm(total=len(tables_of(plan)), desc="dictionaries", unit="table", disable=None) as bar:
            return write_vocabularies(plan, self._learned, old, folder, bar.update, self._progress)

    def write(self, plan: Plan, splits: Mapping[str, Split], writer: TfRawWriter, vocabularies: Path) -> dict[str, dict[str, Filled]]:
        """Fill the dataset's files, but the keys.

        Args:
            plan: fitted.
            splits: of the dataset.
            writer: of its files.
            vocabularies: the folder that has them.

        Returns:
            what was found of each split's features.

        Raises:
            DatasetError: a number is too large.
        """
        filled = {}
        with tqdm(total=len(splits) * len(writer.spec.categorical), desc="ids", unit="column", disable=None) as bar:
            for name, split in splits.items():
                rows = StagedRows(self._staging, [split])
                filled[name] = table_write.write_split(rows, plan, writer.spec, writer.files(name), vocabularies, bar.update, self._progress)
                say_cut(partial(bar.write, file=sys.stderr), name, plan, filled[name])
        return filled


def write_keys(
    staging: TableStaging, splits: Mapping[str, Split], found: Mapping[str, Counted], names: tuple[str, ...], folder: Path, progress: Progress
) -> None:
    """Write the columns that predictions carry, beside each split's other files in the folder of a dataset."""
    for name, split in splits.items():
        keys = folder / name / KEYS
        work = partial(table_write.write_keys, StagedRows(staging, [split]), names, found[name].rows, keys)
        progress.once(f"column {name}/{KEYS}", [keys], work)
