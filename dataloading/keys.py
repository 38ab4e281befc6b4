"""`SPLIT/keys.parquet`: columns that the model does not read and predictions carry, so that these can be joined with what the rows came from.

Its rows are those of the split, in their order; its columns are whatever preprocessing kept.
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from utils.naming import naming

if TYPE_CHECKING:
    import polars as pl

KEYS = "keys.parquet"
TAKEN = ("row", "score", "label", "group")  # columns that predictions have of their own


def stored_keys(spec: FeatureSpec, split: str) -> Path | None:
    """Where a split has its keys; None where it has none."""
    path = spec.base_directory / split / KEYS
    return path if os.path.lexists(path) else None


def keys_faults(spec: FeatureSpec, split: str, samples: int) -> list[str]:
    """What is wrong with the keys of a split of so many rows, a line each; only the end of the file is read."""
    path = stored_keys(spec, split)
    if path is None:
        return []
    import polars as pl  # only where there are keys

    try:
        if not path.is_file():  # opening a named pipe would wait for ever
            return [f"{path}: not a regular file"]
        keys = pl.scan_parquet(path, glob=False)
        names, rows = keys.collect_schema().names(), keys.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        return [f"{path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}"]
    taken = [f"{path}: column {name} has the name of a column of the predictions; rename it" for name in names if name in TAKEN]
    return taken + ([] if rows == samples else [f"{path}: {rows} rows, the split {split} has {samples}; expected a row of keys for each"])


def check_keys(spec: FeatureSpec, split: str, samples: int) -> None:
    """Raise DatasetError for the first fault, see `keys_faults`."""
    for fault in keys_faults(spec, split, samples):
        raise DatasetError(fault)


def read_keys(spec: FeatureSpec, split: str) -> "pl.DataFrame | None":
    """The keys of a split, all in memory; None where it has none. Raises DatasetError where they cannot be read."""
    path = stored_keys(spec, split)
    if path is None:
        return None
    import polars as pl

    try:
        return pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None


def copy_keys(spec: FeatureSpec, split: str, rows: int, target: Path) -> None:
    """Write the keys of the first rows of a split, where it has such, to another file."""
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
