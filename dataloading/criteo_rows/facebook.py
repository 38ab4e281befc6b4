"""Datasets that Facebook's DLRM has preprocessed (facebookresearch/dlrm, `data_utils.py`).

FOLDER/terabyte_processed_train.bin, _test.bin, _val.bin   records of 40 int32; also by the names {train,test,val}_data.bin
FOLDER/day_fea_count.npz                                   `counts`: rows of the 26 tables
FOLDER/kaggleAdDisplayChallenge_processed.npz              `X_int`, `X_cat`, `y`, `counts`: all days in one archive; or terabyte_processed.npz
FOLDER/train_day_count.npz                                 `total_per_file`: rows of each day; of Kaggle's data it follows from the number of rows

The last day is cut in two: the first half, rounded up, is for testing, the rest for validation. Facebook takes ln(x + 1) of the integers, and ids
modulo --max-ind-range, when it reads the files; both are done here.
"""

from itertools import accumulate
from pathlib import Path

import numpy as np

from dataloading.criteo_rows.npz import NpzRows, days_of, whole_numbers
from dataloading.criteo_rows.records import RecordFile
from dataloading.criteo_rows.rows import MAX_ROWS, NUM_CATEGORICAL, CriteoRows, Part, criteo_spec
from dataloading.features import DatasetError

_SPLITS = {"train": "train", "test": "test", "valid": "val"}  # by split
_DATA = "{}_data.bin"  # of data_loader_terabyte.py
_KAGGLE, _TERABYTE = "kaggleAdDisplayChallenge_processed.npz", "terabyte_processed.npz"
_EXPECTED = f"expected what Facebook's DLRM writes: terabyte_processed_train.bin, {_KAGGLE}, or {_TERABYTE}"


def facebook_rows(folder: Path, max_ind_range: int | None, numerical_dtype: str) -> CriteoRows:
    """Return the rows of such a dataset.

    Args:
        folder: the folder that holds the files.
        max_ind_range: ids are taken modulo this number, and no table has more rows; None for ids as they stand.
        numerical_dtype: float16 or float32.

    Raises:
        DatasetError: a file is missing or damaged, or the folder holds several datasets.
    """
    records = sorted(folder.glob("*_train.bin")) + sorted(folder.glob(_DATA.format("train")))
    archives = [folder / name for name in (_KAGGLE, _TERABYTE) if (folder / name).exists()]
    if len(found := [*records, *archives]) != 1:
        names = ", ".join(path.name for path in found)
        raise DatasetError(f"{folder}: holds {f'{names}; expected one of them' if found else 'no such dataset'}; {_EXPECTED}")
    parts, counts, source = _of_records(found[0]) if records else _of_archive(found[0])
    tables = [count if max_ind_range is None else min(count, max_ind_range) for count in whole_numbers(counts, "counts", NUM_CATEGORICAL)]
    if max(tables) > MAX_ROWS:
        raise DatasetError(f"{counts}: a table of {max(tables):,} rows, expected at most {MAX_ROWS:,}; --max_ind_range lowers it")
    spec = criteo_spec(tables, list(parts), folder / "feature_spec.yaml", source, numerical_dtype)
    return CriteoRows(spec, parts, _logarithms, max_ind_range)


def _of_records(train: Path) -> tuple[dict[str, Part], Path, str]:
    """Return the parts, the file of the tables' rows, and the name of the source."""
    parts = {}
    for split, name in _SPLITS.items():
        path = train.with_name(_DATA.format(name) if train.name == _DATA.format("train") else f"{train.name.removesuffix('train.bin')}{name}.bin")
        if split == "train" or path.exists():
            file = RecordFile(path, floats=False)
            parts[split] = Part(file, 0, file.num_rows)
    counts = train.with_name("day_fea_count.npz")
    if not counts.exists():
        others = sorted(train.parent.glob("*_fea_count.npz"))
        if len(others) != 1:
            raise DatasetError(f"{counts}: no such file; expected the rows of the tables, which Facebook's preprocessing writes beside the raw logs")
        (counts,) = others
    return parts, counts, train.name


def _of_archive(path: Path) -> tuple[dict[str, Part], Path, str]:
    """Return the parts, the file of the tables' rows, and the name of the source."""
    file = NpzRows(path)
    kaggle = path.name == _KAGGLE
    totals = path.with_name("train_day_count.npz" if kaggle else "day_day_count.npz")
    if totals.exists():
        days = whole_numbers(totals, "total_per_file")
    elif kaggle:
        days = days_of(file.num_rows, 7)
    else:
        raise DatasetError(f"{totals}: no such file; expected the rows of each day, which Facebook's preprocessing writes beside the raw logs")
    if sum(days) != file.num_rows or len(days) < 2:
        raise DatasetError(
            f"{totals}: {len(days)} days, {sum(days):,} rows; {path.name} has {file.num_rows:,}; expected the same rows, two days or more"
        )
    last = list(accumulate(days))[-2]
    middle = last + -(-(file.num_rows - last) // 2)
    parts = {"train": Part(file, 0, last), "test": Part(file, last, middle), "valid": Part(file, middle, file.num_rows)}
    return {split: part for split, part in parts.items() if len(part)}, path, path.name


def _logarithms(values: np.ndarray, place: str, first_row: int) -> np.ndarray:
    """Return ln(x + 1) in float32, as Facebook computes it. Raises DatasetError for a negative value."""
    bad = ~(values >= 0)
    if bad.any():
        row, column = divmod(int(np.argmax(bad)), bad.shape[1])
        raise DatasetError(f"{place}: feature num_{column}, row {first_row + row}: found {values[row, column]}, expected a count of 0 or more")
    return np.log(values.astype(np.float32) + np.float32(1))
