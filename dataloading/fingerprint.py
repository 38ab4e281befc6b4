"""A fingerprint of a dataset: whether a run goes on with the rows it began with."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dataloading.feature_spec import Categorical, FeatureSpec

_SAMPLES, _SAMPLE_BYTES = 16, 4096  # of each file, evenly spread, the first and the last among them


def digest(spec: FeatureSpec, values: Iterable[Any], files: Iterable[Path] = ()) -> str:
    """A hash of the features, of some values, and of sizes and samples of files: milliseconds, whatever their size."""
    found = hashlib.blake2b(digest_size=16)
    features = [_described(feature) for feature in spec.categorical]
    found.update(repr((features, spec.numerical, spec.label, tuple(values))).encode())
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found.update(str(size).encode())
            for i in range(_SAMPLES):
                found.update(os.pread(file.fileno(), _SAMPLE_BYTES, max(size - _SAMPLE_BYTES, 0) * i // (_SAMPLES - 1)))
    return found.hexdigest()


def _described(feature: Categorical) -> tuple:
    values = (feature.name, feature.cardinality, feature.dtype, feature.alpha)
    return values if feature.hotness == 1 else (*values, feature.hotness)  # the digests of older checkpoints stay what they were
