"""Preprocessing as usually written without this project: ids by frequency, log(x + 3), the same binary files, with everything in memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from preproc.criteo.clicklog import LABEL


def by_pandas(files: Sequence[Path], separator: str, columns: tuple[Sequence[str], Sequence[str]], threshold: int, folder: Path) -> None:
    """Preprocess with pandas' CSV reader and scikit-learn's OrdinalEncoder, which has ids for rare and new values and orders ids by value.

    Args:
        files: the files of the training rows and of the test rows.
        separator: the separator of the fields; files with commas have a header.
        columns: the names of the integer columns and of the categorical columns.
        threshold: values that occur less often share an id.
        folder: the folder for the binary files.
    """
    import pandas
    from sklearn.preprocessing import OrdinalEncoder

    numbers, texts = map(list, columns)
    names = [LABEL, *numbers, *texts]
    header = {"header": None, "names": names} if separator == "\t" else {}
    kinds = {LABEL: np.int8} | dict.fromkeys(numbers, np.float64) | dict.fromkeys(texts, str)
    train, test = (pandas.read_csv(path, sep=separator, dtype=kinds, **header) for path in files)
    encoder = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1, min_frequency=max(threshold, 1), dtype=np.int32
    )
    encoder.fit(train[texts])
    for split, frame in (("train", train), ("test", test)):
        ids = encoder.transform(frame[texts]) + 1
        logs = np.log(frame[numbers].clip(lower=-2) + 3).fillna(0).to_numpy(np.float16) if numbers else None
        _write(folder, split, frame[LABEL].to_numpy(bool), logs, ids.T)


def by_pyarrow(files: Sequence[Path], separator: str, columns: tuple[Sequence[str], Sequence[str]], threshold: int, folder: Path) -> None:
    """Preprocess with PyArrow's CSV reader, counts and lookups; the arguments are those of `by_pandas`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    numbers, texts = map(list, columns)
    names = [LABEL, *numbers, *texts]
    kinds = {LABEL: pa.int8()} | dict.fromkeys(numbers, pa.int64()) | dict.fromkeys(texts, pa.string())
    read = csv.ReadOptions(column_names=names if separator == "\t" else None)
    convert = csv.ConvertOptions(column_types=kinds, strings_can_be_null=True)
    tables = [csv.read_csv(path, read, csv.ParseOptions(delimiter=separator), convert) for path in files]
    vocabularies = {}
    for name in texts:
        counts = pc.value_counts(tables[0][name].drop_null())
        kept = counts.filter(pc.greater_equal(counts.field("counts"), threshold))
        order = pc.sort_indices(kept.field("counts"), sort_keys=[("", "descending")])
        vocabularies[name] = kept.field("values").take(order)
    for split, table in zip(("train", "test"), tables, strict=True):
        logs = None
        if numbers:
            whole = (pc.cast(table[name], pa.float64()) for name in numbers)
            logs = np.stack([np.log(np.maximum(pc.fill_null(column, -2.0).to_numpy(), -2) + 3).astype(np.float16) for column in whole], axis=1)
        ids = ((pc.fill_null(pc.index_in(table[name], vocabularies[name]), -1).to_numpy() + 1).astype(np.int32) for name in texts)
        _write(folder, split, table[LABEL].to_numpy().astype(bool), logs, ids)


def _write(folder: Path, split: str, labels: np.ndarray, logs: np.ndarray | None, ids: Iterator[np.ndarray] | np.ndarray) -> None:
    (folder / split).mkdir(parents=True)
    labels.tofile(folder / split / "label.bin")
    if logs is not None:
        logs.tofile(folder / split / "numerical.bin")
    for place, column in enumerate(ids):
        np.ascontiguousarray(column).tofile(folder / split / f"cat_{place}.bin")
