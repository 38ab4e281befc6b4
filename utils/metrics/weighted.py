"""The exact AUC of weighted samples: the share of the weight of all pairs of a positive and a negative in which the positive is higher.

A pair's weight is the product of both weights, and a tie counts half. All sums are in float64 and of positive terms only: no sum is the difference of
two others. So the relative error is some units of the last place for any weights, those of 1e-30 beside 1e30 too.

A tie is here all samples with the same score, perhaps a single one.
"""

import numpy as np

from utils.metrics.keys import chunks, descending, scores_of

CHUNK = 1 << 16  # samples: the float64 columns of so many stay in the processor's cache, where a chunk takes a third of the time
_SCORE, _WEIGHT, _LABEL = np.uint64(32), np.uint64(1), np.uint64(1)  # the first bits of a key's score and weight, and the mask of its label


def counted(weights: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the columns and, last, the weights `[n]`, all without the samples of weight 0: these have no part in a metric, whatever their score."""
    kept = weights > 0
    return (*columns, weights) if kept.all() else tuple(column[kept] for column in (*columns, weights))


def sorted_keys(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return sorted keys `[n]` uint64, one a sample: the score in descending order (32 bits), the weight (31 bits), the label (1 bit).

    Args:
        scores: `[n]` float32. Those of another type, which may be closer together, have their ranks in the keys instead.
        positive: `[n]` bool.
        weights: `[n]` float32, above 0: their bits have the order of their values, and the sign's is 0.
    """
    places = descending(scores) if scores.dtype == np.float32 else ~np.unique(scores, return_inverse=True)[1].astype(np.uint32)
    keys = places.astype(np.uint64) << _SCORE
    keys |= weights.view(np.uint32).astype(np.uint64) << _WEIGHT
    keys |= positive
    keys.sort()
    return keys


def unpacked(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the float32 scores, the weights as float64 and whether a sample is positive, `[n]` each, in the order of keys of float32 scores."""
    return scores_of((keys >> _SCORE).astype(np.uint32)), _weights(keys).astype(np.float64), (keys & _LABEL).astype(bool)


def _weights(keys: np.ndarray) -> np.ndarray:
    return ((keys >> _WEIGHT).astype(np.uint32) & np.uint32(0x7FFFFFFF)).view(np.float32)


def area(keys: np.ndarray, chunk: int = CHUNK) -> float | None:
    """Compute the weighted AUC of all samples; None where there is only one class, or none.

    Args:
        keys: `[n]`, see `sorted_keys`. They say the order of the samples, so the result does not depend on that in which they were given.
        chunk: samples processed at a time, but at least a whole tie.
    """
    higher = lower = right = 0.0  # weights of the positives and of the negatives so far, and of the pairs of both in the correct order
    for rows in chunks(keys, int(_SCORE), chunk):
        some = keys[rows]
        starts = np.flatnonzero(np.concatenate([[True], (some[1:] ^ some[:-1]) >> _SCORE != 0]))
        positives, negatives = of_ties(_weights(some), (some & _LABEL).astype(bool), starts)
        right += float(correct_pairs(positives, negatives, np.arange(len(starts)), higher).sum())
        higher, lower = higher + float(positives.sum()), lower + float(negatives.sum())
    return min(1.0, right / (higher * lower)) if higher and lower else None


def of_ties(weights: np.ndarray, positive: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of the positives and that of the negatives of each tie, `[T]` float64.

    Args:
        weights, positive: `[n]`, with the rows of a tie together.
        starts: `[T]`, the first row of each tie.
    """
    wide = weights.astype(np.float64)
    return np.add.reduceat(wide * positive, starts), np.add.reduceat(wide * ~positive, starts)  # NumPy adds in pairs, not one after the other


def correct_pairs(positives: np.ndarray, negatives: np.ndarray, place: np.ndarray, higher: float = 0.0) -> np.ndarray:
    """Return, for each tie, the weight of the pairs of its negatives and higher positives, and half of that of the pairs within it, `[T]`.

    Args:
        positives, negatives: `[T]`, the weights of ties, best first within each group.
        place: `[T]`, the place of a tie in its group, from 0.
        higher: the weight of positives above all of these ties.
    """
    up_to = _running_sums(positives, place)
    above = np.zeros(len(place))
    above[1:] = np.where(place[1:] > 0, up_to[:-1], 0.0)
    return negatives * (higher + above + positives / 2)


def _running_sums(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Sum each group's values up to each of them, `[T]`, in a number of additions that is the logarithm of the place.

    `np.cumsum` would add one after the other, with an error that grows with T, and less the sum before the group it would lose small groups.
    """
    sums, step, last = values.copy(), 1, int(place.max())
    while step <= last:
        sums[step:] += np.where(place[step:] >= step, sums[:-step], 0.0)
        step *= 2
    return sums
