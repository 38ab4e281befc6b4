"""The rows of an export's proof: rows of a test split, or drawn ones."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dataloading.sources import open_split, read_spec, table_rows
from run.same_transforms import check_transforms
from run.sample_columns import NO_ID
from run.tables import tables_and_features
from serving.proof import ROWS
from training.features import ModelFeatures, check_features
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config


class ProofRows(NamedTuple):
    """Samples for a proof: numericals `[n, M]` float32, ids `[n, K]` int64, labels `[n]` (None for drawn rows), and a description of their source."""

    numerical: np.ndarray
    ids: np.ndarray
    labels: np.ndarray | None
    source: str


def test_rows(config: Config, checkpoint: Checkpoint, warn: Callable[[str], None]) -> ProofRows:
    """Read the first rows of the test split. Raises UserError where the dataset does not fit the model; `warn` as in `check_transforms`."""
    spec = read_spec(config.data, config.features)
    tables, features = tables_and_features(config, spec.categorical, table_rows(config.data, spec), len(spec.numerical))
    check_features(checkpoint, ModelFeatures.of(tables, features, spec.numerical, spec.numerical_dtype))
    check_transforms(checkpoint, spec, config.training.allow_other_transforms, warn)
    split = open_split(config.data, spec, "test", config.run.seed, warn)
    try:
        count = min(split.num_samples, ROWS)
        columns = [split.read_ids(place, 0, count).reshape(count, -1) for place, _ in enumerate(spec.categorical)]
        numerical, labels = split.read_numerical(0, count).astype(np.float32), split.read_labels(0, count)
    finally:
        split.close()
    source = f"the test split of {config.data.dataset_path or 'synthetic data'}"
    return ProofRows(numerical, np.concatenate(columns, axis=1).astype(np.int64), labels, source)


def drawn_rows(features: ModelFeatures, seed: int = 0) -> ProofRows:
    """Draw random valid rows: ids uniform over the rows of a table, lists of all lengths, numericals around 1."""
    draw = np.random.default_rng(seed)
    columns = []
    for name, rows in features.categorical.items():
        hotness = features.hotness(name)
        ids = draw.integers(0, rows, (ROWS, hotness))
        if hotness > 1:
            ids[np.arange(hotness) >= draw.integers(0, hotness + 1, (ROWS, 1))] = NO_ID
        columns.append(ids)
    numerical = draw.gamma(1.0, 1.0, (ROWS, len(features.numerical))).astype(np.float32)
    return ProofRows(numerical, np.concatenate(columns, axis=1), None, "drawn rows")


def by_feature(rows: ProofRows, features: ModelFeatures) -> dict[str, np.ndarray]:
    """Return the rows by feature, as `TrainedModel.score` expects them."""
    found = {name: rows.numerical[:, place] for place, name in enumerate(features.numerical)}
    first = 0
    for name in features.categorical:
        hotness = features.hotness(name)
        found[name] = rows.ids[:, first] if hotness == 1 else rows.ids[:, first : first + hotness]
        first += hotness
    return found
