"""The interface of the steps of `preproc.table`, and the functions that all engines share."""

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
from preproc.table.negatives import KeptRows
from preproc.table.reading import FileCounts, Reading
from preproc.table.splits import TRAIN, SplitRule
from preproc.table.staging import LABEL, WEIGHT, Split, StagedRows, TableStaging
from preproc.table.writing import Filled

SplitsFilled = dict[str, dict[str, Filled]]  # the counts of each split's features


class Counted(NamedTuple):
    """The rows of a split, and of these the ones whose label is positive (0 where there are no labels).

    `weightless`, of a split with weights: the rows whose stored weight is 0; `vanished`: of these, the ones whose weight was above 0.
    """

    rows: int
    clicks: int
    weightless: int = 0
    vanished: int = 0

    def plus(self, other: "Counted") -> "Counted":
        """Return the sums of these counts and others."""
        return Counted(*(a + b for a, b in zip(self, other, strict=True)))


class TableSteps(Protocol):
    """The steps that make a dataset from a table's files, called in this order; each is called at most once."""

    def stage(self, files: Mapping[str, Sequence[Source]], plan: Plan, rule: SplitRule, reading: Reading) -> dict[str, FileCounts]:
        """Read every file into staging; see `reading.stage`."""

    def split_counts(self) -> pl.DataFrame:
        """Return each value by which the training rows are split, as `value`, with its `count`; called if the split rule needs them."""

    def learn(self, plan: Plan, splits: Mapping[str, Split], learned: Sequence[str], makes: bool) -> dict[str, Counted]:
        """Count the rows of each split.

        Args:
            plan: the plan of the features.
            splits: the splits of the dataset.
            learned: the splits that vocabularies, means and boundaries are made from.
            makes: whether vocabularies are made or extended.
        """

    def fitted(self, plan: Plan) -> Plan:
        """Fit the plan to the training rows; see `fit.fitted`. Called if there is no older dataset."""

    def vocabularies(self, plan: Plan, old: Path | None, folder: Path) -> dict[str, int]:
        """Write the vocabularies to a folder; see `fit.write_vocabularies`."""

    def write(self, plan: Plan, splits: Mapping[str, Split], writer: TfRawWriter, vocabularies: Path, kept: KeptRows | None) -> SplitsFilled:
        """Fill the dataset's files except the keys.

        Args:
            plan: the fitted plan.
            splits: the splits of the dataset.
            writer: the writer of the dataset's files.
            vocabularies: the folder that holds the vocabularies.
            kept: the rows of the training split that are written; None for all.

        Returns:
            the counts of each split's features, over all rows.

        Raises:
            DatasetError: a number is too large for the dtype.
        """


def counted(staged: StagedRows, plan: Plan, labelled: bool) -> Counted:
    """Count rows and, if they are labelled, those whose label is positive and those whose weight is 0."""
    counts = [pl.len().alias("rows")] + ([pl.col(LABEL).sum().alias("clicks")] if labelled else [])
    if labelled and plan.weight is not None:
        zero = pl.col(WEIGHT).cast(pl.Float32) == 0
        counts += [zero.sum().alias("weightless"), (zero & (pl.col(WEIGHT) > 0)).sum().alias("vanished")]
    found = staged.scan(*counts).collect(engine="streaming").sum().row(0, named=True)
    return Counted(**{name: count or 0 for name, count in found.items()} | ({} if labelled else {"clicks": 0}))


def say_changed(say: Callable[[str], object], split: str, plan: Plan, filled: Mapping[str, Filled]) -> None:
    """Report the number of cut lists of each feature, and weights of ids that became 0 or are all 0."""
    for feature, found in filled.items():
        recipe = plan.features[feature]
        if found.cut:
            say(f"{NAME}: {split}: feature {feature}: lists cut to their first {recipe.max_hotness} values: {found.cut:,}")
        if found.vanished:
            say(f"{NAME}: {split}: feature {feature}: weights in column {recipe.weights} too small for float32, which became 0: {found.vanished:,}")
        if found.weights and not found.effective:
            say(f"{NAME}: {split}: feature {feature}: every weight in column {recipe.weights} is 0, so no id has an effect; is --id_weights right?")


def write_keys(
    staging: TableStaging,
    splits: Mapping[str, Split],
    found: Mapping[str, Counted],
    names: tuple[str, ...],
    folder: Path,
    progress: Progress,
    kept: KeptRows | None,
) -> None:
    """Write the columns that predictions carry, beside the other files of each split; of the training split only the kept rows."""
    for name, split in splits.items():
        keys = folder / name / KEYS
        work = partial(table_write.write_keys, StagedRows(staging, [split]), names, found[name].rows, keys, kept if name == TRAIN else None)
        progress.once(f"column {name}/{KEYS}", [keys], work)
