"""Staged rows to the files of a dataset, a column at a time."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from dataloading.contract import DatasetError, SplitFiles
from dataloading.feature_spec import Categorical, FeatureSpec, FeatureSpecError, smallest_dtype
from preproc.engines import polars_engine as engine
from preproc.in_order import by_size
from preproc.resume import Progress
from preproc.table_columns import Plan
from preproc.table_fit import SMALL, column_of, read_vocabulary, values_of
from preproc.table_staging import GROUP, LABEL, StagedRows, feature_column, key_column
from utils.encoding.ids import hashed_ids, padded
from utils.encoding.numbers import bucketed, stored, transformed
from utils.encoding.recipe import LISTS, NUMBERS, Recipe
from utils.naming import naming

_VALUES_AT_ONCE = 1 << 22  # numericals in memory


def spec_of(plan: Plan, rows: dict[str, int], numerical_dtype: str) -> FeatureSpec:
    """The specification of the dataset of a fitted plan; `rows` of each feature's table."""
    categorical = []
    for name, recipe in plan.features.items():
        if recipe.gives != NUMBERS:
            hotness = recipe.max_hotness if recipe.gives == LISTS else 1
            pooling = recipe.pooling if hotness > 1 else "sum"
            dtype = smallest_dtype(rows[name])
            categorical.append(Categorical(name, rows[name], dtype, hotness, None, pooling, recipe.table, recipe.embedding_dim))
    numerical = tuple(plan.of(NUMBERS))
    taken = {*numerical, *(feature.name for feature in categorical)}
    label = _free("label", taken)
    group = None if plan.group is None else _free(plan.group, {*taken, label})
    dtypes = {feature.name: feature.dtype for feature in categorical} | dict.fromkeys(numerical, numerical_dtype) | {label: "bool"}
    return FeatureSpec(tuple(categorical), numerical, label, dtypes | ({} if group is None else {group: "int64"}), group=group)


def check_names(plan: Plan) -> None:
    """Raise DatasetError where a feature's name cannot be that of its file."""
    features = {name: replace(recipe, max_hotness=1) if recipe.gives == LISTS else recipe for name, recipe in plan.features.items()}
    try:
        spec_of(replace(plan, features=features), dict.fromkeys(features, 2), "float32").as_tf_raw(("train",))
    except FeatureSpecError as error:
        raise DatasetError(f"{error}: in --config the feature may have another name, with column: NAME") from None


def _free(name: str, taken: set[str]) -> str:
    """The name, or the first after it that no feature has."""
    return name if name not in taken else _free(f"{name}_", taken)


def write_split(
    rows: StagedRows, plan: Plan, spec: FeatureSpec, files: SplitFiles, folder: Path, advance: Callable[[], object], progress: Progress
) -> dict[str, int]:
    """Fill a split's files.

    Args:
        rows: of the split.
        plan: fitted.
        spec: of the dataset.
        files: of the split.
        folder: of the dataset, with its vocabularies.
        advance: called after each categorical feature.
        progress: knows which are filled already.

    Returns:
        how many lists were cut, of each feature that had such.

    Raises:
        DatasetError: a number is beyond the dataset's dtype.
    """

    def once(path: Path, work: Callable[[], int | None]) -> int | None:
        return progress.once(f"column {path.relative_to(folder)}", [path], work)

    if files.label is not None:
        once(files.label, lambda: _write(files.label, (batch[LABEL].to_numpy() for batch in engine.batches(rows.scan(LABEL))), "bool"))
    if files.group is not None:
        once(files.group, lambda: _write(files.group, (batch[GROUP].to_numpy() for batch in engine.batches(rows.scan(GROUP))), "int64"))
    if files.numerical is not None:
        once(files.numerical, lambda: _write(files.numerical, _numericals(rows, plan, spec, files.numerical), spec.numerical_dtype))

    def write(feature: Categorical, path: Path) -> int:
        recipe = plan.features[feature.name]
        if recipe.buckets is not None:
            batches = engine.batches(column_of(rows, feature.name))
            _write(path, (bucketed(recipe, batch[engine.VALUE].fill_null(float("nan")).to_numpy()) for batch in batches), feature.dtype)
            return 0
        longer: list[int] = []
        blocks = _ids(rows, recipe, feature.name, folder)
        if recipe.gives == LISTS:
            _write(path, _lists(blocks, recipe, feature, longer), feature.dtype)
        else:
            _write(path, (ids.astype(feature.dtype)[codes] for codes, ids in blocks), feature.dtype)
        return sum(longer)

    def write_once(feature: Categorical, path: Path) -> int:
        longer = once(path, partial(write, feature, path))
        advance()
        return longer

    tasks = [(feature.cardinality, partial(write_once, feature, path)) for feature, path in zip(spec.categorical, files.categorical, strict=True)]
    cut = zip(spec.categorical, by_size(tasks, SMALL), strict=True)
    return {feature.name: longer for feature, longer in cut if longer}


def write_keys(rows: StagedRows, names: tuple[str, ...], path: Path) -> None:
    """Write the columns that predictions carry, in row order."""
    with naming(path):
        rows.scan(*(pl.col(key_column(name)).alias(name) for name in names)).sink_parquet(path, maintain_order=True)


def _write(path: Path, blocks: Iterator[np.ndarray], dtype: str) -> None:
    file = path.open("wb")
    try:
        for block in blocks:
            with naming(path):
                file.write(np.ascontiguousarray(block, dtype).data)
        with naming(path):
            file.close()
    finally:
        with contextlib.suppress(OSError):  # a full disk, which the error on its way says already
            file.close()


def _numericals(rows: StagedRows, plan: Plan, spec: FeatureSpec, path: Path) -> Iterator[np.ndarray]:
    names = spec.numerical
    row = 0
    for batch in engine.batches(rows.scan(*map(feature_column, names)), max(_VALUES_AT_ONCE // len(names), 256)):
        numbers = np.empty((batch.height, len(names)), spec.numerical_dtype)
        for place, name in enumerate(names):
            values = batch[feature_column(name)].fill_null(float("nan")).to_numpy()
            numbers[:, place], beyond = stored(transformed(plan.features[name], values), spec.numerical_dtype)
            if beyond is not None:
                raise DatasetError(
                    f"{path.parent.name} split, row {row + beyond}, feature {name}: {values[beyond]} is beyond what {spec.numerical_dtype} holds; "
                    f"clip it, use another transform{', or --numerical_dtype float32' if spec.numerical_dtype == 'float16' else ''}"
                )
        row += batch.height
        yield numbers


def _ids(rows: StagedRows, recipe: Recipe, name: str, folder: Path) -> Iterator[tuple[pl.Series, np.ndarray]]:
    """The codes of each block, and the ids int32 of their texts: by a hash, or by the vocabulary that was written."""
    if recipe.hash_buckets is not None:
        return ((codes, hashed_ids(texts, recipe.hash_buckets)) for codes, texts in rows.coded(name))
    return engine.text_ids(rows.coded(name), read_vocabulary(folder, name))


def _lists(blocks: Iterator[tuple[pl.Series, np.ndarray]], recipe: Recipe, feature: Categorical, longer: list[int]) -> Iterator[np.ndarray]:
    """`[n, h]`, or `[n]` where the hotness is 1; how many lists of each block were cut is added to `longer`."""
    for codes, ids in blocks:
        longer.append(int((codes.list.len() > recipe.max_hotness).sum()))
        kept = codes.list.head(recipe.max_hotness)
        yield padded(ids[values_of(kept)], kept.list.len().to_numpy().astype(np.int64), feature.hotness)
