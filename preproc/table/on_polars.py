"""The steps of `preproc.table` on one machine, by Polars."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
from tqdm import tqdm

from dataloading.tf_raw import TfRawWriter
from preproc.reading.stores import Source
from preproc.shared import polars_engine as engine
from preproc.shared.resume import Progress
from preproc.table import writing as table_write
from preproc.table.columns import Plan, tables_of
from preproc.table.fit import RowFindings, fitted, write_vocabularies
from preproc.table.negatives import KeptRows
from preproc.table.reading import FileCounts, Reading, stage
from preproc.table.splits import TRAIN, SplitRule
from preproc.table.staging import SPLIT, Split, StagedRows, TableStaging
from preproc.table.steps import Counted, SplitsFilled, counted, say_changed
from utils.encoding.recipe import recipe_of


class PolarsTable:
    """The steps on one machine; see `TableSteps`.

    Args:
        staging: the run's staging.
        progress: the record of completed stages.
        unlabelled: the split without labels; None where there is none.
        warn: called with each warning for the user.
    """

    def __init__(self, staging: TableStaging, progress: Progress, unlabelled: str | None, warn: Callable[[str], None]):
        self._staging, self._progress, self._unlabelled, self._warn = staging, progress, unlabelled, warn
        self._learned: StagedRows | None = None

    def stage(self, files: Mapping[str, Sequence[Source]], plan: Plan, rule: SplitRule, reading: Reading) -> dict[str, FileCounts]:
        """See `TableSteps`."""
        return stage(files, plan, rule, reading, self._staging, self._progress)

    def split_counts(self) -> pl.DataFrame:
        """See `TableSteps`."""
        return engine.counts(self._staging.scan(TRAIN, None, pl.col(SPLIT).alias(engine.VALUE)))

    def learn(self, plan: Plan, splits: Mapping[str, Split], learned: Sequence[str], makes: bool) -> dict[str, Counted]:
        """See `TableSteps`."""
        staging = self._staging
        self._learned = StagedRows(staging, [splits[split] for split in learned]) if makes else None
        return {name: counted(StagedRows(staging, [split]), plan, name != self._unlabelled) for name, split in splits.items()}

    def fitted(self, plan: Plan) -> Plan:
        """See `TableSteps`."""
        found = RowFindings(self._learned)
        learned = self._progress.once(
            "learned", [], lambda: {name: recipe.to_dict() for name, recipe in fitted(plan, found, self._warn).features.items()}
        )
        return replace(plan, features={name: recipe_of(name, entry, fitted=True) for name, entry in learned.items()})

    def vocabularies(self, plan: Plan, old: Path | None, folder: Path) -> dict[str, int]:
        """See `TableSteps`."""
        with tqdm(total=len(tables_of(plan)), desc="dictionaries", unit="table", disable=None) as bar:
            return write_vocabularies(plan, self._learned, old, folder, bar.update, self._progress)

    def write(self, plan: Plan, splits: Mapping[str, Split], writer: TfRawWriter, vocabularies: Path, kept: KeptRows | None) -> SplitsFilled:
        """See `TableSteps`."""
        filled = {}
        with tqdm(total=len(splits) * len(writer.spec.categorical), desc="ids", unit="column", disable=None) as bar:
            for name, split in splits.items():
                rows = StagedRows(self._staging, [split])
                written = kept if name == TRAIN else None
                filled[name] = table_write.write_split(rows, plan, writer.spec, writer.files(name), vocabularies, bar.update, self._progress, written)
                say_changed(partial(bar.write, file=sys.stderr), name, plan, filled[name])
        return filled
