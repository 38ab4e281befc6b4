"""Small tf_raw datasets and predictions of them, made by hand."""

from dataclasses import replace

import numpy as np
import polars as pl

from dataloading.feature_spec import Categorical, FeatureSpec, smallest_dtype
from dataloading.tf_raw import TfRawWriter
from tests.helpers.datasets import spec_in


def write_dataset(folder, splits, *, cardinalities, hotness=None, numerical=(), numerical_dtype="float32", metadata=None):
    """Write a dataset.

    Args:
        folder: its folder.
        splits: of each split the columns by feature name, and `label`, which is left out of a split without labels.
        cardinalities: rows of the table of each categorical feature; without any, one with a single id is added, which every dataset needs.
        hotness: ids a sample of features with lists.
        numerical: names of the numerical features.
        numerical_dtype: their dtype.
        metadata: of the specification.
    """
    hotness = hotness or {}
    if not cardinalities:
        cardinalities = {"any": 1}
        splits = {name: {**columns, "any": np.zeros(len(next(iter(columns.values()))), np.int8)} for name, columns in splits.items()}
    categorical = tuple(Categorical(name, rows, smallest_dtype(rows), hotness.get(name, 1)) for name, rows in cardinalities.items())
    dtypes = {one.name: one.dtype for one in categorical} | dict.fromkeys(numerical, numerical_dtype) | {"label": "bool"}
    spec = FeatureSpec(categorical, tuple(numerical), "label", dtypes)
    unlabelled = [name for name, columns in splits.items() if "label" not in columns]
    with TfRawWriter(folder, spec, tuple(splits), overwrite=True, unlabelled=unlabelled) as writer:
        for name, columns in splits.items():
            numbers = np.stack([np.asarray(columns[one], numerical_dtype) for one in numerical], axis=1) if numerical else np.empty((0, 0))
            writer.append(name, numbers, [np.asarray(columns[one]) for one in cardinalities], columns.get("label"))
        writer.publish(metadata or {})
    return folder


def write_vocabulary(folder, feature, values, first=1):
    """Write the vocabulary of a feature, whose ids begin at `first`."""
    (folder / "vocabulary").mkdir(exist_ok=True)
    ids = pl.Series("id", np.arange(first, first + len(values), dtype=np.int32))
    pl.DataFrame({"value": values, "id": ids, "count": np.arange(len(values), 0, -1)}).write_parquet(folder / f"vocabulary/{feature}.parquet")


def write_predictions(path, scores, labels=None, rows=None, **others):
    """Write predictions as `--mode predict` does."""
    columns = {
        "row": np.arange(len(scores), dtype=np.uint64) if rows is None else np.asarray(rows, np.uint64),
        "score": np.asarray(scores, np.float32),
    }
    columns |= {} if labels is None else {"label": np.asarray(labels, np.uint8)}
    pl.DataFrame(others | columns).write_parquet(path)
    return path


def respecified(folder, **changes):
    """Rewrite a dataset's specification with changes to its fields."""
    spec = replace(spec_in(folder), **changes)
    (folder / "feature_spec.yaml").write_text(spec.to_yaml())
