"""The fingerprint of a dataset, by which a resumed run checks that its rows are those it started with."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dataloading.feature_spec import NUMERICAL_DTYPE, SUM, Categorical, FeatureSpec

_SAMPLES, _SAMPLE_BYTES = 16, 4096  # samples of each file, evenly spaced, including its first and last bytes


def digest(spec: FeatureSpec, values: Iterable[Any], files: Iterable[Path] = ()) -> str:
    """Hash the features, the given values, and the sizes and samples of files; it takes milliseconds whatever the size of the files."""
    found = hashlib.blake2b(digest_size=16)
    features = [_described(feature) for feature in spec.as_stated or spec.categorical]
    described = features, spec.numerical, spec.label, tuple(values), *_other_columns(spec)
    found.update(repr(described).encode())
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found.update(str(size).encode())
            for i in range(_SAMPLES):
                found.update(os.pread(file.fileno(), _SAMPLE_BYTES, max(size - _SAMPLE_BYTES, 0) * i // (_SAMPLES - 1)))
    return found.hexdigest()


def _described(feature: Categorical) -> tuple:
    """Return the hashed fields of a feature; defaults of newer fields are left out, so that the digests of older checkpoints stay valid."""
    values = (feature.name, feature.cardinality, feature.dtype, feature.alpha)
    others = (feature.hotness, feature.pooling, feature.table, feature.embedding_dim)
    described = values if others == (1, SUM, None, None) else (*values, *others)
    return (*described, "weights") if feature.weights else described


def _other_columns(spec: FeatureSpec) -> tuple:
    """Return the hashed types of numericals, group and weight; empty for float16 without these, as in the digests of older checkpoints."""
    dtype = () if spec.numerical_dtype == NUMERICAL_DTYPE else (spec.numerical_dtype,)
    return (*dtype, *(word for name, channel in spec.beside().items() for word in (channel, name, spec.dtypes[name])))
