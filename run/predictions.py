"""The file that `--mode predict` writes."""

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.errors import UserError
from utils.memory import check_fits

if TYPE_CHECKING:
    import polars

_ROW_BYTES = 4  # of the score; row numbers and labels compress to almost nothing


def check_path(path: str | None) -> Path:
    """Return the path of the predictions, checked before the model is built. Raises UserError."""
    if path is None:
        raise UserError("--predictions_path is missing: give the path of the Parquet file that --mode predict writes")
    parent = Path(path).absolute().parent
    if not parent.is_dir() or (Path(path).exists() and not Path(path).is_file()):  # an existing device would be replaced by a file
        raise UserError(f"--predictions_path {path}: expected a file in an existing folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--predictions_path {path}: no permission to write into its folder")
    return Path(path)


def check_disk(path: Path, rows: int, keys: Path | None) -> None:
    """Check, before scoring, that the disk has room for this many rows and for the columns of the keys file. Raises UserError."""
    size = rows * _ROW_BYTES + (keys.stat().st_size if keys else 0)
    check_fits(size, f"--predictions_path {path}: {rows:,} predictions", shutil.disk_usage(path.absolute().parent).free)


def write(
    path: Path,
    scores: np.ndarray,
    labels: np.ndarray | None,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    keys: "polars.DataFrame | None" = None,
) -> None:
    """Write a Parquet file in file order, atomically.

    Its columns are the split's keys, `row` (uint64, from 0), `score` (probability, float32), `label` (uint8) where the split has labels, and `group`
    as it is stored where the dataset has a group column, and `weight` (float32) where the split has weights.

    Args:
        path: path of the file.
        scores: `[n]`.
        labels: `[n]`; None where the split has none.
        groups: `[n]`; None where the dataset has no group column.
        weights: `[n]`; None where the split has none.
        keys: n rows, with other column names.

    Raises:
        UserError: the disk is full, or the file cannot be written.
    """
    import polars  # imported here: no other mode needs it

    columns = {"row": np.arange(len(scores), dtype=np.uint64), "score": scores, "label": labels, "group": groups, "weight": weights}
    frame = polars.DataFrame({name: column for name, column in columns.items() if column is not None})
    frame = frame if keys is None else keys.hstack(frame)
    partial = path.with_name(f".{path.name}.writing")
    try:
        frame.write_parquet(partial)
        partial.rename(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise UserError(f"--predictions_path {path}: could not be written: {_brief(error)}") from None
    finally:
        partial.unlink(missing_ok=True)


def _brief(error: Exception) -> str:
    """Return the system's own error message, which Polars wraps in its own."""
    if found := re.search(r"os error (\d+)", str(error)):
        return os.strerror(int(found[1]))
    return getattr(error, "strerror", None) or " ".join(str(error).split())
