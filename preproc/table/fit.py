"""What is learned from the training rows: vocabularies, means and standard deviations, the boundaries of buckets, the lengths of lists."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl

from dataloading.features import VOCABULARY, DatasetError
from preproc.shared import polars_engine as engine
from preproc.shared.in_order import by_size
from preproc.shared.resume import Progress
from preproc.table.columns import Plan, tables_of
from preproc.table.staging import Coded, StagedRows, feature_column
from utils.config.per_feature import MAX_HOTNESS
from utils.encoding.kinds import Evidence, decided, evidence_of, is_undecided, joined
from utils.encoding.numbers import bounded
from utils.encoding.recipe import LISTS, NUMBERS, STANDARDISE, Recipe
from utils.encoding.values import ValueKindError, texts_of
from utils.naming import naming

_VALUES_AT_ONCE = 1 << 22  # numbers in memory
_DIGITS = 12  # of means and deviations: what rows in blocks of other sizes agree on
_LONG_LIST = 100
_VOCABULARY = {"value": pl.String, "id": pl.Int32, "count": pl.UInt32}
SMALL = 4_000_000  # texts of a feature's blocks, up to which two features may be in memory


def vocabulary_path(folder: Path, feature: str) -> Path:
    """Where a feature's vocabulary stands in a dataset."""
    return folder / VOCABULARY / f"{feature}.parquet"


class Findings(Protocol):
    """What an engine found in the training rows."""

    def longest(self, feature: str) -> int:
        """The values of a feature's longest list."""

    def kinds(self, feature: str, recipe: Recipe) -> tuple[Evidence, ...]:
        """What the values of a feature made of texts are, of each of its parts."""

    def counts(self, feature: str) -> pl.DataFrame:
        """Each `value` of a feature of numbers, and its `count`."""

    def moments(self, recipes: Mapping[str, Recipe]) -> "Mapping[str, Moments]":
        """Of features of numbers."""


@dataclass(frozen=True)
class RowFindings:
    """`Findings` of staged rows, looked up when they are asked for."""

    rows: StagedRows

    def longest(self, feature: str) -> int:
        """See `Findings`."""
        return max((codes.list.len().max() or 0 for codes, _ in self.rows.coded(feature)), default=0)

    def kinds(self, feature: str, recipe: Recipe) -> tuple[Evidence, ...]:
        """See `Findings`."""
        return joined(evidence_of(recipe, texts) for texts in self._texts(feature, recipe))

    def _texts(self, feature: str, recipe: Recipe) -> Iterator[pl.Series]:
        """Those that stand in these rows, block by block."""
        whole = all(part.rows is None for part in self.rows.parts)  # then all texts of a block do
        for codes, texts in self.rows.coded(feature):
            yield texts if whole else texts.gather((values_of(codes) if recipe.gives == LISTS else codes).unique())

    def counts(self, feature: str) -> pl.DataFrame:
        """See `Findings`."""
        return engine.counts(column_of(self.rows, feature))

    def moments(self, recipes: Mapping[str, Recipe]) -> "Mapping[str, Moments]":
        """See `Findings`."""
        found = {name: Moments() for name in recipes}
        if recipes:
            for batch in engine.batches(self.rows.scan(*map(feature_column, recipes)), max(_VALUES_AT_ONCE // len(recipes), 256)):
                for name, recipe in recipes.items():
                    found[name].add(bounded(recipe, batch[feature_column(name)].fill_null(math.nan).to_numpy()))
        return found


def unknown(plan: Plan) -> tuple[list[str], list[str], dict[str, Recipe]]:
    """What is to be learned: of which features the longest list, of which the counts, and of which the moments."""
    lists = [name for name, recipe in plan.features.items() if recipe.gives == LISTS and recipe.max_hotness is None]
    counted = [name for name, recipe in plan.features.items() if recipe.buckets is not None and recipe.boundaries is None]
    return lists, counted, {name: recipe for name, recipe in plan.of(NUMBERS).items() if recipe.transform == STANDARDISE and recipe.mean is None}


def fitted(plan: Plan, found: Findings, warn: Callable[[str], None]) -> Plan:
    """The plan with what the training rows say of numbers and lists, and of what kind values are, where it is not known yet.

    Raises:
        DatasetError: a list is longer than a feature can be, numbers are too large to have a mean, or the values of a column have no kind in common.
    """
    features = dict(plan.features)
    lists, counted, wanted = unknown(plan)
    for name, recipe in plan.features.items():
        if is_undecided(recipe):
            try:
                features[name] = recipe = decided(recipe, found.kinds(name, recipe))
            except ValueError as error:
                raise DatasetError(f"feature {name}: {error}") from None
        if name in lists:
            features[name] = replace(recipe, max_hotness=_longest(name, found.longest(name), warn))
        elif name in counted:
            features[name] = replace(recipe, boundaries=boundaries(recipe, found.counts(name)))
    for name, moments in found.moments(wanted).items():
        mean, std = moments.mean_and_std(name)
        features[name] = replace(wanted[name], mean=mean, std=std)
    return replace(plan, features=features)


def column_of(rows: StagedRows, name: str) -> pl.LazyFrame:
    """A feature's staged column, called `value`."""
    return rows.scan(pl.col(feature_column(name)).alias(engine.VALUE))


def boundaries(recipe: Recipe, counts: pl.DataFrame) -> tuple[float, ...]:
    """The least value of each bucket but the first, so that about as many values lie in each; fewer buckets where values repeat.

    Args:
        recipe: of the feature: `buckets`, `missing` and `clip`.
        counts: `value` and how often it stands in the training rows.
    """
    values = bounded(recipe, counts[engine.VALUE].cast(pl.Float64).fill_null(math.nan).to_numpy())
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    last = np.cumsum(counts["count"].to_numpy()[order].astype(np.int64))
    if not len(last):
        return ()
    places = np.arange(1, recipe.buckets) * int(last[-1]) // recipe.buckets
    found = np.unique(values[order][np.searchsorted(last, places, side="right")])
    return tuple(float(value) + 0.0 for value in found if value > values[order[0]])  # not -0.0, which is the same value


class Moments:
    """Count, mean and squared deviations of values that come in blocks; NaN is left out."""

    def __init__(self):
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, block: np.ndarray) -> None:
        """Add values `[n]` float64. Blocks are joined as Chan, Golub and LeVeque do: nothing is lost where the mean is large."""
        values = block[~np.isnan(block)]
        if not len(values):
            return
        with np.errstate(over="ignore", invalid="ignore"):  # found as infinite in the end
            mean = values.mean()
            self._join(len(values), mean, ((values - mean) ** 2).sum())

    def join(self, other: "Moments") -> None:
        """Add the values of another."""
        if other._count:
            with np.errstate(over="ignore", invalid="ignore"):
                self._join(other._count, other._mean, other._squares)

    def _join(self, count: int, mean: float, squares: float) -> None:
        difference, total = mean - self._mean, self._count + count
        self._squares += squares + difference**2 * self._count * count / total
        self._mean += difference * count / total
        self._count = total

    def mean_and_std(self, name: str) -> tuple[float, float]:
        """Of a population, to 12 digits; 0 and 1 where there are no values, and deviation 1 where all are the same. Raises DatasetError."""
        std = math.sqrt(self._squares / self._count) if self._count and self._squares >= 0 else self._squares
        if not (math.isfinite(self._mean) and math.isfinite(std)):
            raise DatasetError(f"feature {name}: its values are too large for a standard deviation in 64 bits; clip it, or use another transform")
        mean, std = (float(f"{value:.{_DIGITS}g}") for value in (self._mean, std))
        return mean, std if std > 1e-9 * abs(mean) else 1.0


def _longest(name: str, found: int, warn: Callable[[str], None]) -> int:
    longest = max(1, found)
    if longest > MAX_HOTNESS:
        raise DatasetError(
            f"feature {name}: a list of {longest:,} values, expected at most {MAX_HOTNESS:,}; max_hotness (--max_hotness) cuts longer ones"
        )
    if longest > _LONG_LIST:
        warn(f"feature {name}: lists of up to {longest:,} values, each row takes that many ids; max_hotness (--max_hotness) cuts longer ones")
    return longest


def write_vocabularies(
    plan: Plan, rows: StagedRows | None, old: Path | None, folder: Path, advance: Callable[[], object], progress: Progress
) -> dict[str, int]:
    """Write the vocabulary of every feature that has one; returns the rows of each feature's table.

    Args:
        plan: fitted.
        rows: of training; None where the old vocabularies stay as they are.
        old: a dataset whose vocabularies are extended, or taken as they are; None for new ones.
        folder: of the dataset.
        advance: called after each table.
        progress: knows which are written already.

    Raises:
        DatasetError: an old vocabulary cannot be read, or is not what `preproc.table` writes.
    """
    (folder / VOCABULARY).mkdir(exist_ok=True)

    def write(features: list[str]) -> int:
        recipe = plan.features[features[0]]
        vocabulary = None if old is None else known_vocabulary(old, features[0])
        if rows is not None:
            found = engine.text_counts(block for name in features for block in coded(rows, name, plan.features[name]))
            if vocabulary is None:
                vocabulary = engine.dictionary(found, recipe.frequency_threshold, recipe.max_ids)
            else:
                vocabulary = engine.extended(vocabulary, found, recipe.frequency_threshold, recipe.max_ids)
        for name in features:
            path = vocabulary_path(folder, name)
            with naming(path):
                vocabulary.write_parquet(path)
        return vocabulary.height + 1

    def once(features: list[str]) -> int:
        paths = [vocabulary_path(folder, name) for name in features]
        height = progress.once(f"vocabulary {features[0]}", paths, partial(write, features))
        advance()
        return height

    tables = list(tables_of(plan).values())
    sizes = [0 if rows is None else sum(map(rows.staging.num_texts, features)) for features in tables]
    heights = by_size([(size, partial(once, features)) for size, features in zip(sizes, tables, strict=True)], SMALL)
    return table_rows(plan, {name: height for height, features in zip(heights, tables, strict=True) for name in features})


def table_rows(plan: Plan, vocabularies: Mapping[str, int]) -> dict[str, int]:
    """The rows of each feature's table, by those of the features that have a vocabulary."""
    found = dict(vocabularies)
    for name, recipe in plan.features.items():
        if recipe.hash_buckets is not None:
            found[name] = recipe.hash_buckets + 1
        elif recipe.buckets is not None:
            found[name] = len(recipe.boundaries) + 2
    return found


def coded(rows: StagedRows, feature: str, recipe: Recipe) -> Iterator[Coded]:
    """A feature's codes and texts; of lists, those of the values that count, one after another."""
    for codes, texts in with_texts(rows, feature, recipe):
        if recipe.gives == LISTS:
            codes = values_of(codes if recipe.max_hotness is None else codes.list.head(recipe.max_hotness))
        yield Coded(codes, texts)


def with_texts(rows: StagedRows, feature: str, recipe: Recipe) -> Iterator[Coded]:
    """A feature's codes, and the one text of each value. Raises DatasetError where it cannot be told for certain."""
    for codes, texts in rows.coded(feature):
        try:
            yield Coded(codes, texts_of(recipe, texts))
        except ValueKindError as error:
            raise DatasetError(f"feature {feature}, column {', '.join(recipe.inputs)}: {error}") from None


def values_of(lists: pl.Series) -> pl.Series:
    """The values of lists, one after another."""
    return lists.filter(lists.list.len() > 0).explode()


def read_vocabulary(folder: Path, feature: str) -> pl.DataFrame:
    """`value` and `id` of a vocabulary that was written."""
    return pl.read_parquet(vocabulary_path(folder, feature), columns=["value", "id"], glob=False)


def known_vocabulary(dataset: Path, feature: str) -> pl.DataFrame:
    """A vocabulary of another dataset. Raises DatasetError where it cannot be read, or is not what `preproc.table` writes."""
    path = vocabulary_path(dataset, feature)
    try:
        found = pl.read_parquet(path, glob=False).select(pl.col(name).cast(kind) for name, kind in _VOCABULARY.items())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as a vocabulary (value, id, count): {' '.join(str(error).split())[:200]}") from None
    if not (found["id"] == pl.int_range(1, found.height + 1, eager=True)).all() or found["value"].null_count():
        raise DatasetError(f"{path}: expected the ids 1, 2, … in order, each with a value")
    return found


def scan_known_vocabulary(dataset: Path, feature: str) -> pl.LazyFrame:
    """The same, checked now and read when it is needed."""
    known_vocabulary(dataset, feature)
    return pl.scan_parquet(vocabulary_path(dataset, feature), glob=False).select(pl.col(name).cast(kind) for name, kind in _VOCABULARY.items())
