"""The file that `--mode predict` writes."""

from pathlib import Path

import numpy as np

from utils.errors import UserError


def check_path(path: str | None) -> Path:
    """The predictions' path, looked at before the model is built. Raises UserError."""
    if path is None:
        raise UserError("--predictions_path is missing: --mode predict writes a Parquet file, name it")
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        raise UserError(f"--predictions_path {path}: expected a file in an existing folder")
    return Path(path)


def write(path: Path, scores: np.ndarray, labels: np.ndarray) -> None:
    """Write Parquet columns `row` (uint64, from 0), `score` (probability, float32) and `label` (uint8), in file order; whole or not at all."""
    import polars  # not needed by any other mode

    frame = polars.DataFrame({"row": np.arange(len(scores), dtype=np.uint64), "score": scores, "label": labels})
    partial = path.with_name(f".{path.name}.writing")
    try:
        frame.write_parquet(partial)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
