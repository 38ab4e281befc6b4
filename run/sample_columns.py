"""Conversion of samples, given by column in Python, to the arrays of a batch."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dataloading.ranges import ERROR, NO_ID, into_range
from run.list_columns import lists_of_ids, lists_of_pairs
from run.served_columns import ServedColumns
from run.weighted_ids import with_weights
from training.features import ModelFeatures
from utils.forks import POLARS, check_threads


def columns_of(features: ModelFeatures) -> tuple[str, ...]:
    """Return the features that samples need values of: the numerical ones, then the categorical ones, without those for training only."""
    return tuple(name for name in (*features.numerical, *features.categorical) if name not in features.served)


def encoded(samples: Any, features: ModelFeatures, out_of_range: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return samples, given by feature, as `arrays` does. Raises ValueError as `given_columns` and `arrays` do."""
    return arrays(given_columns(samples, columns_of(features), optional=features.served), features, out_of_range)


def encoded_raw(samples: Any, raw: Any, features: ModelFeatures) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return samples, given by column of the log, as `arrays` does. Raises ValueError as `given_columns` and the encoder do.

    Args:
        samples: the samples.
        raw: encoder of raw values, see `raw_inputs`.
        features: features of the model.
    """
    return ServedColumns(features).by_feature(*raw.encoded(given_columns(samples, raw.columns, "raw_columns", raw.optional)))


def given_columns(samples: Any, wanted: Sequence[str], attribute: str = "columns", optional: Collection[str] = ()) -> dict[str, Any]:
    """Return each of the model's `columns` or `raw_columns`, and the `optional` ones that are there; collect a LazyFrame.

    Raises ValueError for a missing or unknown column.
    """
    samples, what = _collected(samples), "feature" if attribute == "columns" else "column"
    names = list(samples.keys()) if isinstance(samples, Mapping) else list(getattr(samples, "columns", ()))
    if not names and not isinstance(samples, Mapping):
        raise ValueError(f"samples: {type(samples).__name__}, expected a mapping of features to values, or a Polars or pandas frame")
    for name in wanted:
        if name not in names:
            raise ValueError(f"{what} {name}: is missing; the model has {_listed(wanted, attribute)}")
    for name in names:
        if name not in wanted and name not in optional:
            raise ValueError(
                f"{what} {name}: is unknown; the model has {_listed(wanted, attribute)}. From a frame, select frame[list(model.{attribute})]"
            )
    return {name: samples[name] for name in (*wanted, *optional) if name in names}


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
    """Convert columns to numericals `[B, M]` in the dataset's dtype, and ids int32 for each categorical feature.

    Ids are `[B]`; for a list `[B, h]`, padded with −1, or with weights `[B, 2h]` as `dataloading.id_weights` describes.

    Features for training only have the value that is served, whatever is given.

    Args:
        given: values of every feature; of those for training only where there are any.
        features: features of the model.
        out_of_range: treatment of ids beyond a table, as in `--out_of_range`.

    Raises:
        ValueError: a feature has another length or holds an invalid value; the message names it.
    """
    found, weights = {}, {}
    for name, values in given.items():
        _refuse_masked(name, values)
        if name in features.served:
            found[name] = _unread(name, values)
        elif features.weights(name):
            found[name], weights[name] = lists_of_pairs(name, values, features.hotness(name))
        else:
            found[name] = lists_of_ids(name, values, features.hotness(name)) if features.is_list(name) else _column(name, values)
    count = _count(found)
    numerical = np.empty((count, len(features.numerical)), features.numerical_dtype)
    for column, name in enumerate(features.numerical):
        if name not in features.served:
            numerical[:, column] = _numbers(name, found[name], features.numerical_dtype)
    ids = []
    for name, rows in features.categorical.items():
        served = name in features.served
        one = np.empty(count, np.int32) if served else _ids(name, found[name], rows, features.is_list(name), out_of_range)
        ids.append(with_weights(name, features.pooling(name), one, weights[name]) if name in weights else one)
    return ServedColumns(features).by_feature(numerical, ids)


def _count(columns: Mapping[str, np.ndarray]) -> int:
    if not columns:
        raise ValueError("samples: hold no feature, so their number is not known; give one of those for training only, whose values have no effect")
    first, count = next((name, len(values)) for name, values in columns.items())
    for name, values in columns.items():
        if len(values) != count:
            raise ValueError(f"feature {name}: has shape {list(values.shape)}, expected [{count}] as {first} has")
    return count


def _unread(name: str, values: Any) -> np.ndarray:
    """Return an array as long as a column of a feature for training only."""
    if not hasattr(values, "__len__") or isinstance(values, str | bytes) or not getattr(values, "ndim", 1):
        raise ValueError(f"feature {name}: holds {str(values)[:40]!r}, expected one value a sample, or no column: it is for training only")
    return np.empty(len(values))


def _refuse_masked(name: str, values: Any) -> None:
    """Raise ValueError where a masked array lacks a value: NumPy would pass on what lies under the mask."""
    for one in values if isinstance(values, tuple) else (values,):
        if isinstance(one, np.ma.MaskedArray) and np.ma.getmaskarray(one).any():
            sample = int(np.argwhere(np.ma.getmaskarray(one))[0][0])
            raise ValueError(f"feature {name}: the value of sample {sample} is masked; expected values without a mask, or `score_raw`")


def _column(name: str, values: Any) -> np.ndarray:
    try:
        found = np.asarray(values)
    except ValueError:
        raise ValueError(f"feature {name}: holds {str(values)[:40]!r}, expected one number a sample") from None
    if found.ndim != 1:
        hint = "; its ids have no weights" if isinstance(values, tuple) and len(values) == 2 and found.ndim > 1 else ""
        raise ValueError(f"feature {name}: has shape {list(found.shape)}, expected [B]{hint}")
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
