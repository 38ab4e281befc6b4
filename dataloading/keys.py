"""`SPLIT/keys.parquet`: columns that the model does not read. Predictions carry them, so that they can be joined with the source of the rows.

The file has one row for each row of the split, in the same order; its columns are those that preprocessing kept.
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.spec_parsing import WEIGHT
from utils.naming import naming

if TYPE_CHECKING:
    import polars as pl

KEYS = "keys.parquet"
TAKEN = ("row", "score", "label", "group")  # names of the predictions' own columns


def stored_keys(spec: FeatureSpec, split: str) -> Path | None:
    """Return the keys file of a split; None if it has none."""
    path = spec.base_directory / split / KEYS
    return path if os.path.lexists(path) else None


def keys_faults(spec: FeatureSpec, split: str, samples: int) -> list[str]:
    """Return the faults of the keys of a split with `samples` rows, one line each; reads only the end of the file."""
    path = stored_keys(spec, split)
    if path is None:
        return []
    import polars as pl  # imported late: Polars is needed only for keys

    try:
        if not path.is_file():  # opening a named pipe would block forever
            return [f"{path}: not a regular file"]
        keys = pl.scan_parquet(path, glob=False)
        names, rows = keys.collect_schema().names(), keys.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        return [f"{path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}"]
    own = (*TAKEN, *([] if spec.weight is None else [WEIGHT]))
    taken = [f"{path}: column {name} has the name of a column of the predictions; rename it" for name in names if name in own]
    return taken + ([] if rows == samples else [f"{path}: {rows} rows, the split {split} has {samples}; expected a row of keys for each"])


def check_keys(spec: FeatureSpec, split: str, samples: int) -> None:
    """Raise DatasetError for the first fault; see `keys_faults`."""
    for fault in keys_faults(spec, split, samples):
        raise DatasetError(fault)


def read_keys(spec: FeatureSpec, split: str) -> "pl.DataFrame | None":
    """Read the keys of a split into memory; return None if it has none. Raises DatasetError where they cannot be read."""
    path = stored_keys(spec, split)
    if path is None:
        return None
    import polars as pl

    try:
        return pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None


def copy_keys(spec: FeatureSpec, split: str, rows: int, target: Path) -> None:
    """Write the keys of the first `rows` rows of a split to another file; do nothing if the split has no keys."""
    path = stored_keys(spec, split)
    if path is None:
        return
    import polars as pl

    keys = pl.scan_parquet(path, glob=False)
    with naming(target):
        if keys.select(pl.len()).collect().item() == rows:
            shutil.copyfile(path, target)
        else:
            keys.head(rows).sink_parquet(target)
