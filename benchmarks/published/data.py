"""The files that are compared on, and the dataset that this project's own tools make of them."""

import gzip
import hashlib
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.published.processes import ended
from benchmarks.published.settings import FRAPPE_ROWS, LABEL, SPLITS
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from utils.errors import UserError


@dataclass(frozen=True)
class Files:
    """`train.csv.gz`, `valid.csv.gz` and `test.csv.gz` of a folder.

    Attributes:
        columns: the names of the columns that are features; all are categorical.
        rows: the rows of each split.
        digest: of the bytes of the files.
    """

    folder: Path
    columns: tuple[str, ...]
    rows: Mapping[str, int]
    digest: str

    def note(self) -> str:
        """Return a line about the rows: whether they are those of the published split."""
        counts = ", ".join(f"{split} {count:,}" for split, count in self.rows.items())
        if self.rows == FRAPPE_ROWS[0]:
            return f"{counts} rows: the published split of Frappe"
        if self.rows == FRAPPE_ROWS[1]:
            return f"{counts} rows: the published split of Frappe, the negatives of train drawn again"
        return f"{counts} rows: not the published split of Frappe, so the published figures are of other rows"


def path_of(folder: Path, split: str) -> Path:
    """Return the file of a split."""
    return folder / f"{split}.csv.gz"


def read(folder: Path, max_rows: int | None = None, cut: Path | None = None) -> Files:
    """Read the files' headers, rows and digest.

    Args:
        folder: the folder of the files.
        max_rows: first rows of each file to take; they are written to `cut`, whose files are then returned. None for all.
        cut: folder for the first rows.

    Raises:
        UserError: a file is missing, is not gzip, has no rows or other columns than `train`.
    """
    if max_rows is not None:
        folder = _cut(folder, max_rows, cut)
    digest, rows, header = hashlib.sha256(), {}, None
    for split in SPLITS:
        lines = _lines(folder, split)
        header = header or lines[0]
        if lines[0] != header or LABEL not in header.split(",") or len(lines) < 2:
            found = lines[0][:200]
            raise UserError(f"--data {path_of(folder, split)}: expected rows, with the columns of train and one of them {LABEL}; found {found}")
        rows[split] = len(lines) - 1
        digest.update("\n".join(lines).encode())
    columns = tuple(name for name in header.split(",") if name != LABEL)
    return Files(folder, columns, rows, digest.hexdigest()[:16])


def dataset(files: Files, folder: Path) -> Path:
    """Return the tf_raw dataset of the files; make it with `python -m preproc.table` where it does not exist yet.

    Raises:
        UserError: it cannot be made, or has other rows than the files.
    """
    made = folder / f"dataset-{files.digest}"
    if not (made / "feature_spec.yaml").is_file():
        splits = [word for split in SPLITS for word in (f"--{split}", path_of(files.folder, split).absolute())]
        ended(sys.executable, "-m", "preproc.table", *splits, "--label", LABEL, "--categorical", ",".join(files.columns), "--dst", made.absolute())
    spec = FeatureSpec.from_yaml(made / "feature_spec.yaml", "--folder")
    for split, expected in files.rows.items():
        with closing(TfRawSplit(spec, split)) as rows:
            if rows.num_samples != expected:
                raise UserError(f"{made}: {rows.num_samples:,} rows in {split}, the file has {expected:,}; remove the dataset")
    return made


def _lines(folder: Path, split: str) -> list[str]:
    path = path_of(folder, split)
    try:
        return gzip.decompress(path.read_bytes()).decode().splitlines() or [""]
    except FileNotFoundError:
        names = ", ".join(path_of(Path(), name).name for name in SPLITS)
        raise UserError(f"--data {folder}: no {path.name}; expected a folder with {names}") from None
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"--data {path}: {error}; expected a CSV file in gzip") from None


def _cut(folder: Path, rows: int, target: Path) -> Path:
    """Write the first rows of each file to a folder, and return it."""
    target.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        text = "".join(f"{line}\n" for line in _lines(folder, split)[: rows + 1])
        path_of(target, split).write_bytes(gzip.compress(text.encode(), mtime=0))
    return target
