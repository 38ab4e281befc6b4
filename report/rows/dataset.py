"""Datasets as reports read them: their splits, and the meaning of the values that their files hold."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataloading.contract import check_quick, split_files, stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, SPLITS, Categorical, FeatureSpec
from dataloading.ranges import NO_ID
from dataloading.tf_raw import TfRawSplit
from utils.encoding.recipe import BETWEEN, LOG, LOG1P, STANDARDISE, Recipe, recipe_of
from utils.encoding.transforms import HEXADECIMAL, transforms_of
from utils.errors import UserError

BLOCK_BYTES = 16 << 20
_BLOCK = 1 << 20  # ids


def open_dataset(folder: Path) -> FeatureSpec:
    """Read the specification of a tf_raw dataset.

    Raises:
        UserError: there is none, or it describes data that is in no tf_raw files.
    """
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "no such folder"
        raise UserError(f"--dataset_path {folder}: {found}; expected one that holds {DEFAULT_FILE_NAME}")
    spec = FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME, "--dataset_path")
    check_quick(spec, ())
    return spec


def splits_of(spec: FeatureSpec) -> list[str]:
    """Return the names of the splits: train, valid and test first."""
    stored = spec.sources or {}
    return [*(name for name in SPLITS if name in stored), *(name for name in stored if name not in SPLITS)]


def open_split(spec: FeatureSpec, name: str) -> TfRawSplit | None:
    """Open a split; return None if its files are empty. Raises UserError if it is not in tf_raw files, or they do not agree."""
    try:
        return TfRawSplit(spec, name)
    except UserError:
        if _is_empty(spec, name):
            return None
        raise


def _is_empty(spec: FeatureSpec, name: str) -> bool:
    try:
        return all(path.is_file() and path.stat().st_size == 0 for path in split_files(spec, name).all())
    except (OSError, KeyError, IndexError):
        return False


def block_rows(width: int) -> int:
    """Return the number of rows of `width` bytes to read at a time."""
    return max(1, BLOCK_BYTES // max(width, 1))


@dataclass(frozen=True)
class Meaning:
    """The meaning of a feature's stored values.

    `recipe` is how `preproc.table` made them, None for other datasets; `zero` says what id 0 stands for, empty where it is an id like any other.
    `vocabulary` is the file of the values of the ids, None where there is none.
    """

    recipe: Recipe | None = None
    zero: str = ""
    vocabulary: Path | None = None
    word: str = ""  # the transform of a dataset by `preproc.criteo`


MISSING, MISSING_OR_UNKNOWN = "missing", "missing or unknown"


def meaning_of(spec: FeatureSpec, name: str) -> Meaning:
    """Return the meaning of a feature's values, as far as the dataset records it."""
    transforms = transforms_of(spec.metadata, spec.numerical, [feature.name for feature in spec.categorical])
    entry = transforms.get(name) if isinstance(transforms, dict) else None
    if name in spec.numerical:
        return Meaning(_recipe(name, entry), word=entry if isinstance(entry, str) else "")
    vocabulary = stored_vocabulary(spec, name)
    if isinstance(entry, str):
        known = entry == HEXADECIMAL
        return Meaning(None, MISSING_OR_UNKNOWN if known or _begins_at_1(vocabulary) else "", vocabulary, entry)
    recipe = _recipe(name, entry)
    if recipe is None:
        return Meaning(None, MISSING_OR_UNKNOWN if _begins_at_1(vocabulary) else "", vocabulary)
    return Meaning(recipe, MISSING_OR_UNKNOWN if recipe.has_vocabulary else MISSING, vocabulary)


def _recipe(name: str, entry: object) -> Recipe | None:
    try:
        return recipe_of(name, entry, fitted=True) if isinstance(entry, dict) else None
    except (ValueError, TypeError):
        return None


def _begins_at_1(vocabulary: Path | None) -> bool:
    """Return whether the first id of a vocabulary is 1, so that 0 stands for what it lacks."""
    if vocabulary is None:
        return False
    import polars as pl

    try:
        first = pl.scan_parquet(vocabulary, glob=False).select(pl.col("id").first()).collect().item()
    except (pl.exceptions.PolarsError, OSError):
        return False
    return first == 1


def value_names(feature: Categorical, meaning: Meaning, ids: list[int]) -> dict[int, str]:
    """Return the values that ids stand for, as far as they are known: from the vocabulary, or the ranges of buckets.

    Raises:
        UserError: the vocabulary cannot be read.
    """
    found = {}
    if meaning.vocabulary is not None:
        found = _looked_up(meaning.vocabulary, ids, meaning.word == HEXADECIMAL)
    elif meaning.recipe is not None and meaning.recipe.boundaries is not None:
        found = {number: _bucket(meaning.recipe.boundaries, number) for number in ids}
    return {number: found.get(number, f"id {number}") for number in ids}


def _looked_up(path: Path, ids: list[int], hexadecimal: bool) -> dict[int, str]:
    import polars as pl

    try:
        rows = pl.scan_parquet(path, glob=False).select("id", "value").filter(pl.col("id").is_in(ids)).collect().rows()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{path}: cannot be read as a vocabulary (value, id, count): {' '.join(str(error).split())[:200]}") from None
    shown = (lambda value: f"{value:08x}") if hexadecimal else lambda value: str(value).replace(BETWEEN, ", ")
    return {number: shown(value) for number, value in rows if value is not None}


def _bucket(boundaries: tuple[float, ...], number: int) -> str:
    """Return the range of a bucket, which begins at a boundary and ends before the next."""
    if not 1 <= number <= len(boundaries) + 1:
        return f"id {number}"
    if number == 1:
        return f"below {boundaries[0]:.6g}" if boundaries else "all"
    start = f"{boundaries[number - 2]:.6g}"
    return f"{start} or more" if number == len(boundaries) + 1 else f"{start} to below {boundaries[number - 1]:.6g}"


def in_own_unit(meaning: Meaning) -> Callable[[float], float]:
    """Return a function from a stored number to the column's own unit; the identity where the transform is not recorded."""
    recipe, word = meaning.recipe, meaning.word
    transform = recipe.transform if recipe else word
    if transform == LOG:
        return lambda value: _bounded(math.exp, value) - 3
    if transform == LOG1P and recipe:
        return lambda value: math.copysign(_bounded(math.expm1, abs(value)), value)
    if transform == STANDARDISE and recipe and None not in (recipe.mean, recipe.std):
        return lambda value: value * recipe.std + recipe.mean
    return lambda value: value


def _bounded(function: Callable[[float], float], value: float) -> float:
    try:
        return function(value)
    except OverflowError:
        return math.inf


class Known(NamedTuple):
    """Ids by what they are: masks in the shape of the ids."""

    inside: np.ndarray  # in [0, cardinality)
    outside: np.ndarray  # neither inside nor, in a list, -1


def known_ids(ids: np.ndarray, feature: Categorical) -> Known:
    """Return the ids of a feature that are rows of its table, and those that are out of range."""
    inside = (ids >= 0) & (ids < feature.cardinality)
    return Known(inside, ~inside & (ids != NO_ID) if feature.is_list else ~inside)


def add_counts(counts: np.ndarray, ids: np.ndarray) -> None:
    """Count ids in [0, len(counts)): `counts` grows in place, without a temporary of the table's size where the table is large."""
    if len(counts) <= 4 * ids.size:
        counts += np.bincount(ids, minlength=len(counts)).astype(counts.dtype)
        return
    values, found = np.unique(ids, return_counts=True)
    counts[values] += found.astype(counts.dtype)


def most_frequent(counts: np.ndarray, wanted: int) -> np.ndarray:
    """Return the ids of the largest counts above 0, at most `wanted`, the largest first, equal ones by id."""
    best = np.zeros(0, np.int64)
    for start in range(0, len(counts), _BLOCK):  # partitioning a whole table that is mostly 0 takes seconds
        block = counts[start : start + _BLOCK]
        there = np.flatnonzero(block)
        if len(there) > wanted:
            least = np.partition(block[there], len(there) - wanted)[len(there) - wanted]
            there = there[block[there] >= least]
        best = np.concatenate([best, there + start])
        best = best[np.lexsort((best, -counts[best].astype(np.int64)))][:wanted]
    return best
