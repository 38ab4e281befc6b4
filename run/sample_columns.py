"""Conversion of samples, given by column in Python, to the arrays of a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataloading.ranges import ERROR, into_range
from training.features import ModelFeatures
from utils.forks import POLARS, check_threads

NO_ID = -1  # pads short lists


def given_columns(samples: Any, wanted: Sequence[str], attribute: str = "columns") -> dict[str, Any]:
    """Return each of the model's `columns` or `raw_columns`; collect a LazyFrame. Raises ValueError for a missing or unknown column."""
    samples, what = _collected(samples), "feature" if attribute == "columns" else "column"
    names = list(samples.keys()) if isinstance(samples, Mapping) else list(getattr(samples, "columns", ()))
    if not names and not isinstance(samples, Mapping):
        raise ValueError(f"samples: {type(samples).__name__}, expected a mapping of features to values, or a Polars or pandas frame")
    for name in wanted:
        if name not in names:
            raise ValueError(f"{what} {name}: is missing; the model has {_listed(wanted, attribute)}")
    for name in names:
        if name not in wanted:
            raise ValueError(
                f"{what} {name}: is unknown; the model has {_listed(wanted, attribute)}. From a frame, select frame[list(model.{attribute})]"
            )
    return {name: samples[name] for name in wanted}


def _collected(samples: Any) -> Any:
    if type(samples).__module__.partition(".")[0] != "polars" or type(samples).__name__ != "LazyFrame":
        return samples
    check_threads(POLARS)
    from polars.exceptions import PolarsError

    try:
        return samples.collect()
    except (PolarsError, OSError) as error:
        raise ValueError(f"samples: the LazyFrame cannot be collected: {' '.join(str(error).split())[:200]}") from None


def arrays(given: Mapping[str, Any], features: ModelFeatures, out_of_range: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Convert columns to numericals `[B, M]` in the dataset's dtype, and ids `[B]` or `[B, h]` int32 for each categorical feature.

    Args:
        given: values of every feature.
        features: features of the model.
        out_of_range: treatment of ids beyond a table, as in `--out_of_range`.

    Raises:
        ValueError: a feature has another length or holds an invalid value; the message names it.
    """
    found = {}
    for name, values in given.items():
        hotness = features.hotness(name)
        found[name] = _lists(name, values, hotness) if hotness > 1 else np.asarray(values)
        if hotness == 1 and found[name].ndim != 1:
            raise ValueError(f"feature {name}: has shape {list(found[name].shape)}, expected [B]")
    first, count = next((name, len(values)) for name, values in found.items())
    for name, values in found.items():
        if len(values) != count:
            raise ValueError(f"feature {name}: has shape {list(values.shape)}, expected [{count}] as {first} has")
    numerical = np.empty((count, len(features.numerical)), features.numerical_dtype)
    for column, name in enumerate(features.numerical):
        numerical[:, column] = _numbers(name, found[name], features.numerical_dtype)
    return numerical, [_ids(name, found[name], rows, features.hotness(name) > 1, out_of_range) for name, rows in features.categorical.items()]


def _lists(name: str, values: Any, hotness: int) -> np.ndarray:
    """Return a feature's lists of ids as `[B, h]`, padded with −1, from an array `[B, at most h]` or from one list a sample."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        if values.shape[1] > hotness:
            raise ValueError(f"feature {name}: has {values.shape[1]} ids a sample, expected at most {hotness}")
        return np.pad(values, [(0, 0), (0, hotness - values.shape[1])], constant_values=NO_ID)
    found = np.full((len(values), hotness), NO_ID, np.int64)
    for sample, ids in enumerate(values.to_list() if hasattr(values, "to_list") else values):
        some = np.asarray([] if ids is None else ids)
        if some.ndim == 0 or not (some.dtype.kind in "iu" or some.size == 0):
            raise ValueError(f"feature {name}: sample {sample} holds {str(ids)[:40]!r}, expected a list of at most {hotness} ids")
        if len(some) > hotness:
            raise ValueError(f"feature {name}: sample {sample} has {len(some)} ids, expected at most {hotness}")
        found[sample, : len(some)] = some
    return found


def _ids(name: str, values: np.ndarray, rows: int, lists: bool, out_of_range: str) -> np.ndarray:
    if values.dtype.kind not in "iu" and len(values):
        raise ValueError(f"feature {name}: holds {values.dtype}, expected whole numbers from 0 to {rows - 1}")
    if out_of_range != ERROR:
        return into_range(values, rows, out_of_range)[0].astype(np.int32)
    outside = (values < (NO_ID if lists else 0)) | (values >= rows)
    if outside.any():
        first = np.unravel_index(int(np.argmax(outside)), values.shape)
        raise ValueError(f"feature {name}: id {values[first]} of sample {first[0]} is not in [0, {rows})")
    return values.astype(np.int32)


def _numbers(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a numerical feature to the dataset's dtype."""
    if values.dtype.kind not in "iufb":
        raise ValueError(f"feature {name}: holds {values.dtype}, expected numbers")
    with np.errstate(over="ignore"):
        numbers = values.astype(dtype)
    if not np.isfinite(numbers).all():
        first = int(np.argmin(np.isfinite(numbers)))
        limit = " (at most 65504)" if dtype == "float16" else ""
        raise ValueError(f"feature {name}: value {values[first]} of sample {first} is not a finite {dtype}{limit}, the dtype of datasets")
    return numbers


def _listed(names: Sequence[str], attribute: str) -> str:
    return f"{', '.join(names[:4])}, … (model.{attribute})" if len(names) > 5 else ", ".join(names)
