"""Writing of staged rows to the files of a dataset, a column at a time."""

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import polars as pl

from dataloading.contract import SplitFiles
from dataloading.feature_spec import Categorical, FeatureSpec, FeatureSpecError, smallest_dtype
from dataloading.features import WEIGHT_DTYPE, DatasetError
from preproc.shared import polars_engine as engine
from preproc.shared.in_order import by_size
from preproc.shared.resume import Progress
from preproc.shared.vocabulary_file import write_vocabulary
from preproc.table.columns import Plan
from preproc.table.fit import SMALL, column_of, read_vocabulary, values_of, with_texts
from preproc.table.negatives import KeptRows
from preproc.table.staging import GROUP, LABEL, WEIGHT, Coded, StagedRows, feature_column, key_column, weights_column
from utils.encoding.id_weights import padded_weights
from utils.encoding.ids import hashed_ids, padded
from utils.encoding.numbers import bucketed, stored, transformed
from utils.encoding.recipe import LISTS, NUMBERS, Recipe
from utils.naming import naming

_VALUES_AT_ONCE = 1 << 22  # numericals in memory


def spec_of(plan: Plan, rows: dict[str, int], numerical_dtype: str) -> FeatureSpec:
    """Return the feature specification of a fitted plan; `rows` are the numbers of rows of the features' tables."""
    categorical = []
    for name, recipe in plan.features.items():
        if recipe.gives != NUMBERS:
            hotness = recipe.max_hotness if recipe.gives == LISTS else 1
            weights = recipe.weights is not None
            pooling = recipe.pooling if hotness > 1 else "sum"
            dtype = smallest_dtype(rows[name])
            categorical.append(Categorical(name, rows[name], dtype, hotness, None, pooling, recipe.table, recipe.embedding_dim, weights))
    numerical = tuple(plan.of(NUMBERS))
    taken = {*numerical, *(feature.name for feature in categorical)}
    label = _free("label", taken)
    group = None if plan.group is None else _free(plan.group, {*taken, label})
    dtypes = {feature.name: feature.dtype for feature in categorical} | dict.fromkeys(numerical, numerical_dtype) | {label: "bool"}
    weight = None if plan.weight is None else _free(plan.weight, {*taken, label, group})
    dtypes |= ({} if group is None else {group: "int64"}) | ({} if weight is None else {weight: WEIGHT_DTYPE})
    return FeatureSpec(tuple(categorical), numerical, label, dtypes, group=group, weight=weight)


def check_names(plan: Plan) -> None:
    """Raise DatasetError where a feature's name cannot be a file name."""
    features = {name: replace(recipe, max_hotness=1) if recipe.gives == LISTS else recipe for name, recipe in plan.features.items()}
    try:
        spec_of(replace(plan, features=features), dict.fromkeys(features, 2), "float32").as_tf_raw(("train",))
    except FeatureSpecError as error:
        raise DatasetError(f"{error}: give the feature another name in --config, with column: NAME") from None


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with underscores appended until no feature has it."""
    return name if name not in taken else _free(f"{name}_", taken)


def write_split(
    rows: StagedRows,
    plan: Plan,
    spec: FeatureSpec,
    files: SplitFiles,
    vocabularies: Path,
    advance: Callable[[], object],
    progress: Progress,
    kept: KeptRows | None,
) -> dict[str, "Filled"]:
    """Fill a split's files.

    Args:
        rows: the rows of the split.
        plan: the fitted plan.
        spec: the dataset's specification.
        files: the split's files.
        vocabularies: the folder that holds the vocabularies.
        advance: called after each categorical feature.
        progress: the record of files that are filled already.
        kept: the rows that are written; None for all.

    Returns:
        the counts, over all rows, of each categorical feature.

    Raises:
        DatasetError: a number is out of range of the dataset's dtype.
    """

    def once(path: Path, work: Callable[[], Sequence[int] | None]) -> Sequence[int] | None:
        return progress.once(f"column {path.parent.name}/{path.name}", [path], work)

    for path, write in ((files.label, write_labels), (files.group, write_groups), (files.weight, write_weights)):
        if path is not None:
            once(path, partial(write, rows, path, kept))
    if files.numerical is not None:
        split = files.numerical.parent.name
        work = partial(write_numericals, rows, plan, spec.numerical, spec.numerical_dtype, files.numerical, split, kept=kept)
        once(files.numerical, work)

    def write_once(feature: Categorical, path: Path) -> Filled:
        recipe = plan.features[feature.name]
        found = Filled(*once(path, lambda: write_ids(rows, recipe, feature, path, Ids(recipe, feature.name, vocabularies), kept)))
        if feature.weights:
            weights = files.id_weights[feature.name]
            found = found.plus(once(weights, lambda: write_id_weights(rows, feature, weights, kept)))
        advance()
        return found

    tasks = [(feature.cardinality, partial(write_once, feature, path)) for feature, path in zip(spec.categorical, files.categorical, strict=True)]
    return {feature.name: found for feature, found in zip(spec.categorical, by_size(tasks, SMALL), strict=True)}


def write_keys(rows: StagedRows, names: tuple[str, ...], num_rows: int, path: Path, kept: KeptRows | None = None) -> None:
    """Write the columns that predictions carry, in row order, of all `num_rows` rows or of the kept ones."""
    keys = rows.scan(*(pl.col(key_column(name)).alias(name) for name in names))
    batches = engine.batches(keys)
    batches, num_rows = (batches, num_rows) if kept is None else (kept.of(batches), kept.rows)
    write_vocabulary(path, batches, num_rows, keys.collect_schema())


def write_labels(rows: StagedRows, path: Path, kept: KeptRows | None = None) -> None:
    """Write the labels, one byte each."""
    _write(path, (batch[LABEL].to_numpy() for batch in engine.batches(rows.scan(LABEL))), "bool", kept)


def write_groups(rows: StagedRows, path: Path, kept: KeptRows | None = None) -> None:
    """Write the groups, 64 bits each."""
    _write(path, (batch[GROUP].to_numpy() for batch in engine.batches(rows.scan(GROUP))), "int64", kept)


def write_weights(rows: StagedRows, path: Path, kept: KeptRows | None = None) -> None:
    """Write the weights, float32."""
    _write(path, (batch[WEIGHT].to_numpy() for batch in engine.batches(rows.scan(WEIGHT))), WEIGHT_DTYPE, kept)


def write_numericals(
    rows: StagedRows, plan: Plan, names: Sequence[str], dtype: str, path: Path, split: str, first: int = 0, kept: KeptRows | None = None
) -> None:
    """Write the numerical features, `[n, M]`.

    Args:
        rows: the rows of a split, or of a part of it.
        plan: the fitted plan.
        names: the names of the features.
        dtype: float16 or float32.
        path: the file to write.
        split: the split's name, for error messages.
        first: the number of the split's rows before these, for error messages.
        kept: the rows that are written; None for all.

    Raises:
        DatasetError: a number is out of range of the dtype.
    """
    _write(path, _numericals(rows, plan, names, dtype, split, first), dtype, kept)


def write_ids(rows: StagedRows, recipe: Recipe, feature: Categorical, path: Path, ids: "TextIds", kept: KeptRows | None = None) -> "Filled":
    """Write the ids of a feature, `[n]` or `[n, h]`, of all rows or of the kept ones; return the counts over all rows."""
    found: list[Filled] = []
    if recipe.buckets is not None:
        batches = engine.batches(column_of(rows, feature.name))
        _write(path, (bucketed(recipe, batch[engine.VALUE].fill_null(float("nan")).to_numpy()) for batch in batches), feature.dtype, kept)
    else:
        _write(path, _of_texts(with_texts(rows, feature.name, recipe), ids, recipe, feature, found), feature.dtype, kept)
    return functools.reduce(Filled.plus, found, Filled())


def write_id_weights(rows: StagedRows, feature: Categorical, path: Path, kept: KeptRows | None = None) -> "Filled":
    """Write the weights of a feature's ids, `[n, h]` float32, of all rows or of the kept ones; return the counts over all rows."""
    found: list[Filled] = []
    _write(path, _weights(rows, feature, found), WEIGHT_DTYPE, kept)
    return functools.reduce(Filled.plus, found, Filled())


def _write(path: Path, blocks: Iterator[np.ndarray], dtype: str, kept: KeptRows | None) -> None:
    file = path.open("wb")
    try:
        for block in blocks if kept is None else kept.of(blocks):
            with naming(path):
                file.write(np.ascontiguousarray(block, dtype).data)
        with naming(path):
            file.close()
    finally:
        with contextlib.suppress(OSError):  # closing fails again on a full disk; the original error is the one to raise
            file.close()


def _numericals(rows: StagedRows, plan: Plan, names: Sequence[str], dtype: str, split: str, row: int) -> Iterator[np.ndarray]:
    for batch in engine.batches(rows.scan(*map(feature_column, names)), max(_VALUES_AT_ONCE // len(names), 256)):
        numbers = np.empty((batch.height, len(names)), dtype)
        for place, name in enumerate(names):
            values = batch[feature_column(name)].fill_null(float("nan")).to_numpy()
            numbers[:, place], beyond = stored(transformed(plan.features[name], values), dtype)
            if beyond is not None:
                raise DatasetError(
                    f"{split} split, row {row + beyond}, feature {name}: {values[beyond]} is out of range for {dtype}; "
                    f"clip it, use another transform{', or --numerical_dtype float32' if dtype == 'float16' else ''}"
                )
        row += batch.height
        yield numbers


def _weights(rows: StagedRows, feature: Categorical, filled: list["Filled"]) -> Iterator[np.ndarray]:
    """Yield the weights of a feature's ids, `[n, h]` float32; append the counts of each batch to `filled`."""
    name = weights_column(feature.name)
    for batch in engine.batches(rows.scan(name), max(_VALUES_AT_ONCE // feature.hotness, 256)):
        weights = padded_weights(batch[name], feature.hotness)
        held = weights.astype(np.float32)
        given = int(batch[name].list.len().clip(upper_bound=feature.hotness).sum())
        filled.append(Filled(weights=given, effective=int(np.count_nonzero(held)), vanished=int(np.count_nonzero((held == 0) & (weights != 0)))))
        yield held


class Filled(NamedTuple):
    """The counts of writing a feature's ids: lists that were cut, values of a feature with a vocabulary, and its unknown values.

    Of a feature whose ids have weights also the number of `weights`, of those that are not 0 (`effective`), and of those that float32 rounds to 0
    (`vanished`).
    """

    cut: int = 0
    values: int = 0
    unknown: int = 0
    weights: int = 0
    effective: int = 0
    vanished: int = 0

    def plus(self, other: Sequence[int]) -> "Filled":
        """Return the sums of these counts and others."""
        return Filled(*(a + b for a, b in zip(self, other, strict=True)))


class TextIds(Protocol):
    """The assignment of ids to texts: `Ids`, or another class with the same results."""

    def of(self, blocks: Iterable[Coded]) -> Iterator[tuple[pl.Series, np.ndarray]]:
        """Yield the codes of each block and the ids int32 of its texts."""


class Ids:
    """The ids of a feature's texts, by a hash or by the vocabulary in a folder. The vocabulary is read when it is first needed."""

    def __init__(self, recipe: Recipe, feature: str, folder: Path):
        self._recipe, self._feature, self._folder = recipe, feature, folder

    @functools.cached_property
    def _vocabulary(self) -> pl.DataFrame:
        return read_vocabulary(self._folder, self._feature)

    def of(self, blocks: Iterable[Coded]) -> Iterator[tuple[pl.Series, np.ndarray]]:
        """Yield the codes of each block and the ids int32 of its texts."""
        if self._recipe.hash_buckets is not None:
            return ((codes, hashed_ids(texts, self._recipe.hash_buckets)) for codes, texts in blocks)
        return engine.text_ids(blocks, self._vocabulary)


def _of_texts(blocks: Iterable[Coded], ids: TextIds, recipe: Recipe, feature: Categorical, filled: list[Filled]) -> Iterator[np.ndarray]:
    """Yield the ids of each block, `[n, h]`, or `[n]` where there is one id a sample; append the counts of each block to `filled`."""
    missing: deque[np.ndarray] = deque()  # masks of missing texts; a queue, because `ids` may read blocks ahead of its results

    def passed() -> Iterator[Coded]:
        for block in blocks:
            missing.append(block.texts.is_null().to_numpy())
            yield block

    for codes, found in ids.of(passed()):
        cut, kept = 0, None
        if recipe.gives == LISTS:
            cut, kept = int((codes.list.len() > recipe.max_hotness).sum()), codes.list.head(recipe.max_hotness)
        places = (codes if kept is None else values_of(kept)).to_numpy().astype(np.intp)
        of_rows, lacking = found[places], missing.popleft()
        if kept is None:
            yield of_rows
        else:
            yield padded(of_rows, kept.list.len().to_numpy().astype(np.int64), feature.hotness, feature.weights)
        counts = 0, 0
        if recipe.has_vocabulary:  # the id of a missing or unknown text is 0
            given = len(places) - np.count_nonzero(lacking[places])
            counts = given, given - np.count_nonzero(of_rows)
        filled.append(Filled(cut, *counts))
