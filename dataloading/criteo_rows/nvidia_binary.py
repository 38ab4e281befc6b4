"""The `binary` datasets of NVIDIA's DLRM for PyTorch.

FOLDER/model_size.json                       {"_c14": 7912888, …}: the greatest id of each categorical feature, in their order
FOLDER/{train,test,val}_data.bin             records of 40 numbers of 4 bytes: the label int32, 13 transformed numerical values float32, 26 ids int32
"""

from pathlib import Path

import numpy as np

from dataloading.criteo_rows.records import RecordFile
from dataloading.criteo_rows.rows import NUM_CATEGORICAL, CriteoRows, Part, criteo_spec
from dataloading.features import DatasetError
from dataloading.split_dataset import SIZES, table_rows

_FILES = {"train": "train_data.bin", "test": "test_data.bin", "valid": "val_data.bin"}  # by split


def binary_rows(folder: Path, numerical_dtype: str) -> CriteoRows:
    """Return the rows of such a dataset.

    Args:
        folder: the folder that holds the files.
        numerical_dtype: float16 or float32.

    Raises:
        DatasetError: a file is missing or damaged.
    """
    tables = table_rows(folder / SIZES)
    if len(tables) != NUM_CATEGORICAL:
        raise DatasetError(f"{folder / SIZES}: {len(tables)} features, expected {NUM_CATEGORICAL}: so many ids has a record")
    parts = {}
    for split, name in _FILES.items():
        if split == "train" or (folder / name).exists():
            file = RecordFile(folder / name, floats=True)
            parts[split] = Part(file, 0, file.num_rows)
    return CriteoRows(criteo_spec(tables, list(parts), folder / "feature_spec.yaml", "train_data.bin", numerical_dtype), parts, _as_they_are)


def _as_they_are(values: np.ndarray, place: str, first_row: int) -> np.ndarray:
    return values
