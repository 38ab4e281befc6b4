"""The dataset that the options name: stored or drawn."""

from pathlib import Path

from dataloading.batches import Split
from dataloading.contract import DatasetError
from dataloading.feature_spec import FeatureSpec, generator_spec
from dataloading.synthetic import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from utils.config import DataConfig

SYNTHETIC_ALPHA = 1.45  # the power law of the criteo_*_synthetic variants


def read_spec(config: DataConfig) -> FeatureSpec:
    """The feature specification of the data. Raises FeatureSpecError."""
    if config.dataset_type == "synthetic" and not config.synthetic_dataset_use_feature_spec:
        return generator_spec(config.synthetic_dataset_cardinalities, config.synthetic_dataset_num_numerical_features, SYNTHETIC_ALPHA)
    return FeatureSpec.from_yaml(Path(config.dataset_path or ".") / config.feature_spec)


def open_split(config: DataConfig, spec: FeatureSpec, split: str, seed: int) -> Split:
    """A split, its files checked (`contract.check_quick`) but not opened yet. Raises DatasetError."""
    if config.dataset_type == "tf_raw":
        return TfRawSplit(spec, split)
    batches, batch_size = config.synthetic_dataset_valid_batches, config.valid_batch_size
    if split == "train":
        batches, batch_size = config.synthetic_dataset_train_batches, config.batch_size
    return SyntheticSplit(spec, split, batches * batch_size, seed)


def table_rows(config: DataConfig, spec: FeatureSpec) -> tuple[int, ...]:
    """Rows of each feature's table: its cardinality, at most `--max_table_size`.

    Raises:
        DatasetError: a table would be smaller than its cardinality without `--hash_indices`.
    """
    limit = config.max_table_size
    for feature in spec.categorical:
        if limit is not None and feature.cardinality > limit and not config.hash_indices:
            raise DatasetError(
                f"feature {feature.name}: ids below {feature.cardinality} do not fit a table of --max_table_size {limit} rows; add --hash_indices"
            )
    return tuple(min(feature.cardinality, limit or feature.cardinality) for feature in spec.categorical)
