"""The rows of an export's proof: rows of a test split, or drawn ones."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dataloading.batches import BatchReader, Ids
from dataloading.features import MEAN
from dataloading.ranges import NO_ID
from dataloading.sources import open_split, read_spec, table_rows
from dataloading.training_only import as_served, served_values
from run.same_transforms import check_transforms
from run.tables import tables_and_features
from serving.description import CATEGORICAL, ID_WEIGHTS, NUMERICAL
from serving.proof import ROWS
from serving.split_inputs import split_inputs
from serving.triton_config import Tensor
from training.features import ModelFeatures, check_features, saved_features
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config

_ANYTHING = (0.0, 1.5, -3e38, np.nan, np.inf)  # in columns that must have no effect
_WORDS = "", "1", "never seen", "zz"


class ProofRows(NamedTuple):
    """Samples for a proof.

    Attributes:
        numerical: `[n, M]` float32.
        ids: `[n, K]` int64.
        labels: `[n]`; None for drawn rows.
        source: description of where the rows come from.
        id_weights: `[n, W]` float32, W the number of ids that have weights.
    """

    numerical: np.ndarray
    ids: np.ndarray
    labels: np.ndarray | None
    source: str
    id_weights: np.ndarray


def test_rows(config: Config, checkpoint: Checkpoint, warn: Callable[[str], None]) -> ProofRows:
    """Read the first rows of the test split. Raises UserError where the dataset does not fit the model or holds an invalid value.

    `warn` is called as in `check_transforms`.
    """
    spec = read_spec(config.data, config.features)
    rows = table_rows(config.data, spec)
    tables, features = tables_and_features(config, spec.categorical, rows, len(spec.numerical))
    check_features(checkpoint, ModelFeatures.of(tables, features, spec.numerical, spec.numerical_dtype, served_values(spec)))
    check_transforms(checkpoint, spec, config.training.allow_other_transforms, warn)
    split = as_served(open_split(config.data, spec, "test", config.run.seed, warn))
    try:
        count = min(split.num_samples, ROWS)
        BatchReader(split, count, ids=Ids(rows, config.data.out_of_range)).read(0)  # checks the values
        inputs, labels = split_inputs(split, 0, count), split.read_labels(0, count)
    finally:
        split.close()
    none, source = np.empty((count, 0), np.float32), f"the test split of {' '.join(config.data.places) or 'synthetic data'}"
    found = ProofRows(inputs.get(NUMERICAL, none), inputs[CATEGORICAL], labels, source, inputs.get(ID_WEIGHTS, none))
    return _with_anything(found, saved_features(checkpoint), np.random.default_rng(config.run.seed))


def drawn_rows(features: ModelFeatures, seed: int = 0) -> ProofRows:
    """Draw random valid rows: ids uniform over the rows of a table, lists of all lengths, weights of which some are 0, numericals around 1.

    Features for training only have any values, valid or not.
    """
    draw = np.random.default_rng(seed)
    columns, weights = [], [np.empty((ROWS, 0), np.float32)]
    for name, rows in features.categorical.items():
        hotness = features.hotness(name)
        ids = draw.integers(0, rows, (ROWS, hotness))
        if features.is_list(name):
            ids[np.arange(hotness) >= draw.integers(0, hotness + 1, (ROWS, 1))] = NO_ID
        if features.weights(name):
            weights.append(_drawn_weights(draw, ids, features.pooling(name)))
        columns.append(ids)
    numerical = draw.gamma(1.0, 1.0, (ROWS, len(features.numerical))).astype(np.float32)
    found = ProofRows(numerical, np.concatenate(columns, axis=1), None, "drawn rows", np.concatenate(weights, axis=1))
    return _with_anything(found, features, draw)


def anything(inputs: Sequence[Tensor], seed: int = 0) -> dict[str, np.ndarray]:
    """Draw any values, valid or not, of the optional inputs of a model of raw values."""
    draw, words = np.random.default_rng(seed), np.array(_WORDS, object)
    return {
        one.name: draw.choice(_ANYTHING, ROWS).astype(np.float32) if one.kind == "FP32" else words[draw.integers(0, len(words), ROWS)]
        for one in inputs
        if one.optional
    }


def _with_anything(rows: ProofRows, features: ModelFeatures, draw: np.random.Generator) -> ProofRows:
    """Return rows whose features for training only have any values: ids in and beyond the table, numbers that are not finite."""
    numerical, ids = rows.numerical.copy(), rows.ids.copy()
    for place, name in enumerate(features.numerical):
        if name in features.served:
            numerical[:, place] = draw.choice(_ANYTHING, len(numerical))
    first = 0
    for name, count in features.categorical.items():
        if name in features.served:
            ids[:, first] = draw.integers(-2 - count, 2 * count + 2, len(ids))
        first += features.hotness(name)
    return rows._replace(numerical=numerical, ids=ids)


def _drawn_weights(draw: np.random.Generator, ids: np.ndarray, pooling: str) -> np.ndarray:
    """Draw the weights of ids `[n, h]`: a fifth are 0, and of a sum a tenth negative; also set a few ids to none, in the middle of lists."""
    ids[draw.random(ids.shape) < 0.1] = NO_ID
    weights = draw.lognormal(0.0, 0.5, ids.shape) * (draw.random(ids.shape) >= 0.2)
    negative = (draw.random(ids.shape) < 0.1) & (pooling != MEAN)
    return np.where(negative, -weights, weights).astype(np.float32)


def by_feature(rows: ProofRows, features: ModelFeatures) -> dict[str, Any]:
    """Return the rows by feature, as `TrainedModel.score` expects them."""
    found: dict[str, Any] = {name: rows.numerical[:, place] for place, name in enumerate(features.numerical)}
    first = of_weights = 0
    for name in features.categorical:
        hotness = features.hotness(name)
        found[name] = rows.ids[:, first : first + hotness] if features.is_list(name) else rows.ids[:, first]
        first += hotness
        if features.weights(name):
            found[name] = found[name], rows.id_weights[:, of_weights : of_weights + hotness]
            of_weights += hotness
    return found
