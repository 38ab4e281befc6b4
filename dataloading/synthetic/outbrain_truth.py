"""The best possible score on synthetic Outbrain files: written beside the files, and read for a dataset's metadata."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dataloading.features import DatasetError

TRUTH, TRUTH_ROWS = "planted_signal.json", "planted_signal.parquet"


class Truth(NamedTuple):
    """The expected mean average precision of the true order of displays' ads, and the one that it reaches."""

    displays: int  # displays for which both are known
    expected: float
    reached: float
    generated: dict[str, Any]  # the parameters that the files were drawn with


def read_truth(folder: Path, displays: np.ndarray) -> Truth | None:
    """Read the truth of displays with these ids `[n]`; None if the folder's files are not synthetic.

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
        raise DatasetError(f"{folder / TRUTH_ROWS}: not a file of dataloading.generate_outbrain ({' '.join(str(error).split())[:120]})") from None
    return Truth(held.height, expected, reached, generated)
