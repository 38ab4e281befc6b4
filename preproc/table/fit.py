"""Fitting to the training rows: vocabularies, means and standard deviations, boundaries of buckets, and lengths of lists."""

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
from preproc.shared.in_order import by_size, in_order
from preproc.shared.resume import Progress
from preproc.table.columns import Plan, check_weighted_mean, tables_of
from preproc.table.moments import Moments
from preproc.table.staging import Coded, StagedRows, feature_column
from utils.config.per_feature import MAX_HOTNESS
from utils.encoding.kinds import Evidence, decided, evidence_of, is_undecided, joined
from utils.encoding.numbers import bounded
from utils.encoding.recipe import LISTS, NUMBERS, STANDARDISE, TEXT, Recipe
from utils.encoding.values import ValueKindError, texts_of
from utils.naming import naming

_VALUES_AT_ONCE = 1 << 22  # numbers in memory
_LONG_LIST = 100
_VOCABULARY = {"value": pl.String, "id": pl.Int32, "count": pl.UInt32}
SMALL = 4_000_000  # features whose blocks hold at most this many texts may be in memory two at a time


def vocabulary_path(folder: Path, feature: str) -> Path:
    """Return the path of a feature's vocabulary in a dataset."""
    return folder / VOCABULARY / f"{feature}.parquet"


class Findings(Protocol):
    """The statistics of the training rows, as computed by an engine."""

    def longest(self, feature: str) -> int:
        """Return the length of a feature's longest list."""

    def kinds(self, feature: str, recipe: Recipe) -> tuple[Evidence, ...]:
        """Return the evidence of value kinds for each part of a feature made of texts."""

    def counts(self, feature: str) -> pl.DataFrame:
        """Return each `value` of a feature of numbers with its `count`."""

    def moments(self, recipes: Mapping[str, Recipe]) -> Mapping[str, Moments]:
        """Return the moments of features of numbers."""


@dataclass(frozen=True)
class RowFindings:
    """`Findings` of staged rows, computed on demand."""

    rows: StagedRows

    def longest(self, feature: str) -> int:
        """See `Findings`."""
        return max((codes.list.len().max() or 0 for codes, _ in self.rows.coded(feature)), default=0)

    def kinds(self, feature: str, recipe: Recipe) -> tuple[Evidence, ...]:
        """See `Findings`."""
        if any(part.rows is not None for part in self.rows.parts):
            return joined(evidence_of(recipe, texts) for texts in self._occurring(feature, recipe))
        found = joined(evidence_of(recipe, texts) for texts in self.rows.texts(feature))  # no row is filtered out, so every text of a block occurs
        if len(found) == 1 and found[0].plain and found[0].kind == TEXT:
            self.rows.staging.canonical.update((part.group, feature) for part in self.rows.parts)
        return found

    def _occurring(self, feature: str, recipe: Recipe) -> Iterator[pl.Series]:
        """Yield the texts that occur in these rows, block by block."""
        for codes, texts in self.rows.coded(feature):
            yield texts.gather((values_of(codes) if recipe.gives == LISTS else codes).unique())

    def counts(self, feature: str) -> pl.DataFrame:
        """See `Findings`."""
        return engine.counts(column_of(self.rows, feature))

    def moments(self, recipes: Mapping[str, Recipe]) -> Mapping[str, Moments]:
        """See `Findings`."""
        found = {name: Moments() for name in recipes}
        if recipes:
            for batch in engine.batches(self.rows.scan(*map(feature_column, recipes)), max(_VALUES_AT_ONCE // len(recipes), 256)):
                for name, recipe in recipes.items():
                    found[name].add(bounded(recipe, batch[feature_column(name)].fill_null(math.nan).to_numpy()))
        return found


def to_fit(plan: Plan) -> tuple[list[str], list[str], dict[str, Recipe]]:
    """Return the features to fit: those that need the longest list, those that need counts, and those that need moments."""
    lists = [name for name, recipe in plan.features.items() if recipe.gives == LISTS and recipe.max_hotness is None]
    counted = [name for name, recipe in plan.features.items() if recipe.buckets is not None and recipe.boundaries is None]
    return lists, counted, {name: recipe for name, recipe in plan.of(NUMBERS).items() if recipe.transform == STANDARDISE and recipe.mean is None}


def fitted(plan: Plan, found: Findings, warn: Callable[[str], None]) -> Plan:
    """Return the plan with the missing parameters of numbers and lists, and the missing value kinds, fitted to the training rows.

    Raises:
        DatasetError: a list is longer than a feature allows, weights of ids have no effect, numbers are too large for a standard deviation, or a
            column's values have no kind in common.
    """
    features = dict(plan.features)
    lists, counted, wanted = to_fit(plan)
    to_decide = {name: recipe for name, recipe in plan.features.items() if is_undecided(recipe)}
    kinds = dict(zip(to_decide, in_order(partial(found.kinds, name, recipe) for name, recipe in to_decide.items()), strict=True))
    for name, recipe in plan.features.items():
        if name in kinds:
            try:
                features[name] = recipe = decided(recipe, kinds[name])
            except ValueError as error:
                raise DatasetError(f"feature {name}: {error}") from None
        if name in lists:
            features[name] = replace(recipe, max_hotness=_longest(name, found.longest(name), warn))
            check_weighted_mean(name, features[name])
        elif name in counted:
            features[name] = replace(recipe, boundaries=boundaries(recipe, found.counts(name)))
    for name, moments in found.moments(wanted).items():
        mean, std = moments.mean_and_std(name)
        if moments.constant is not None:
            warn(f"feature {name}: every value in the training rows is {moments.constant:.15g}, so it is 0 there; --ignore leaves the column out")
        features[name] = replace(wanted[name], mean=mean, std=std)
    return replace(plan, features=features)


def column_of(rows: StagedRows, name: str) -> pl.LazyFrame:
    """Return a feature's staged column, renamed to `value`."""
    return rows.scan(pl.col(feature_column(name)).alias(engine.VALUE))


def boundaries(recipe: Recipe, counts: pl.DataFrame) -> tuple[float, ...]:
    """Return the smallest value of each bucket but the first.

    Buckets hold about equally many values. There are fewer buckets where values repeat.

    Args:
        recipe: the feature's recipe; `buckets`, `missing` and `clip` are used.
        counts: each `value` and its `count` in the training rows.
    """
    values = bounded(recipe, counts[engine.VALUE].cast(pl.Float64).fill_null(math.nan).to_numpy())
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    last = np.cumsum(counts["count"].to_numpy()[order].astype(np.int64))
    if not len(last):
        return ()
    places = np.arange(1, recipe.buckets) * int(last[-1]) // recipe.buckets
    found = np.unique(values[order][np.searchsorted(last, places, side="right")])
    return tuple(float(value) + 0.0 for value in found if value > values[order[0]])  # adding 0.0 turns -0.0, which is the same value, into 0.0


def _longest(name: str, found: int, warn: Callable[[str], None]) -> int:
    longest = max(1, found)
    if longest > MAX_HOTNESS:
        raise DatasetError(
            f"feature {name}: a list of {longest:,} values, expected at most {MAX_HOTNESS:,}; max_hotness (--max_hotness) cuts longer lists"
        )
    if longest > _LONG_LIST:
        warn(f"feature {name}: lists of up to {longest:,} values, so every row stores that many ids; max_hotness (--max_hotness) cuts longer lists")
    return longest


def write_vocabularies(
    plan: Plan, rows: StagedRows | None, old: Path | None, folder: Path, advance: Callable[[], object], progress: Progress
) -> dict[str, int]:
    """Write the vocabulary of every feature that has one, and return the number of rows of each feature's table.

    Args:
        plan: the fitted plan.
        rows: the training rows; None where the old vocabularies are kept unchanged.
        old: a dataset whose vocabularies are extended or kept; None for new vocabularies.
        folder: the dataset's folder.
        advance: called after each table.
        progress: the record of vocabularies that are written already.

    Raises:
        DatasetError: an old vocabulary cannot be read, or was not written by `preproc.table`.
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
    """Return the number of rows of each feature's table, given those of the features that have a vocabulary."""
    found = dict(vocabularies)
    for name, recipe in plan.features.items():
        if recipe.hash_buckets is not None:
            found[name] = recipe.hash_buckets + 1  # row 0 is for missing values
        elif recipe.buckets is not None:
            found[name] = len(recipe.boundaries) + 2
    return found


def coded(rows: StagedRows, feature: str, recipe: Recipe) -> Iterator[Coded]:
    """Yield a feature's codes and texts; the codes of lists are flattened, after cutting each list to its maximum length."""
    for codes, texts in with_texts(rows, feature, recipe):
        if recipe.gives == LISTS:
            codes = values_of(codes if recipe.max_hotness is None else codes.list.head(recipe.max_hotness))
        yield Coded(codes, texts)


def with_texts(rows: StagedRows, feature: str, recipe: Recipe) -> Iterator[Coded]:
    """Yield a feature's codes and the canonical text of each value. Raises DatasetError where that text is ambiguous."""
    for part in rows.parts:
        known, unchanged = (part.group, feature) in rows.staging.canonical, True
        for codes, texts in rows.staging.coded(part.group, part.rows, feature):
            try:
                found = texts if known else texts_of(recipe, texts)
            except ValueKindError as error:
                raise DatasetError(f"feature {feature}, column {', '.join(recipe.value_columns)}: {error}") from None
            unchanged = unchanged and found is texts
            yield Coded(codes, found)
        if unchanged:
            rows.staging.canonical.add((part.group, feature))


def values_of(lists: pl.Series) -> pl.Series:
    """Return the values of lists, flattened."""
    return lists.filter(lists.list.len() > 0).explode()


def read_vocabulary(folder: Path, feature: str) -> pl.DataFrame:
    """Return the columns `value` and `id` of a vocabulary that this run has written."""
    return pl.read_parquet(vocabulary_path(folder, feature), columns=["value", "id"], glob=False)


def known_vocabulary(dataset: Path, feature: str) -> pl.DataFrame:
    """Load a vocabulary of another dataset. Raises DatasetError where it cannot be read, or was not written by `preproc.table`."""
    path = vocabulary_path(dataset, feature)
    try:
        found = pl.read_parquet(path, glob=False).select(pl.col(name).cast(kind) for name, kind in _VOCABULARY.items())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as a vocabulary (value, id, count): {' '.join(str(error).split())[:200]}") from None
    if not (found["id"] == pl.int_range(1, found.height + 1, eager=True)).all() or found["value"].null_count():
        raise DatasetError(f"{path}: expected the ids 1, 2, … in order, each with a value")
    return found


def scan_known_vocabulary(dataset: Path, feature: str) -> pl.LazyFrame:
    """Return a vocabulary of another dataset as a lazy frame, checked now and read on demand. Raises DatasetError as `known_vocabulary` does."""
    known_vocabulary(dataset, feature)
    return pl.scan_parquet(vocabulary_path(dataset, feature), glob=False).select(pl.col(name).cast(kind) for name, kind in _VOCABULARY.items())
