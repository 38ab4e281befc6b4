"""Lists of ids that a caller gives in Python, as arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataloading.ranges import NO_ID

_IDS, _WEIGHTS = "ids", "weights"
_KINDS = {_IDS: "iu", _WEIGHTS: "iuf"}  # kinds of NumPy's dtypes
_EXPECTED = {_IDS: "whole numbers", _WEIGHTS: "numbers as weights"}


def lists_of_ids(name: str, values: Any, hotness: int) -> np.ndarray:
    """Return a feature's lists of ids as `[B, h]`, padded with −1.

    Args:
        name: the feature's name, for messages.
        values: an array `[B, at most h]`, or one list a sample.
        hotness: h.

    Raises:
        ValueError: a sample holds something else or too many ids; the message names the feature and the sample.
    """
    return _padded(name, values, hotness, _IDS, weightless=True)[0]


def lists_of_pairs(name: str, values: Any, hotness: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids `[B, h]`, padded with −1, and the weights `[B, h]`, padded with 0, of a feature whose ids have weights.

    Args:
        name: the feature's name, for messages.
        values: a tuple `(ids, weights)`, each of them an array `[B, at most h]` or one list a sample (`[B]` where h is 1); or, in anything but a
            tuple, for each sample a list of pairs `(id, weight)` or of mappings of `id` and `weight`.
        hotness: h.

    Raises:
        ValueError: a sample holds something else, too many ids, or not as many weights as ids; the message names the feature and the sample.
    """
    if not isinstance(values, tuple):
        return _of_pairs(name, values, hotness)
    if len(values) != 2:
        raise ValueError(f"feature {name}: is a tuple of {len(values)}, expected (ids, weights)")
    ids, of_ids = _padded(name, values[0], hotness, _IDS)
    weights, of_weights = _padded(name, values[1], hotness, _WEIGHTS)
    if len(ids) != len(weights):
        raise ValueError(f"feature {name}: has ids of {len(ids)} samples and weights of {len(weights)}")
    if (of_ids != of_weights).any():
        sample = int(np.argmax(of_ids != of_weights))
        raise ValueError(f"feature {name}: sample {sample} has {of_ids[sample]} ids and {of_weights[sample]} weights")
    return ids, weights


def _of_pairs(name: str, values: Any, hotness: int) -> tuple[np.ndarray, np.ndarray]:
    samples = _samples(name, values)
    ids, weights = np.full((len(samples), hotness), NO_ID, np.int64), np.zeros((len(samples), hotness))
    for sample, pairs in enumerate(samples):
        try:
            given = [_pair(pair) for pair in ([] if pairs is None else pairs)]
            some, theirs = _flat([found for found, _ in given], _IDS), _flat([weight for _, weight in given], _WEIGHTS)
        except (TypeError, ValueError, KeyError):
            expected = f"a list of at most {hotness} pairs (id, weight), the id a whole number; or give all samples as a tuple (ids, weights)"
            raise ValueError(f"feature {name}: sample {sample} holds {str(pairs)[:40]!r}, expected {expected}") from None
        _check_count(name, sample, len(given), hotness, _IDS)
        ids[sample, : len(given)], weights[sample, : len(given)] = some, theirs
    return ids, weights


def _pair(pair: Any) -> tuple[Any, Any]:
    """Return the id and the weight. Raises TypeError, ValueError or KeyError."""
    if isinstance(pair, Mapping):
        return pair["id"], pair["weight"]
    if isinstance(pair, str):
        raise TypeError(pair)
    found, weight = pair
    return found, weight


def _padded(name: str, values: Any, hotness: int, what: str, weightless: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return ids or weights as `[B, h]`, and how many each sample has, `[B]`."""
    blank, dtype = (NO_ID, np.int64) if what == _IDS else (0, np.float64)
    if isinstance(values, np.ndarray) and values.ndim == 1 and hotness == 1 and values.dtype != object:
        values = values[:, np.newaxis]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        if values.dtype.kind not in _KINDS[what] and values.size:
            raise ValueError(f"feature {name}: holds {values.dtype}, expected {_EXPECTED[what]}")
        width = values.shape[1]
        if width > hotness:
            raise ValueError(f"feature {name}: has {width} {what} a sample, expected at most {hotness}")
        return np.pad(_wide(values, dtype), [(0, 0), (0, hotness - width)], constant_values=blank), np.full(len(values), width)
    samples = _samples(name, values)
    found, counts = np.full((len(samples), hotness), blank, dtype), np.zeros(len(samples), np.int64)
    for sample, given in enumerate(samples):
        try:
            some = _flat(given, what, hotness == 1)
        except (TypeError, ValueError):
            hint = "; the ids of this feature have no weights" if weightless and _nested(given) else ""
            raise ValueError(
                f"feature {name}: sample {sample} holds {str(given)[:40]!r}, expected a list of at most {hotness} {what}{hint}"
            ) from None
        _check_count(name, sample, len(some), hotness, what)
        found[sample, : len(some)], counts[sample] = some, len(some)
    return found, counts


def _samples(name: str, values: Any) -> Sequence:
    found = values.to_list() if hasattr(values, "to_list") else values
    if not hasattr(found, "__len__") or isinstance(found, str | bytes | Mapping) or (isinstance(found, np.ndarray) and found.ndim == 0):
        raise ValueError(f"feature {name}: is {type(values).__name__}, expected one list a sample")
    return found


def _flat(given: Any, what: str, single: bool = False) -> np.ndarray:
    """Return the numbers of a list `[n]`; of a number itself where a list may be a `single` one. Raises TypeError or ValueError for anything else."""
    some = np.asarray([] if given is None else given)
    if single and some.ndim == 0:
        some = some[np.newaxis]
    if some.ndim != 1 or (some.dtype.kind not in _KINDS[what] and some.size):
        raise TypeError(given)
    return _wide(some, np.int64 if what == _IDS else np.float64)


def _wide(values: np.ndarray, dtype: type) -> np.ndarray:
    """Convert numbers to int64 or float64; whole numbers beyond int64 to its greatest one, which is no id either."""
    return (np.minimum(values, np.iinfo(np.int64).max) if values.dtype == np.uint64 else values).astype(dtype)


def _nested(given: Any) -> bool:
    return isinstance(given, Sequence | np.ndarray) and any(isinstance(one, Sequence | np.ndarray) for one in given)


def _check_count(name: str, sample: int, count: int, hotness: int, what: str) -> None:
    if count > hotness:
        raise ValueError(f"feature {name}: sample {sample} has {count} {what}, expected at most {hotness}")
