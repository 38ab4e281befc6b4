"""Datasets that tests have written."""

from pathlib import Path
from typing import Any

import yaml

from dataloading.feature_spec import FeatureSpec

SPEC = "feature_spec.yaml"


def spec_in(folder: Path) -> FeatureSpec:
    """Return the specification of a dataset."""
    return FeatureSpec.from_yaml(folder / SPEC)


def read_yaml(path: Path) -> Any:
    """Return the content of a file of YAML."""
    return yaml.safe_load(path.read_text())
