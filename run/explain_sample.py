"""A seeded sample of a split's rows, in memory, and seeded background rows for `explain`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataloading.batches import Split
from dataloading.id_weights import check_id_weights, ids_and_weights, without_idle
from dataloading.id_weights import joined as joined_weights
from dataloading.ranges import ERROR, check_ids, check_labels, check_numerical, check_weights, into_range
from dataloading.sources import open_split, read_spec, table_rows
from dataloading.training_only import as_served, served_values
from run.explain_units import Inputs, joined
from run.same_transforms import check_transforms
from run.tables import tables_and_features
from training.features import ModelFeatures, check_features
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.data import DataConfig
from utils.errors import UserError
from utils.memory import available_bytes, check_fits

BACKGROUND = 64  # rows that a feature's values are taken from
_GAP = 32  # rows that are read and dropped rather than reading twice
_RANGE = 65_536  # most rows of a read
_COPIES = 4  # of the sample in memory at once: itself, one with permuted values, and what scoring and permuting need
_HINT = "; correct the dataset, or map such ids into the table with --out_of_range clip or hash"


class Sample(NamedTuple):
    """Rows of a split, in its order."""

    inputs: Inputs
    labels: np.ndarray  # [n] uint8; zeros where the split has none
    out_of_range: int  # ids that were mapped into their table
    weights: np.ndarray | None = None  # [n] float64; None where the split has none


def draw(split: Split, count: int, seed: int, tables: Sequence[int], out_of_range: str, weighted: bool = False) -> Sample:
    """Return a uniform sample of a split's rows without repetition; all rows where the split has no more.

    Args:
        split: the rows.
        count: rows of the sample.
        seed: seed of the choice.
        tables: rows of each categorical feature's table.
        out_of_range: treatment of ids beyond a table, as in `--out_of_range`.
        weighted: whether to read the weights of the rows, too.

    Raises:
        DatasetError: a value is invalid, see `dataloading.ranges`.
        UserError: the sample does not fit into memory.
    """
    count, spec = min(count, split.num_samples), split.spec
    columns = len(spec.numerical) + sum(feature.columns for feature in spec.categorical)
    check_fits(_COPIES * count * (4 * columns + 16), f"{count:,} rows to explain", available_bytes())
    rows = np.sort(np.random.default_rng(seed).choice(split.num_samples, count, replace=False, shuffle=False))
    numerical, labels = np.empty((count, len(spec.numerical)), np.float32), np.empty(count, np.uint8)
    ids = [np.empty((count, feature.columns), np.int32) for feature in spec.categorical]
    changed, weights_of_rows = 0, np.empty(count) if weighted else None
    for first, last in _ranges(rows):
        start, stop = int(rows[first]), int(rows[last - 1]) + 1
        kept, here = rows[first:last] - start, split.first_row + start
        numbers = split.read_numerical(start, stop)
        if spec.numerical:
            check_numerical(numbers, spec.numerical, here, partial(split.file, spec.numerical[0]))
        read = split.read_labels(start, stop)
        check_labels(read, spec.label, here, partial(split.file, spec.label))
        numerical[first:last], labels[first:last] = numbers[kept], read[kept]
        if weights_of_rows is not None:
            read_weights = split.read_weights(start, stop)
            check_weights(read_weights, spec.weight, here, partial(split.file, spec.weight))
            weights_of_rows[first:last] = read_weights[kept]
        for place, feature in enumerate(spec.categorical):
            column, weights, path = split.read_ids(place, start, stop), None, partial(split.file, feature.name)
            if feature.weights:
                check_id_weights(column, feature, here, path)
                column, weights = ids_and_weights(column)
            if out_of_range == ERROR:
                check_ids(column, tables[place], feature.name, here, path, _HINT)
                found, more = column[kept], 0
            else:
                found, more = into_range(column[kept], tables[place], out_of_range)
            found = found if weights is None else without_idle(joined_weights(found, weights[kept]))
            ids[place][first:last], changed = found.reshape(len(kept), feature.columns), changed + more
    return Sample(joined(numerical, ids), labels, changed, weights_of_rows)


def _ranges(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return the positions (first, behind the last) of ascending rows that are read together."""
    cuts = {0, len(rows), *(np.flatnonzero(np.diff(rows) > _GAP) + 1).tolist()}
    found = []
    for first, last in pairwise(sorted(cuts)):
        edges = np.flatnonzero(np.diff((rows[first:last] - rows[first]) // _RANGE)) + 1
        found += pairwise([first, *(first + edges).tolist(), last])
    return found


def background_of(path: str | Path | None, checkpoint: Checkpoint, config: Config, seed: int) -> Inputs:
    """Return seeded rows of the training split of a dataset.

    Args:
        path: the folder of the dataset; None for the one that the checkpoint's model was trained on.
        checkpoint: the checkpoint, whose features the dataset must have.
        config: configuration of the model.
        seed: seed of the choice.

    Raises:
        UserError: there is no such dataset, or it does not fit the model.
    """
    saved = checkpoint.manifest.get("config", {})
    known = saved.get("dataset_path") if isinstance(saved, Mapping) else None
    kind = saved.get("dataset_type") if isinstance(saved, Mapping) else None
    if path is None:
        if not known or kind == "synthetic" or not Path(known).exists():
            what = "drawn data" if kind == "synthetic" else known or "a dataset that the checkpoint does not name"
            raise UserError(f"explain: the model was trained on {what}, which is not here; give background=: the folder of a dataset, or samples")
        path = known
    data = {"dataset_path": str(path), "dataset_type": kind if kind not in (None, "synthetic") else "tf_raw"}
    data |= {"feature_spec": saved["feature_spec"]} if str(path) == known and saved.get("feature_spec") else {}
    data |= {"out_of_range": config.data.out_of_range, "max_table_size": config.data.max_table_size}
    options = replace(config, data=DataConfig(**data))
    spec = read_spec(options.data, options.features)
    rows = table_rows(options.data, spec)
    tables, features = tables_and_features(options, spec.categorical, rows, len(spec.numerical))
    check_features(checkpoint, ModelFeatures.of(tables, features, spec.numerical, spec.numerical_dtype, served_values(spec)))
    check_transforms(checkpoint, spec, options.training.allow_other_transforms, _silent)
    split = as_served(open_split(options.data, spec, "train", seed, _silent, labels=False))
    try:
        return draw(split, BACKGROUND, seed, rows, options.data.out_of_range).inputs
    finally:
        split.close()


def chosen(rows: Inputs, seed: int) -> Inputs:
    """Return the background of given rows: all of them, or a seeded choice where there are more than are needed. Raises ValueError for none."""
    count = len(rows.ids)
    if not count:
        raise ValueError("background: holds no row; expected at least 1")
    if count <= BACKGROUND:
        return rows
    return rows.taken(np.sort(np.random.default_rng(seed).choice(count, BACKGROUND, replace=False, shuffle=False)))


def _silent(line: str) -> None:
    """Drop a warning about data that are not read for training."""
