"""The rows of a table that the ids of stored samples name, counted in one pass over the ids of its features."""

from collections.abc import Callable, Sequence

import numpy as np

from dataloading.batches import Ids, Split
from dataloading.id_columns import id_column
from dataloading.id_weights import ids_and_weights
from dataloading.ranges import NO_ID
from utils.memory import available_bytes, check_fits

_BLOCK_IDS = 1 << 20


def count_touched(
    split: Split, features: Sequence[int], rows: int, ids: Ids, samples: int, progress: Callable[[int], object] = lambda samples: None
) -> int:
    """Return the number of a table's rows that the first samples of a split name.

    Args:
        split: the samples.
        features: the indices of the table's features, in the model's order.
        rows: V.
        ids: the policy for ids out of range.
        samples: how many samples are read, at most all.
        progress: called with the number of samples of each block.

    Raises:
        DatasetError: an id is out of range and the policy is `error`.
        UserError: a byte for each row does not fit into memory.
    """
    names = ", ".join(split.spec.categorical[feature].name for feature in features)
    check_fits(rows, f"--plan_touched: the marks of the {rows:,} rows that {names} may name", available_bytes())
    seen = np.zeros(rows, np.bool_)
    for feature in features:
        described = split.spec.categorical[feature]
        step = max(1, _BLOCK_IDS // described.columns)
        for start in range(0, samples, step):
            block = start, min(start + step, samples)
            found, _ = id_column(split, feature, rows, ids.out_of_range, block, block)
            if described.weights:
                found, _ = ids_and_weights(found)
            seen[found[found != NO_ID] if described.is_list else found] = True
            progress(block[1] - start)
    return int(np.count_nonzero(seen))
