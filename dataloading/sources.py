"""Opening of the dataset that the options name, stored or synthetic."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dataloading.batches import Split
from dataloading.contract import PARQUET, SPLIT, TFRECORD, TFRECORDS
from dataloading.feature_spec import SPLITS, FeatureSpec, FeatureSpecError, generator_spec
from dataloading.features import DatasetError
from dataloading.parquet.spec import parquet_spec, with_usual_widths
from dataloading.parquet.split import ParquetSplit
from dataloading.ranges import HASH
from dataloading.row_range import first_rows, hold_out
from dataloading.spec_parsing import check_tables
from dataloading.split_dataset import SIZES, split_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from dataloading.tfrecord.batch_folders import batch_spec
from dataloading.tfrecord.batch_split import BatchRecordSplit
from dataloading.tfrecord.spec import pattern_spec, tfrecord_spec
from dataloading.tfrecord.split import TfRecordSplit
from utils.config.data import DataConfig
from utils.config.options import TrainingConfig
from utils.config.per_feature import FeatureConfig
from utils.config.ranking import RankingConfig

Warn = Callable[[str], None]
_READERS = {TFRECORD: TfRecordSplit, TFRECORDS: BatchRecordSplit, PARQUET: ParquetSplit}
AS_STATED = FeatureConfig()  # overrules nothing
_WEIGHTS_AT_ONCE = 1 << 20  # rows
SYNTHETIC_ALPHA = 1.45  # the power law of the criteo_*_synthetic variants


def read_spec(config: DataConfig, features: FeatureConfig = AS_STATED, widths_open: bool = False) -> FeatureSpec:
    """Load the feature specification of the data, with the widths and the pooling that options give in place of its own.

    A folder without one that holds `model_size.json` is a dataset of NVIDIA's DLRM for PyTorch, of type `split`.

    Args:
        config: options of the data.
        features: options that overrule the specification.
        widths_open: neither a flag nor a checkpoint sets the widths of the tables, so that Parquet files of NVIDIA's Outbrain data have NVIDIA's.

    Raises:
        FeatureSpecError, DatasetError: the specification is missing or invalid, the files that it follows from are, or the options do not fit it.
    """
    spec = _stated(config)
    found = _overruled(with_usual_widths(spec) if widths_open and config.dataset_type == PARQUET else spec, features)
    return found if found == spec else replace(found, as_stated=spec.categorical)


def _stated(config: DataConfig) -> FeatureSpec:
    if config.dataset_type == "synthetic" and not config.synthetic_dataset_use_feature_spec:
        rows, num_numerical = config.synthetic_dataset_cardinalities, config.synthetic_dataset_num_numerical_features
        return generator_spec(rows, num_numerical, SYNTHETIC_ALPHA, hotness=config.synthetic_dataset_hotness)
    if config.patterns:
        return pattern_spec(config.patterns)
    folder = Path(config.dataset_path or ".")
    path = folder / config.feature_spec
    if config.dataset_type == TFRECORD:
        return tfrecord_spec(folder, config.feature_spec)
    if config.dataset_type == PARQUET:
        return parquet_spec(folder, config.feature_spec)
    if config.dataset_type == TFRECORDS:
        return batch_spec(FeatureSpec.from_yaml(path))
    if config.dataset_type == SPLIT or (config.dataset_type == "tf_raw" and not path.exists() and (folder / SIZES).is_file()):
        return split_spec(folder)
    return FeatureSpec.from_yaml(path)


def _overruled(spec: FeatureSpec, features: FeatureConfig) -> FeatureSpec:
    """Return the specification with the widths and the pooling that options give in place of its own."""
    categorical, file = spec.categorical, features.embedding_sizes_file
    try:
        widths = features.widths()
    except ValueError as error:
        raise FeatureSpecError(str(error)) from None
    if widths is not None:
        if missing := [feature.name for feature in categorical if feature.name not in widths]:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise FeatureSpecError(f"--embedding_sizes_file {file}: no width for feature {missing[0]}{more} of {spec.path or 'the data'}; add it")
        categorical = tuple(replace(feature, embedding_dim=widths[feature.name]) for feature in categorical)
        check_tables(categorical, f"--embedding_sizes_file {file}: ")
    if features.combiner is not None:
        categorical = tuple(replace(feature, pooling=features.combiner) if feature.hotness > 1 else feature for feature in categorical)
    return replace(spec, categorical=categorical)


def open_split(config: DataConfig, spec: FeatureSpec, split: str, seed: int, warn: Warn, labels: bool = True) -> Split:
    """Return a split. The files of a tf_raw split are checked (`contract.check_quick`) but not opened yet.

    Args:
        config: options of the data.
        spec: the features.
        split: name of the split.
        seed: seed of synthetic data.
        warn: called with a line about records that are not read, or not read at their best.
        labels: whether labels are needed.

    Raises:
        DatasetError: the files are damaged, or labels are needed and the split has none.
    """
    if config.dataset_type != "synthetic":
        found = _READERS.get(config.dataset_type, TfRawSplit)(spec, split)
        if isinstance(found, BatchRecordSplit):
            for line in found.notes(config.batch_size if split == "train" else config.valid_batch_size):
                warn(line)
        if labels and not found.labelled:
            raise DatasetError(
                f"{spec.path}: source_spec.{split} has no chunk of the label {spec.label}, so the split is for prediction only; use "
                f"--mode predict --split {split}"
            )
        return found
    if split not in SPLITS:
        raise DatasetError(f"--split {split}: synthetic data has the splits {', '.join(SPLITS)}")
    batches, batch_size = config.synthetic_dataset_valid_batches, config.valid_batch_size
    if split == "train":
        batches, batch_size = config.synthetic_dataset_train_batches, config.batch_size
    return SyntheticSplit(spec, split, batches * batch_size, seed)


def open_training_splits(config: DataConfig, spec: FeatureSpec, seed: int, warn: Warn) -> dict[str, Split]:
    """Open the splits of a training run: `train`, `test` if there is one, and `valid` if the dataset has one or `--valid_fraction` holds one out.

    A `test` or `valid` split without labels is skipped with a warning, because it cannot be evaluated.

    `--dataset_subset` keeps only the first training rows.

    Raises:
        DatasetError: the files of a split are damaged, or no rows would be left to train on.
    """
    stored = config.dataset_type != "synthetic"
    names = ["train"] + [name for name in ("valid", "test") if not stored or spec.sources is None or _evaluates(spec, name, warn)]
    if not stored:
        names.remove("valid")
    if config.valid_fraction and "valid" in names:
        raise DatasetError(f"{spec.path}: has a valid split, so --valid_fraction {config.valid_fraction} cannot hold out another; drop the flag")
    splits = {name: open_split(config, spec, name, seed, warn) for name in names}
    if config.valid_fraction:
        if isinstance(splits["train"], ParquetSplit):
            splits["train"].check_grouped(f"--valid_fraction {config.valid_fraction}")
        splits["train"], splits["valid"] = hold_out(splits["train"], config.valid_fraction)
    if config.dataset_subset is not None:
        splits["train"] = first_rows(splits["train"], config.dataset_subset)
    for split in splits.values():
        check_weighs(split)
    return splits


def check_weighs(split: Split) -> None:
    """Raise DatasetError where the rows of a split have weights and all are 0; rows are read up to the first one with a weight."""
    if split.spec.weight is None or not split.labelled:
        return
    for start in range(0, split.num_samples, _WEIGHTS_AT_ONCE):
        if split.read_weights(start, min(start + _WEIGHTS_AT_ONCE, split.num_samples)).any():
            return
    where = split.file(split.spec.weight)
    raise DatasetError(
        f"{where and where + ': '}feature {split.spec.weight}: all {split.num_samples:,} weights of {split.name} are 0; expected some above 0"
    )


def _evaluates(spec: FeatureSpec, split: str, warn: Warn) -> bool:
    if split in spec.sources and not spec.labelled(split):
        warn(f"{spec.path}: the {split} split has no labels and is skipped; score it with --mode predict --split {split}")
    return split in spec.sources and spec.labelled(split)


def check_evaluated(splits: Mapping[str, Split], spec: FeatureSpec, options: TrainingConfig) -> None:
    """Raise DatasetError where the options depend on evaluations and there are no rows to evaluate."""
    if options.need_evaluations and not {"valid", "test"} & set(splits):
        flag = options.need_evaluations[0]
        raise DatasetError(f"{flag} needs rows to evaluate: {spec.path} has no valid and no test split; add --valid_fraction, or drop {flag}")


def check_grouped(options: RankingConfig, mode: str, spec: FeatureSpec) -> None:
    """Raise DatasetError where the options request metrics by group, in a mode that has them, and the rows have no groups."""
    needing = options.need_groups(mode)
    if needing and spec.group is None:
        flag, data = needing[0], spec.path or "the synthetic data"
        raise DatasetError(f"{flag} needs groups: {data} has none; name their column in channel_spec under group, or drop {flag.split()[0]}")


def table_rows(config: DataConfig, spec: FeatureSpec) -> tuple[int, ...]:
    """Return the rows of each feature's table: its cardinality, at most `--max_table_size`.

    Raises:
        DatasetError: a table would be smaller than its cardinality without `--out_of_range hash`.
    """
    limit = config.max_table_size
    for feature in spec.categorical:
        if limit is not None and feature.cardinality > limit and not config.out_of_range == HASH:
            raise DatasetError(
                f"feature {feature.name}: ids below {feature.cardinality} do not fit --max_table_size {limit} rows; add --out_of_range hash"
            )
    return tuple(min(feature.cardinality, limit or feature.cardinality) for feature in spec.categorical)
