"""Lines for the user about what a run does not read of Parquet files."""

from collections.abc import Iterable

import polars as pl

from dataloading.feature_spec import FeatureSpec
from dataloading.parquet.split import ParquetSplit


def notes(spec: FeatureSpec, splits: Iterable[ParquetSplit], ranked: bool = False) -> list[str]:
    """Return the lines: columns that are no features, ids beyond `max_hotness`, and groups that the specification or the files lack.

    All lists of ids are read for it, to count the longer ones.

    Args:
        spec: the features.
        splits: the splits that are read.
        ranked: whether metrics by group are computed where there is a group.
    """
    splits, found = list(splits), []
    known = {feature.name for feature in spec.categorical} | {*spec.numerical, spec.label, spec.group}
    if unread := sorted({name for split in splits for file in split.files for name in file.schema} - known):
        found.append(f"unused columns of the Parquet files: {', '.join(unread)}")
    if spec.group is None and ranked:
        found.append(f"{spec.path}: channel_spec.map is empty, so no MAP is computed; --disable_map_calculation asks for that")
    for split in splits:
        if spec.group is not None and not split.grouped:
            found.append(f"{spec.path}: the files of {split.name} lack the column {spec.group}, and 0 stands for it; no evaluation reads it")
        found += _cut_lists(spec, split)
    return found


def _cut_lists(spec: FeatureSpec, split: ParquetSplit) -> list[str]:
    """Return a line for each feature with lists longer than its hotness, of which only the first ids are read."""
    features = [feature for feature in spec.categorical if feature.hotness > 1]
    counts = {feature.name: 0 for feature in features}
    for file in split.files if features else ():
        columns = [pl.col(one.name).arr.to_list() if isinstance(file.schema[one.name], pl.Array) else pl.col(one.name) for one in features]
        longer = [column.list.len() > one.hotness for column, one in zip(columns, features, strict=True)]
        for one, count in zip(features, file.count(longer), strict=True):
            counts[one.name] += count or 0
    return [
        f"{split.name}: {counts[one.name]:,} of {split.num_samples:,} rows have more than {one.hotness} ids in {one.name}, its max_hotness in "
        f"{spec.path}; only the first {one.hotness} of a list are read"
        for one in features
        if counts[one.name]
    ]
