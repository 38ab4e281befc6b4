"""A specification with weights, for tests."""

from dataloading.feature_spec import FeatureSpec


def weighted_spec(categorical, num_numerical, numerical_dtype="float16") -> FeatureSpec:
    """Return a specification with a weight of each row, named "heft"."""
    numerical = tuple(f"num_{i}" for i in range(num_numerical))
    dtypes = {one.name: one.dtype for one in categorical} | dict.fromkeys(numerical, numerical_dtype) | {"label": "bool", "heft": "float32"}
    return FeatureSpec(tuple(categorical), numerical, "label", dtypes, weight="heft")
