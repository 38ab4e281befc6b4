"""The dataset of NVIDIA's DLRM for PyTorch: `model_size.json`, and `train`, `test` and `val` in the form of tf_raw without a specification.

FOLDER/model_size.json                      {"_c14": 7912888, …}: the greatest id of each categorical feature, in their order
FOLDER/{train,test,val}/label.bin           bool
FOLDER/{train,test,val}/numerical.bin       float16 [samples, M]
FOLDER/{train,test,val}/cat_0.bin …         the first of int8, int16, int32 that holds the number of rows, or the greatest id: NVIDIA's scripts differ
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from dataloading.contract import check_quick, split_files
from dataloading.feature_spec import CATEGORICAL_DTYPES, Chunk, FeatureSpec, generator_spec
from dataloading.features import DatasetError
from utils.checkpoint.durable import write_text

SIZES = "model_size.json"
_FOLDERS = {"train": "train", "test": "test", "valid": "val"}  # by split


def split_spec(folder: Path) -> FeatureSpec:
    """Return the specification of such a dataset; the files stay in place.

    Raises:
        DatasetError: a file is missing or invalid.
    """
    rows = table_rows(folder / SIZES)
    splits = [split for split, name in _FOLDERS.items() if (folder / name).is_dir()]
    if "train" not in splits:
        raise DatasetError(f"{folder / 'train'}: no such folder; expected a dataset of NVIDIA's DLRM for PyTorch: {SIZES}, train, test")
    raw = generator_spec(rows, _num_numerical(folder / "train"), alpha=0.0).as_tf_raw(splits, metadata={"source": SIZES})
    sources = {split: tuple(_moved(chunk, split) for chunk in chunks) for split, chunks in raw.sources.items()}
    spec = _with_stored_dtypes(replace(raw, sources=sources, path=folder / "feature_spec.yaml"))
    check_quick(spec, tuple(splits))
    return spec


def _with_stored_dtypes(spec: FeatureSpec) -> FeatureSpec:
    """Return the specification with the types that the sizes of the training files tell, where these types can hold the ids.

    Of a greatest id of 126 or 32,766 NVIDIA's `split_dataset.py` writes a narrower type than its trainer reads.
    """
    files, dtypes, categorical = split_files(spec, "train"), dict(spec.dtypes), []
    samples = _size(files.label)
    for feature, path in zip(spec.categorical, files.categorical, strict=True):
        width = _size(path) / samples
        holding = (dtype for dtype in CATEGORICAL_DTYPES if feature.cardinality - 1 <= np.iinfo(dtype).max)
        dtype = next((dtype for dtype in holding if np.dtype(dtype).itemsize == width), feature.dtype)
        categorical.append(replace(feature, dtype=dtype))
        dtypes[feature.name] = dtype
    return replace(spec, categorical=tuple(categorical), dtypes=dtypes)


def _size(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it is missing, which a later check reports."""
    return path.stat().st_size if path.is_file() else 0


def write_split_spec(folder: Path, name: str, overwrite: bool) -> FeatureSpec:
    """Write the specification beside the files, and return it.

    Raises:
        DatasetError: see `split_spec`; or the file exists and `overwrite` is not set.
    """
    path, spec = folder / name, split_spec(folder)
    if path.exists() and not overwrite:
        raise DatasetError(f"{path}: already exists; --overwrite replaces it")
    write_text(path, spec.to_yaml())
    return replace(spec, path=path)


def _moved(chunk: Chunk, split: str) -> Chunk:
    return replace(chunk, files=tuple(f"{_FOLDERS[split]}/{Path(file).name}" for file in chunk.files))


def table_rows(path: Path) -> list[int]:
    """Return the rows of each table: one more than the greatest id, which some of NVIDIA's scripts write as a text. Raises DatasetError."""
    try:
        sizes = json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; expected the greatest id of each categorical feature") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: {' '.join(str(error).split())[:80]}; expected JSON") from None
    if not isinstance(sizes, dict) or not sizes:
        raise DatasetError(f"{path}: expected a mapping of categorical features to their greatest ids")
    rows = []
    for name, greatest in sizes.items():
        if isinstance(greatest, str) and greatest.isascii() and greatest.isdigit() and len(greatest) < 20:
            greatest = int(greatest)
        if type(greatest) is not int or not 0 <= greatest < 2**31 - 1:
            raise DatasetError(f"{path}: {name} is {str(greatest)[:40]}, expected the greatest id, a whole number from 0 to {2**31 - 2}")
        rows.append(greatest + 1)
    return rows


def _num_numerical(folder: Path) -> int:
    """Return M, inferred from the sizes of the files."""
    sizes = {}
    for name in ("label.bin", "numerical.bin"):
        try:
            sizes[name] = (folder / name).stat().st_size
        except OSError as error:
            raise DatasetError(f"{folder / name}: {error.strerror}") from None
    samples, size = sizes["label.bin"], sizes["numerical.bin"]
    if not samples or size % (2 * samples) or not size:
        raise DatasetError(f"{folder / 'numerical.bin'}: {size} bytes for {samples} samples; expected a whole number of float16 features for each")
    return size // (2 * samples)
