"""What no model can beat on drawn files of Outbrain's form: written beside them, read for a dataset's metadata."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dataloading.features import DatasetError

TRUTH, TRUTH_ROWS = "planted_signal.json", "planted_signal.parquet"


class Truth(NamedTuple):
    """Of some displays, the mean average precision that is to be expected of the true order of their ads, and what it reaches."""

    displays: int  # of which it is known
    expected: float
    reached: float
    generated: dict[str, Any]  # how the files were drawn


def read_truth(folder: Path, displays: np.ndarray) -> Truth | None:
    """The truth of displays, by their ids `[n]`; None where the folder's files were not drawn.

    Raises:
        DatasetError: the files are damaged.
    """
    if not (folder / TRUTH).is_file() or not (folder / TRUTH_ROWS).is_file():
        return None
    try:
        drawn = json.loads((folder / TRUTH).read_text())
        held = pl.read_parquet(folder / TRUTH_ROWS).join(pl.DataFrame({"display_id": displays}), on="display_id", how="semi")
        expected, reached = (float(held[name].cast(pl.Float64).mean() or 0) for name in ("expected_ap", "reached_ap"))
        generated = {name: drawn[name] for name in ("displays", "rows", "seed", "signal")}
    except (ValueError, KeyError, TypeError, OSError, pl.exceptions.PolarsError) as error:
        raise DatasetError(f"{folder / TRUTH_ROWS}: not what dataloading.generate_outbrain writes ({' '.join(str(error).split())[:120]})") from None
    return Truth(held.height, expected, reached, generated)
