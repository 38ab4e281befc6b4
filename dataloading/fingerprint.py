"""A fingerprint of a dataset: whether a run goes on with the rows it began with."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dataloading.feature_spec import NUMERICAL_DTYPE, SUM, Categorical, FeatureSpec

_SAMPLES, _SAMPLE_BYTES = 16, 4096  # of each file, evenly spread, the first and the last among them


def digest(spec: FeatureSpec, values: Iterable[Any], files: Iterable[Path] = ()) -> str:
    """A hash of the features, of some values, and of sizes and samples of files: milliseconds, whatever their size."""
    found = hashlib.blake2b(digest_size=16)
    features = [_described(feature) for feature in spec.categorical]
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
    """Of one id a sample and a table of its own what it was before there were others: the digests of older checkpoints stay."""
    values = (feature.name, feature.cardinality, feature.dtype, feature.alpha)
    others = (feature.hotness, feature.pooling, feature.table, feature.embedding_dim)
    return values if others == (1, SUM, None, None) else (*values, *others)


def _other_columns(spec: FeatureSpec) -> tuple:
    """Nothing for float16 numericals and no group, as before there was anything else."""
    dtype = () if spec.numerical_dtype == NUMERICAL_DTYPE else (spec.numerical_dtype,)
    return dtype if spec.group is None else (*dtype, "group", spec.group, spec.group_dtype)
