"""Contributions of features to the scores of single rows."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from run.explain_sample import background_of, chosen
from run.explain_units import Inputs, Unit, joined, places_of, units_of
from training.features import ModelFeatures, saved_features
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.encoding import transforms

Encode = Callable[[Any], tuple[np.ndarray, Sequence[np.ndarray]]]  # returns numericals and the ids of each feature
Score = Callable[[Inputs], np.ndarray]  # returns the logits of inputs

_AT_ONCE = 16_384  # samples in one call of `score`


class Explanation(NamedTuple):
    """The contributions of the features to the logits of B rows.

    A contribution is the row's logit less the mean of its logits with the feature's values taken from each background row. Contributions of a model
    with interactions do not sum up to the logit.

    Attributes:
        logits: `[B]` float32.
        contributions: `[B]` float32 by the name of the feature, or of the raw column whose features move together.
        features: the features that move together, by the same names.
    """

    logits: np.ndarray
    contributions: Mapping[str, np.ndarray]
    features: Mapping[str, tuple[str, ...]]

    def of(self, row: int) -> list[tuple[str, float]]:
        """Return the contributions to a row's logit, those that moved it most first."""
        found = [(name, float(values[row])) for name, values in self.contributions.items()]
        return sorted(found, key=lambda pair: -abs(pair[1]))


def explained(checkpoint: Checkpoint, config: Config, score: Score, encode: Encode, samples: Any, background: Any, seed: int) -> Explanation:
    """Explain samples to the caller of `TrainedModel.explain`.

    Args:
        checkpoint: the model's checkpoint.
        config: its configuration.
        score: function that returns the logits of inputs.
        encode: function that encodes samples.
        samples: the samples.
        background: the folder of a dataset, None for the one that the model was trained on, or samples.
        seed: seed of the choice of background rows.

    Raises:
        ValueError, UserError: as in `TrainedModel.explain`.
    """
    features, rows = saved_features(checkpoint), joined(*encode(samples))
    if background is None or isinstance(background, str | Path):
        donors = background_of(background, checkpoint, config, seed)
    else:
        donors = chosen(joined(*encode(background)), seed)
    return contributions(score, rows, donors, units_of(features, checkpoint.manifest.get(transforms.NAME)), features)


def contributions(score: Score, rows: Inputs, background: Inputs, units: Sequence[Unit], features: ModelFeatures) -> Explanation:
    """Return the logits of rows, and the contribution of each unit of features.

    Args:
        score: function that returns the logits of inputs.
        rows: B rows.
        background: rows whose values replace those of a unit, one after the other.
        units: the features that move together.
        features: the features of the model.
    """
    count, donors = len(rows.ids), len(background.ids)
    logits, found = np.empty(count, np.float32), {unit.name: np.empty(count, np.float32) for unit in units}
    places = {unit.name: places_of(features, unit.features) for unit in units}
    step = max(_AT_ONCE // donors, 1)
    for first in range(0, count, step):
        some = rows.taken(slice(first, first + step))
        size = len(some.ids)
        logits[first : first + size] = score(some)
        repeated, given = some.taken(np.repeat(np.arange(size), donors)), background.taken(np.tile(np.arange(donors), size))
        for name, columns in places.items():
            without = score(repeated.with_values(columns, given)).reshape(size, donors).mean(axis=1, dtype=np.float64)
            found[name][first : first + size] = logits[first : first + size] - without
    return Explanation(logits, found, {unit.name: unit.features for unit in units})
