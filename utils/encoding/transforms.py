"""The transforms of raw values that a dataset records: `metadata.transforms` of its specification, a word or a mapping for each feature."""

from collections.abc import Iterable, Mapping
from typing import Any

NAME = "transforms"
HEXADECIMAL = "hexadecimal"  # a categorical feature: up to 8 hexadecimal digits, mapped to ids by the feature's vocabulary
TABLE = "table"  # metadata.source of datasets by `preproc.table`: they have a mapping for each feature (`recipe`), others a word
_CRITEO = "criteo"


def criteo_transforms(numerical: Iterable[str], categorical: Iterable[str], transform: str) -> dict[str, str]:
    """Return the transforms of a dataset that `preproc.criteo` writes; `transform` is its `--numerical_transform`."""
    return dict.fromkeys(numerical, transform) | dict.fromkeys(categorical, HEXADECIMAL)


def transforms_of(metadata: Mapping[str, Any], numerical: Iterable[str], categorical: Iterable[str]) -> Any:
    """Return the transforms in a dataset's metadata.

    Older versions of `preproc.criteo` did not record them; for their datasets they follow from other entries of the metadata.
    """
    if NAME not in metadata and metadata.get("source") == _CRITEO and isinstance(metadata.get("numerical_transform"), str):
        return criteo_transforms(numerical, categorical, metadata["numerical_transform"])
    return metadata.get(NAME, {})
