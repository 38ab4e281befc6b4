"""The steps of `preproc.table`, whichever engine takes them, and what all engines do in the same way."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import polars as pl

from dataloading.keys import KEYS
from dataloading.tf_raw import TfRawWriter
from preproc.reading.stores import Source
from preproc.shared.resume import Progress
from preproc.table import writing as table_write
from preproc.table.columns import Plan
from preproc.table.flags import NAME
from preproc.table.reading import FileCounts, Reading
from preproc.table.splits import SplitRule
from preproc.table.staging import LABEL, Split, StagedRows, TableStaging
from preproc.table.writing import Filled


class Counted(NamedTuple):
    """The rows of a split, and those whose label is positive (0 where there are no labels)."""

    rows: int
    clicks: int


class TableSteps(Protocol):
    """What makes a dataset of a table's files; called in this order, each step once."""

    def stage(self, files: Mapping[str, Sequence[Source]], plan: Plan, rule: SplitRule, reading: Reading) -> dict[str, FileCounts]:
        """Read every file into the staging; see `reading.stage`."""

    def split_counts(self) -> pl.DataFrame:
        """Where the rule of splits asks for it: what the training files are split by, each `value` and its `count`."""

    def learn(self, plan: Plan, splits: Mapping[str, Split], learned: Sequence[str], makes: bool) -> dict[str, Counted]:
        """Count the rows of each split.

        Args:
            plan: of the features.
            splits: of the dataset.
            learned: those that vocabularies, means and boundaries are made from.
            makes: whether vocabularies are made, or extended.
        """

    def fitted(self, plan: Plan) -> Plan:
        """Where there is no older dataset: the plan with what the rows say of numbers and lists; see `fit.fitted`."""

    def vocabularies(self, plan: Plan, old: Path | None, folder: Path) -> dict[str, int]:
        """Write the vocabularies to a folder; see `fit.write_vocabularies`."""

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


def write_keys(
    staging: TableStaging, splits: Mapping[str, Split], found: Mapping[str, Counted], names: tuple[str, ...], folder: Path, progress: Progress
) -> None:
    """Write the columns that predictions carry, beside each split's other files in the folder of a dataset."""
    for name, split in splits.items():
        keys = folder / name / KEYS
        work = partial(table_write.write_keys, StagedRows(staging, [split]), names, found[name].rows, keys)
        progress.once(f"column {name}/{KEYS}", [keys], work)
