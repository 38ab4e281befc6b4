"""The tasks of executors for `preproc.table`: read a part of a file, learn from blocks of rows, and write parts of the dataset's files."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from dataloading.feature_spec import Categorical
from dataloading.features import DatasetError
from preproc.reading.files import Form
from preproc.reading.stores import Source, fetch_to, release
from preproc.reading.table_file import TableFile, may_span_lines
from preproc.shared import polars_engine as engine
from preproc.table.columns import Plan, tables_of
from preproc.table.fit import RowFindings, coded, to_fit
from preproc.table.moments import Moments
from preproc.table.reading import GroupPlan
from preproc.table.sorted_texts import SortedTexts, write_hashed, write_texts
from preproc.table.splits import COLUMN, ROWS, TIME
from preproc.table.staging import SPLIT, Split, StagedRows, TableBlocks
from preproc.table.steps import Counted, counted
from preproc.table.writing import Filled, Ids, write_groups, write_id_weights, write_ids, write_labels, write_numericals, write_weights
from utils.encoding.kinds import Evidence, is_undecided
from utils.encoding.recipe import Recipe
from utils.naming import naming

SPLITS, COUNTS = "splits.parquet", "counts.parquet"
LABELS, GROUPS, WEIGHTS, NUMBERS = "label.bin", "group.bin", "weight.bin", "numerical.bin"
HASHED = "hashed.parquet"


@dataclass(frozen=True)
class FilePart:
    """A part of a file.

    Attributes:
        group: the file's group.
        rows: the plan, split rule and reading options for its rows.
        path: the file, by a name that is valid on every machine.
        form: the file's format.
        byte_range: (start, stop) of the part of a text file; None for all of it.
        row_range: (start, stop) of the part of a Parquet or Arrow file; None for all of it.
    """

    group: str
    rows: GroupPlan
    path: Source
    form: Form
    byte_range: tuple[int, int] | None = None
    row_range: tuple[int, int] | None = None


@dataclass
class FilePartRead:
    """The result of reading a part; its blocks are in the task's folder.

    `first_fault` numbers its line from the start of the part, which has `lines` lines. `heights` are the numbers of rows of the blocks.
    """

    blocks: TableBlocks
    heights: list[int] = field(default_factory=list)
    lines: int = 0
    bad_lines: int = 0
    first_fault: str = ""
    unmatched: Counter[str] = field(default_factory=Counter)


def spans_lines(item: FilePart, folder: Path) -> bool:
    """Return True if rows of a part may span lines. Errors are ignored here: reading the file raises them again."""
    try:
        return may_span_lines(item.path, item.form, item.byte_range)
    except DatasetError:
        return True


def read_part(item: FilePart, folder: Path) -> FilePartRead:
    """Stage a part of a file. Raises DatasetError where it is malformed, with the line number counted from the start of the part."""
    fetch_to(folder, [[item.path]])
    file = TableFile(item.path, item.form, item.rows.reading.skip_bad_lines)
    found, staged = FilePartRead(TableBlocks(folder, [item.group])), 0
    for rows, texts, faults, unmatched in item.rows.of(file, item.path, byte_range=item.byte_range, row_range=item.row_range):
        found.bad_lines, found.first_fault = found.bad_lines + len(faults), found.first_fault or next(iter(faults), "")
        found.unmatched.update(unmatched)
        if item.rows.divide.by == ROWS:
            # the place in the part; the rows before the part are not known yet, see `staging.Block.first`
            rows = rows.with_columns(pl.int_range(staged, staged + rows.height, dtype=pl.UInt32, eager=True).alias(SPLIT))
        if rows.height:
            found.blocks.append(item.group, rows, texts, item.path)
            found.heights.append(rows.height)
            staged += rows.height
    release(item.path)
    found.lines = file.num_lines
    if found.heights and item.rows.divide.by in (TIME, COLUMN):
        _write(engine.counts(found.blocks.scan(item.group, None, pl.col(SPLIT).alias(engine.VALUE))), folder / SPLITS)
    return found


@dataclass(frozen=True)
class Learning:
    """Some blocks from which to learn.

    Attributes:
        blocks: the blocks, of one or more groups.
        splits: the splits to which rows of these blocks belong.
        labelled: the splits that have labels.
        learned: the splits that vocabularies, means and boundaries are made from.
        plan: the plan of the features.
        makes: whether the values of vocabularies are counted.
    """

    blocks: TableBlocks
    splits: Mapping[str, Split]
    labelled: Sequence[str]
    learned: Sequence[str]
    plan: Plan
    makes: bool

    @property
    def rows(self) -> StagedRows:
        """The rows that are learned from."""
        return StagedRows(self.blocks, [self.splits[split] for split in self.learned if split in self.splits])


@dataclass
class Learned:
    """The result of learning: the counts of each split, and each feature's longest list, moments or evidence of value kinds."""

    rows: dict[str, Counted]
    longest: dict[str, int] = field(default_factory=dict)
    moments: Mapping[str, Moments] = field(default_factory=dict)
    kinds: dict[str, tuple[Evidence, ...]] = field(default_factory=dict)


def learn_part(item: Learning, folder: Path) -> Learned:
    """Count rows and the values that buckets are made from, and collect moments, list lengths and evidence of value kinds."""
    splits = item.splits.items()
    found = Learned({name: counted(StagedRows(item.blocks, [split]), item.plan, name in item.labelled) for name, split in splits})
    rows = item.rows
    if not (item.makes and rows.parts):
        return found
    findings = RowFindings(rows)
    lists, buckets, numbers = to_fit(item.plan)
    found.longest, found.moments = {name: findings.longest(name) for name in lists}, findings.moments(numbers)
    for name in buckets:
        _write(findings.counts(name), folder / bucket_file(item.plan, name))
    found.kinds = {name: findings.kinds(name, recipe) for name, recipe in item.plan.features.items() if is_undecided(recipe)}
    return found


def count_part(item: Learning, folder: Path) -> int:
    """Count the values of vocabularies by a fitted plan, and return the number of rows written.

    The file's columns are `feature` (the index of the table), `value` and `count`.
    """
    if not item.rows.parts:
        return 0
    counts = pl.concat(_counts(item.rows, item.plan))
    _write(counts, folder / COUNTS)
    return counts.height


def bucket_file(plan: Plan, feature: str) -> str:
    """Return the name of the file of a feature's values and their counts."""
    return f"buckets-{list(plan.features).index(feature)}.parquet"


def _counts(rows: StagedRows, plan: Plan) -> Iterator[pl.DataFrame]:
    for place, features in enumerate(tables_of(plan).values()):
        found = engine.text_counts(block for name in features for block in coded(rows, name, plan.features[name]))
        yield found.select(pl.lit(place, pl.Int32).alias("feature"), engine.VALUE, pl.col("count").cast(pl.Int64))


def _write(frame: pl.DataFrame, path: Path) -> None:
    with naming(path):
        frame.write_parquet(path, compression="snappy", statistics=False)


@dataclass(frozen=True)
class Writing:
    """A part of a split's rows whose labels, groups, weights and numbers are to be written.

    Attributes:
        rows: the rows of the part.
        split: the split's name.
        first: the number of the split's rows before these.
        plan: the fitted plan.
        labelled: whether the rows have labels.
        numerical: the numerical features.
        dtype: the dtype of the numerical features.
    """

    rows: StagedRows
    split: str
    first: int
    plan: Plan
    labelled: bool
    numerical: Sequence[str]
    dtype: str


def write_part(item: Writing, folder: Path) -> None:
    """Write the labels, groups, weights and numbers of a part. Raises DatasetError where a number is too large for the dtype."""
    if item.labelled:
        write_labels(item.rows, folder / LABELS)
        if item.plan.weight is not None:
            write_weights(item.rows, folder / WEIGHTS)
    if item.plan.group is not None:
        write_groups(item.rows, folder / GROUPS)
    if item.numerical:
        write_numericals(item.rows, item.plan, item.numerical, item.dtype, folder / NUMBERS, item.split, item.first)


@dataclass(frozen=True)
class Numbering:
    """Some blocks whose ids of one feature are to be written.

    Attributes:
        recipe: the feature's fitted recipe.
        feature: the feature in the dataset's specification.
        vocabularies: the folder that holds the vocabularies.
        rows: the rows of each split.
        parts: the folders of the feature's vocabulary where it is searched in files (`sorted_texts`).
    """

    recipe: Recipe
    feature: Categorical
    vocabularies: Path
    rows: Mapping[str, StagedRows]
    parts: Sequence[Path] = ()


def number_part(item: Numbering, folder: Path) -> dict[str, Filled]:
    """Write a file of ids for each split, and one of their weights if they have any; return the counts of each split."""
    ids = SortedTexts(item.parts) if item.parts else Ids(item.recipe, item.feature.name, item.vocabularies)
    found = {split: write_ids(rows, item.recipe, item.feature, ids_file(folder, split), ids) for split, rows in item.rows.items()}
    if item.feature.weights:
        found = {split: found[split].plus(write_id_weights(rows, item.feature, weights_file(folder, split))) for split, rows in item.rows.items()}
    return found


def ids_file(folder: Path, split: str) -> Path:
    """Return the file of a part's ids."""
    return folder / f"{split}.bin"


def weights_file(folder: Path, split: str) -> Path:
    """Return the file of the weights of a part's ids."""
    return folder / f"{split}.weights"


@dataclass(frozen=True)
class Hashing:
    """Some rows of a vocabulary, to be sorted by hash."""

    vocabulary: Path
    first: int
    rows: int


def hash_part(item: Hashing, folder: Path) -> None:
    """Write the rows with their hashes, sorted by hash."""
    write_hashed(item.vocabulary, item.first, item.rows, folder / HASHED)


@dataclass(frozen=True)
class Sorting:
    """A range of hashes of a vocabulary, to be collected from files of rows sorted by hash."""

    hashed: Sequence[Path]
    low: int
    high: int


def sort_part(item: Sorting, folder: Path) -> None:
    """Write one part of a vocabulary in the form that is searched in files."""
    write_texts(item.hashed, item.low, item.high, folder)
