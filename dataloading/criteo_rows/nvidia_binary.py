"""The `binary` datasets of NVIDIA's DLRM for PyTorch.

FOLDER/model_size.json                       {"_c14": 7912888, …}: the greatest id of each categorical feature, in their order
FOLDER/{train,test,validation}_data.bin      records of 40 numbers of 4 bytes: the label int32, 13 transformed numerical values float32, 26 ids int32;
                                             val_data.bin in place of validation_data.bin
"""

from pathlib import Path

import numpy as np

from dataloading.criteo_rows.records import RecordFile
from dataloading.criteo_rows.rows import NUM_CATEGORICAL, CriteoRows, Part, criteo_spec
from dataloading.features import DatasetError
from dataloading.split_dataset import SIZES, table_rows

# By split, all names that NVIDIA's scripts and loaders have given the file.
_FILES = {"train": ("train_data.bin",), "test": ("test_data.bin",), "valid": ("validation_data.bin", "val_data.bin")}


def binary_rows(folder: Path, numerical_dtype: str) -> CriteoRows:
    """Return the rows of such a dataset.

    Args:
        folder: the folder that holds the files.
        numerical_dtype: float16 or float32.

    Raises:
        DatasetError: a file is missing or damaged, or a split has two.
    """
    tables = table_rows(folder / SIZES)
    if len(tables) != NUM_CATEGORICAL:
        raise DatasetError(f"{folder / SIZES}: {len(tables)} features, expected {NUM_CATEGORICAL}: so many ids has a record")
    parts = {}
    for split, names in _FILES.items():
        found = [name for name in names if split == "train" or (folder / name).exists()]
        if len(found) > 1:
            raise DatasetError(f"{folder}: holds {' and '.join(found)}; expected one of them, as both are the {split} split")
        if found:
            file = RecordFile(folder / found[0], floats=True)
            parts[split] = Part(file, 0, file.num_rows)
    return CriteoRows(criteo_spec(tables, list(parts), folder / "feature_spec.yaml", "train_data.bin", numerical_dtype), parts, _as_they_are)


def _as_they_are(values: np.ndarray, place: str, first_row: int) -> np.ndarray:
    return values
