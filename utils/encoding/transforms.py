"""How raw values became a dataset's: `metadata.transforms` of its specification, a word or a mapping for each feature."""

from collections.abc import Iterable, Mapping
from typing import Any

NAME = "transforms"
HEXADECIMAL = "hexadecimal"  # a categorical feature: up to 8 hexadecimal digits, numbered by the feature's vocabulary
TABLE = "table"  # metadata.source of what `preproc.table` writes: a mapping for each feature (`recipe`), where others have a word
_CRITEO = "criteo"


def criteo_transforms(numerical: Iterable[str], categorical: Iterable[str], transform: str) -> dict[str, str]:
    """Of a dataset that `preproc.criteo` writes; `transform` is its `--numerical_transform`."""
    return dict.fromkeys(numerical, transform) | dict.fromkeys(categorical, HEXADECIMAL)


def transforms_of(metadata: Mapping[str, Any], numerical: Iterable[str], categorical: Iterable[str]) -> Any:
    """What a dataset's metadata say; a dataset that `preproc.criteo` wrote before it said so is known by its other entries."""
    if NAME not in metadata and metadata.get("source") == _CRITEO and isinstance(metadata.get("numerical_transform"), str):
        return criteo_transforms(numerical, categorical, metadata["numerical_transform"])
    return metadata.get(NAME, {})
