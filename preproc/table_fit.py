"""What is learned from the training rows: vocabularies, means and standard deviations, the boundaries of buckets, the lengths of lists."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from dataloading.contract import VOCABULARY, DatasetError
from preproc.engines import polars_engine as engine
from preproc.table_columns import Plan, tables_of
from utils.encoding.numbers import bounded
from utils.encoding.recipe import LISTS, NUMBERS, STANDARDISE, Recipe
from utils.naming import naming
from utils.options import MAX_HOTNESS

Column = Callable[[str], pl.LazyFrame]  # a feature's staged column, called `value`, of the training rows
_DIGITS = 12  # of means and deviations: what rows in blocks of other sizes agree on
_LONG_LIST = 100


def vocabulary_path(folder: Path, feature: str) -> Path:
    """Where a feature's vocabulary stands in a dataset."""
    return folder / VOCABULARY / f"{feature}.parquet"


def fitted(plan: Plan, column: Column, warn: Callable[[str], None]) -> Plan:
    """The plan with what the training rows say of numbers and lists, where it is not known yet.

    Raises:
        DatasetError: a list is longer than a feature can be.
    """
    features = dict(plan.features)
    for name, recipe in plan.features.items():
        if recipe.gives == LISTS and recipe.max_hotness is None:
            features[name] = replace(recipe, max_hotness=_longest(name, column(name), warn))
        elif recipe.buckets is not None and recipe.boundaries is None:
            features[name] = replace(recipe, boundaries=boundaries(recipe, engine.counts([column(name)])))
        elif recipe.gives == NUMBERS and recipe.transform == STANDARDISE and recipe.mean is None:
            mean, std = moments(bounded(recipe, values) for values in _numbers(column(name)))
            features[name] = replace(recipe, mean=mean, std=std)
    return replace(plan, features=features)


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
    return tuple(float(value) for value in found if value > values[order[0]])


def moments(blocks: Iterator[np.ndarray]) -> tuple[float, float]:
    """Mean and standard deviation of values, NaN left out, of a population; 0 and 1 where there are none, and 1 where all are the same."""
    count, mean, squares = 0, 0.0, 0.0
    for block in blocks:
        values = block[~np.isnan(block)]
        if len(values):  # blocks are joined as Chan, Golub and LeVeque do: nothing is lost where the mean is large
            difference, total = values.mean() - mean, count + len(values)
            squares += ((values - values.mean()) ** 2).sum() + difference**2 * count * len(values) / total
            mean, count = mean + difference * len(values) / total, total
    std = math.sqrt(squares / count) if count else 0.0
    if not (math.isfinite(mean) and math.isfinite(std)):
        raise DatasetError("the mean and standard deviation of its values are beyond what 64 bits hold; clip it, or use another transform")
    mean, std = (float(f"{value:.{_DIGITS}g}") for value in (mean, std))
    return mean, std if std > 1e-9 * abs(mean) else 1.0


def _numbers(column: pl.LazyFrame) -> Iterator[np.ndarray]:
    for batch in engine.batches(column):
        yield batch[engine.VALUE].fill_null(math.nan).to_numpy()


def _longest(name: str, column: pl.LazyFrame, warn: Callable[[str], None]) -> int:
    longest = max(column.select(pl.col(engine.VALUE).list.len().max()).collect(engine="streaming").item() or 0, 1)
    if longest > MAX_HOTNESS:
        raise DatasetError(
            f"feature {name}: a list of {longest:,} values, expected at most {MAX_HOTNESS:,}; max_hotness (--max_hotness) cuts longer ones"
        )
    if longest > _LONG_LIST:
        warn(f"feature {name}: lists of up to {longest:,} values, each row takes that many ids; max_hotness (--max_hotness) cuts longer ones")
    return longest


def write_vocabularies(plan: Plan, column: Column | None, old: Path | None, folder: Path, advance: Callable[[], object]) -> dict[str, int]:
    """Write the vocabulary of every feature that has one; returns the rows of each feature's table.

    Args:
        plan: fitted.
        column: of the training rows; None where the old vocabularies stay as they are.
        old: a dataset whose vocabularies are extended, or taken as they are; None for new ones.
        folder: of the dataset.
        advance: called after each table.

    Raises:
        DatasetError: an old vocabulary cannot be read, or is not what `preproc.table` writes.
    """
    rows = {}
    (folder / VOCABULARY).mkdir(exist_ok=True)
    for features in tables_of(plan).values():
        recipe = plan.features[features[0]]
        known = None if old is None else _read(vocabulary_path(old, features[0]))
        if column is None:
            vocabulary = known
        else:
            columns = [_texts(column(name), plan.features[name]) for name in features]
            if known is None:
                vocabulary = engine.dictionary(columns, recipe.frequency_threshold, recipe.max_ids)
            else:
                vocabulary = engine.extended(known, columns, recipe.frequency_threshold, recipe.max_ids)
        for name in features:
            path = vocabulary_path(folder, name)
            with naming(path):
                vocabulary.write_parquet(path)
            rows[name] = vocabulary.height + 1
        advance()
    for name, recipe in plan.features.items():
        if recipe.hash_buckets is not None:
            rows[name] = recipe.hash_buckets + 1
        elif recipe.buckets is not None:
            rows[name] = len(recipe.boundaries) + 2
    return rows


def _texts(column: pl.LazyFrame, recipe: Recipe) -> pl.LazyFrame:
    """What a vocabulary is made of: of lists, the values that count."""
    return engine.words(column.select(pl.col(engine.VALUE).list.head(recipe.max_hotness))) if recipe.gives == LISTS else column


def read_vocabulary(folder: Path, feature: str) -> pl.DataFrame:
    """`value` and `id` of a vocabulary that was written."""
    return pl.read_parquet(vocabulary_path(folder, feature), columns=["value", "id"], glob=False)


def _read(path: Path) -> pl.DataFrame:
    try:
        kinds = {"value": pl.String, "id": pl.Int32, "count": pl.UInt32}
        found = pl.read_parquet(path, glob=False).select(pl.col(name).cast(kind) for name, kind in kinds.items())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as a vocabulary (value, id, count): {' '.join(str(error).split())[:200]}") from None
    if not (found["id"] == pl.int_range(1, found.height + 1, eager=True)).all() or found["value"].null_count():
        raise DatasetError(f"{path}: expected the ids 1, 2, … in order, each with a value")
    return found
