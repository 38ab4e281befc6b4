"""The steps of `preproc.table` on Spark: executors read, fit and assign ids; the other steps run as on one machine."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from dataloading.contract import SplitFiles
from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.features import VOCABULARY
from dataloading.tf_raw import TfRawWriter
from preproc.reading.stores import Source
from preproc.shared import polars_engine as engine
from preproc.shared.joining import append_file, join_files
from preproc.shared.resume import Progress
from preproc.spark.dictionaries import Dictionaries
from preproc.spark.engine import SparkEngine
from preproc.table.columns import Plan, tables_of
from preproc.table.fit import fitted, scan_known_vocabulary, table_rows, vocabulary_path, write_vocabularies
from preproc.table.moments import Moments
from preproc.table.negatives import KeptRows
from preproc.table.reading import FileCounts, Reading
from preproc.table.sorted_texts import hash_ranges
from preproc.table.spark_reading import TASKS_A_CORE, Parts
from preproc.table.spark_tasks import (
    COUNTS,
    GROUPS,
    HASHED,
    LABELS,
    NUMBERS,
    WEIGHTS,
    Hashing,
    Learned,
    Learning,
    Numbering,
    Sorting,
    Writing,
    bucket_file,
    count_part,
    hash_part,
    ids_file,
    learn_part,
    number_part,
    sort_part,
    weights_file,
    write_part,
)
from preproc.table.splits import TRAIN, SplitRule
from preproc.table.staging import Block, Split, StagedRows, TableStaging
from preproc.table.steps import Counted, SplitsFilled, say_changed
from preproc.table.writing import Filled
from utils.encoding.kinds import Evidence, joined
from utils.encoding.recipe import Recipe
from utils.naming import naming

_PIECE_ROWS = 2_000_000  # approximate limit of the rows from which one task learns
TABLE_TEXTS = 2_000_000  # a vocabulary of up to so many texts is a table in an executor's memory; larger ones are searched in files
PART_TEXTS = 1_000_000  # texts in one part of a vocabulary that is searched in files
HASHED_TEXTS = 500_000  # texts of such a vocabulary that one task hashes

Piece = Mapping[str, Sequence[Block]]  # consecutive blocks of each group


@dataclass(frozen=True)
class _Findings:
    """`fit.Findings` merged from the results of tasks."""

    plan: Plan
    parts: Sequence[Learned]
    folders: Sequence[Path]

    def longest(self, feature: str) -> int:
        return max((part.longest.get(feature, 0) for part in self.parts), default=0)

    def kinds(self, feature: str, recipe: Recipe) -> tuple[Evidence, ...]:
        return joined(part.kinds[feature] for part in self.parts if feature in part.kinds)

    def counts(self, feature: str) -> pl.DataFrame:
        return _added([path for folder in self.folders if (path := folder / bucket_file(self.plan, feature)).exists()])

    def moments(self, recipes: Mapping[str, Recipe]) -> dict[str, Moments]:
        found = {name: Moments() for name in recipes}
        for part in self.parts:
            for name, moments in part.moments.items():
                found[name].join(moments)
        return found


class SparkTable:
    """The steps on executors; see `TableSteps`.

    Args:
        engine: the running engine.
        staging: the run's staging, in a folder that all executors share.
        progress: a record that keeps nothing: Spark itself repeats lost tasks.
        unlabelled: the split without labels; None where there is none.
        warn: called with each warning for the user.
    """

    def __init__(self, engine: SparkEngine, staging: TableStaging, progress: Progress, unlabelled: str | None, warn: Callable[[str], None]):
        self._engine, self._staging, self._progress, self._unlabelled, self._warn = engine, staging, progress, unlabelled, warn
        self._staged: Parts | None = None
        self._pieces: list[Piece] = []
        self._parts: list[Learned] = []
        self._learning: list[Learning] = []
        self._makes = False

    def stage(self, files: Mapping[str, Sequence[Source]], plan: Plan, rule: SplitRule, reading: Reading) -> dict[str, FileCounts]:
        """Read every file into staging. Raises DatasetError for the first fault in file order."""
        self._staged = Parts(self._engine, self._staging, rule)
        return self._staged.read(files, plan, reading)

    def split_counts(self) -> pl.DataFrame:
        """Return each value by which the training rows are split, as `value`, with its `count`."""
        return _added(self._staged.split_files)

    def learn(self, plan: Plan, splits: Mapping[str, Split], learned: Sequence[str], makes: bool) -> dict[str, Counted]:
        """Count the rows of each split, and collect the statistics for means, boundaries and value kinds."""
        self._makes = makes
        self._pieces = self._cut(TASKS_A_CORE * self._engine.parallelism)
        labelled = [name for name in splits if name != self._unlabelled]
        pieces = [(self._staging.of(piece), dict(self._splits(piece, splits))) for piece in self._pieces]
        self._learning = [Learning(*piece, labelled, learned, plan, makes) for piece in pieces]
        self._parts = self._map("learning", learn_part, self._learning)
        found = {name: [part.rows[name] for part in self._parts if name in part.rows] for name in splits}
        return {name: functools.reduce(Counted.plus, parts, Counted(0, 0)) for name, parts in found.items()}

    def fitted(self, plan: Plan) -> Plan:
        """Fit the plan to the training rows; see `fit.fitted`."""
        folders = [self._engine.task_folder("learning", number) for number in range(len(self._parts))]
        return fitted(plan, _Findings(plan, self._parts, folders), self._warn)

    def vocabularies(self, plan: Plan, old: Path | None, folder: Path) -> dict[str, int]:
        """Write the vocabularies to a folder; see `fit.write_vocabularies`."""
        if not self._makes:  # old vocabularies are only copied
            return write_vocabularies(plan, None, old, folder, lambda: None, self._progress)
        (folder / VOCABULARY).mkdir(exist_ok=True)
        tables = list(tables_of(plan).values())
        recipes = [plan.features[features[0]] for features in tables]
        known = None if old is None else {place: scan_known_vocabulary(old, features[0]) for place, features in enumerate(tables)}
        heights = {}
        if tables:
            thresholds, most = [recipe.frequency_threshold for recipe in recipes], [recipe.max_ids for recipe in recipes]
            counts = sum(self._map("counting", count_part, [replace(item, plan=plan) for item in self._learning]))
            dictionaries = Dictionaries(self._engine, f"counting-*/{COUNTS}", counts, thresholds, known, pl.String, most)
        for place, features in enumerate(tables):
            path = vocabulary_path(folder, features[0])
            height = dictionaries.write(place, path) + 1
            for name in features:
                heights[name] = height
                if name != features[0]:
                    _copy(path, vocabulary_path(folder, name))
        return table_rows(plan, heights)

    def write(self, plan: Plan, splits: Mapping[str, Split], writer: TfRawWriter, vocabularies: Path, kept: KeptRows | None) -> SplitsFilled:
        """Fill the dataset's files except the keys; see `TableSteps`."""
        self._write_rows(plan, splits, writer, kept)
        features = writer.spec.categorical
        # the largest features take longest; started first, they do not leave cores idle at the end
        largest_first = sorted(range(len(features)), key=lambda place: -features[place].cardinality)
        pieces = self._cut(-(-TASKS_A_CORE * self._engine.parallelism // len(features)))
        numbered = [(place, self._rows(piece, splits, features[place].name)) for place in largest_first for piece in pieces]
        folder = vocabularies.absolute()
        parts = self._sorted(plan, features, folder)
        items = [
            Numbering(plan.features[name := features[place].name], features[place], folder, rows, parts.get(name, ())) for place, rows in numbered
        ]
        numbers_of = self._map("ids", number_part, items)
        filled: SplitsFilled = {}
        for name in splits:
            found = filled[name] = {}
            for place, feature in enumerate(features):
                numbers = [number for number, (other, rows) in enumerate(numbered) if other == place and name in rows]
                found[feature.name] = functools.reduce(Filled.plus, (numbers_of[number][name] for number in numbers), Filled())
                folders = [self._engine.task_folder("ids", number) for number in numbers]
                _join_ids(folders, name, writer.files(name), writer.spec, place, kept if name == TRAIN else None)
            say_changed(lambda text: print(text, file=sys.stderr), name, plan, found)
        return filled

    def _sorted(self, plan: Plan, features: Sequence[Categorical], vocabularies: Path) -> dict[str, list[Path]]:
        """Write the vocabularies that are too large for a table as files to search, and return each feature's folders of them."""
        found, values = {}, {feature.name: feature.cardinality - 1 for feature in features}
        for place, names in enumerate(tables_of(plan).values()):
            if (count := values[names[0]]) <= TABLE_TEXTS:
                continue
            path, hashing, sorting = vocabulary_path(vocabularies, names[0]), f"hashing_{place}", f"sorting_{place}"
            slices = [Hashing(path, first, HASHED_TEXTS) for first in range(0, count, HASHED_TEXTS)]
            self._map(hashing, hash_part, slices)
            hashed = [self._engine.task_folder(hashing, number) / HASHED for number in range(len(slices))]
            parts = [Sorting(hashed, low, high) for low, high in hash_ranges(-(-count // PART_TEXTS))]
            self._map(sorting, sort_part, parts)
            for file in hashed:
                file.unlink()
            folders = [self._engine.task_folder(sorting, number) for number in range(len(parts))]
            found |= {name: folders for name in names}
        return found

    def _write_rows(self, plan: Plan, splits: Mapping[str, Split], writer: TfRawWriter, kept: KeptRows | None) -> None:
        """Write labels, groups, weights and numbers."""
        spec, items = writer.spec, []
        for name in splits:
            first = 0
            for piece, part in zip(self._pieces, self._parts, strict=True):
                if (rows := self._rows(piece, splits).get(name)) is not None:
                    items.append(Writing(rows, name, first, plan, name != self._unlabelled, spec.numerical, spec.numerical_dtype))
                    first += part.rows[name].rows
        self._map("rows", write_part, items)
        for name in splits:
            files = writer.files(name)
            folders = [self._engine.task_folder("rows", number) for number, item in enumerate(items) if item.split == name]
            for target, part in ((files.label, LABELS), (files.group, GROUPS), (files.weight, WEIGHTS), (files.numerical, NUMBERS)):
                if target is not None:
                    _join([folder / part for folder in folders], target, kept if name == TRAIN else None)

    def _map(self, name: str, work: Callable, items: Sequence) -> list:
        found, error = self._engine.map(name, work, items, "part")
        if error is not None:
            raise error
        return found

    def _cut(self, parts: int) -> list[Piece]:
        """Cut all blocks into about `parts` pieces of similar numbers of rows; into more pieces where these exceed about `_PIECE_ROWS` rows."""
        total = sum(rows for _, _, rows in self._staged.blocks)
        parts = min(len(self._staged.blocks), max(parts, -(-total // _PIECE_ROWS)))
        found: list[dict[str, list[Block]]] = [{} for _ in range(parts)]
        end = 0
        for group, block, rows in self._staged.blocks:
            end += rows
            found[-(-end * parts // total) - 1].setdefault(group, []).append(block)
        return [blocks for blocks in found if blocks]

    def _splits(self, piece: Piece, splits: Mapping[str, Split]) -> Iterator[tuple[str, Split]]:
        return ((name, split) for name, split in splits.items() if split.group in piece)

    def _rows(self, piece: Piece, splits: Mapping[str, Split], feature: str | None = None) -> dict[str, StagedRows]:
        blocks = self._staging.of(piece, feature)
        return {name: StagedRows(blocks, [split]) for name, split in self._splits(piece, splits)}


def _added(files: Sequence[Path]) -> pl.DataFrame:
    """Return the sums of the counts of several files."""
    found = pl.scan_parquet(list(files), glob=False).group_by(engine.VALUE).agg(pl.col("count").cast(pl.Int64).sum())
    return found.collect(engine="streaming")


def _join_ids(folders: Sequence[Path], split: str, files: SplitFiles, spec: FeatureSpec, place: int, kept: KeptRows | None) -> None:
    """Join the ids of a feature, and their weights if they have any, from the folders of its tasks."""
    _join([ids_file(folder, split) for folder in folders], files.categorical[place], kept)
    if (weights := files.id_weights.get(spec.categorical[place].name)) is not None:
        _join([weights_file(folder, split) for folder in folders], weights, kept)


def _join(parts: Sequence[Path], target: Path, kept: KeptRows | None) -> None:
    join_files(parts, target) if kept is None else kept.join(parts, target)


def _copy(source: Path, target: Path) -> None:
    with naming(target), target.open("wb") as file:
        append_file(source, file)
