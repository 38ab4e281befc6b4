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

_ROW_BYTES = 4  # of the score; numbers of rows and labels shrink to next to nothing


def check_path(path: str | None) -> Path:
    """The predictions' path, looked at before the model is built. Raises UserError."""
    if path is None:
        raise UserError("--predictions_path is missing: --mode predict writes a Parquet file, name it")
    parent = Path(path).absolute().parent
    if not parent.is_dir() or (Path(path).exists() and not Path(path).is_file()):  # a device would be replaced by a file
        raise UserError(f"--predictions_path {path}: expected a file in an existing folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--predictions_path {path}: no permission to write into its folder")
    return Path(path)


def check_disk(path: Path, rows: int, keys: Path | None) -> None:
    """Look, before anything is scored, whether so many rows fit, and the columns of the file of keys. Raises UserError."""
    size = rows * _ROW_BYTES + (keys.stat().st_size if keys else 0)
    check_fits(size, f"--predictions_path {path}: {rows:,} predictions", shutil.disk_usage(path.absolute().parent).free)


def write(
    path: Path,
    scores: np.ndarray,
    labels: np.ndarray | None,
    groups: np.ndarray | None = None,
    keys: "polars.DataFrame | None" = None,
) -> None:
    """Write Parquet columns, in file order; whole or not at all.

    They are the split's keys, `row` (uint64, from 0), `score` (probability, float32), `label` (uint8) where the split has labels, and, where the
    dataset has a group, `group` as it is stored.

    Args:
        path: of the file.
        scores: `[n]`.
        labels: `[n]`; None where the split has none.
        groups: `[n]`.
        keys: n rows, of columns with other names.

    Raises:
        UserError: the disk is full, or refuses.
    """
    import polars  # not needed by any other mode

    columns = {"row": np.arange(len(scores), dtype=np.uint64), "score": scores, "label": labels, "group": groups}
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
    """The system's words, which Polars wraps in its own."""
    if found := re.search(r"os error (\d+)", str(error)):
        return os.strerror(int(found[1]))
    return getattr(error, "strerror", None) or " ".join(str(error).split())
