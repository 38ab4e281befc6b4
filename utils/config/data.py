"""The options of a run's data."""

from dataclasses import dataclass

from utils.config.option import FROM_0, INHERIT, MODEL, MUST_EQUAL, WITH_WEIGHTS, Bounds, check, check_options, option
from utils.config.options import AS_IS, MAX_SIZE, PLAN, RECALIBRATE, REWEIGH, SIZE, TRAIN
from utils.config.per_feature import check_hotness

TFRECORD, SPLIT_TFRECORDS, PARQUET = "tfrecord", "split_tfrecords", "parquet"


@dataclass(frozen=True)
class DataConfig:
    """Data."""

    dataset_path: str | None = option(None, "folder of the dataset", pytorch=("dataset",))
    feature_spec: str = option("feature_spec.yaml", "name of the feature specification in the dataset's folder", wide_and_deep=("fspec_file",))
    dataset_type: str = option(
        "tf_raw",
        "tf_raw; pre-batched TFRecords (tfrecord) or Parquet files (parquet) of NVIDIA's Wide & Deep; TFRecords of its DLRM (split_tfrecords); "
        "split: files as tf_raw with model_size.json instead of a specification (NVIDIA's DLRM for PyTorch); synthetic: data drawn on the fly",
        choices=("tf_raw", TFRECORD, SPLIT_TFRECORDS, PARQUET, "split", "synthetic"),
    )
    train_data_pattern: tuple[str, ...] = option((), "patterns of TFRecord files to train on, in place of --dataset_path")
    eval_data_pattern: tuple[str, ...] = option((), "patterns of TFRecord files to evaluate on, in place of --dataset_path")
    batch_size: int = option(
        65536,
        "global training batch, over all workers",
        unit="samples",
        modes=(TRAIN, PLAN),
        resume=MUST_EQUAL,
        bounds=SIZE,
        wide_and_deep=("global_batch_size",),
    )
    valid_batch_size: int = option(
        65536,
        "global batch of evaluation, inference and prediction",
        wide_and_deep=("eval_batch_size",),
        unit="samples",
        resume=INHERIT,
        in_scores=True,
        pytorch=("test_batch_size",),
        bounds=SIZE,
    )
    shuffle_batch_order: bool = option(
        False,
        "visit the training batches, or the windows of --shuffle_window, in another random order each epoch",
        modes=(TRAIN,),
        resume=MUST_EQUAL,
        pytorch=("shuffle",),
    )
    shuffle_window: int | None = option(
        None,
        "shuffle the training rows within windows of so many batches, which are held in memory",
        unit="batches",
        modes=(TRAIN,),
        resume=MUST_EQUAL,
        bounds=Bounds("at least 1 batch", 1, MAX_SIZE),
    )
    out_of_range: str = option(
        "error",
        "treatment of ids outside their table: error; clip: take the nearest row; hash: take the id modulo the rows. The log counts the ids changed",
        choices=("error", "clip", "hash"),
        resume=WITH_WEIGHTS,
    )
    max_table_size: int | None = option(
        None,
        "maximum rows of a table; a larger cardinality needs --out_of_range hash",
        unit="rows",
        resume=MODEL,
        bounds=Bounds("at least 1 row", 1),
    )
    valid_fraction: float = option(
        0.0,
        "fraction of the training rows, the last ones, to hold out for choosing the best model and the end of training",
        modes=(TRAIN, PLAN),
        resume=INHERIT,
        bounds=Bounds("0 or more and below 1", 0, 1, below=True),
    )
    dataset_subset: float | None = option(
        None,
        "fraction of the training rows, the first ones, to train on, after --valid_fraction has held out its rows",
        modes=(TRAIN, PLAN),
        resume=INHERIT,
        bounds=Bounds("above 0 and at most 1", 0, 1, above=True),
    )
    negatives: str = option(
        RECALIBRATE,
        "where the dataset states the rate at which negatives were kept: recalibrate sets --logit_shift, reweigh counts each negative 1/rate times "
        "in the loss, as_is does neither",
        choices=(RECALIBRATE, REWEIGH, AS_IS),
        modes=(TRAIN,),
        resume=MUST_EQUAL,
    )
    synthetic_dataset_train_batches: int = option(
        64008,
        "training batches of --dataset_type synthetic",
        unit="batches",
        modes=(TRAIN, PLAN),
        resume=INHERIT,
        needs="dataset_type synthetic",
        bounds=SIZE,
    )
    synthetic_dataset_valid_batches: int = option(
        1350, "evaluation batches of --dataset_type synthetic", unit="batches", resume=INHERIT, needs="dataset_type synthetic", bounds=SIZE
    )
    synthetic_dataset_dir: str | None = option(
        None, "folder to store the synthetic dataset in; written at the start unless it holds the same one", needs="dataset_type synthetic"
    )
    synthetic_dataset_cardinalities: tuple[int, ...] = option(
        (1000,) * 26, "rows of each table of --dataset_type synthetic", unit="rows", resume=INHERIT, pytorch=("synthetic_dataset_table_sizes",)
    )
    synthetic_dataset_hotness: tuple[int, ...] = option(
        (1,),
        "ids per sample of each categorical feature of --dataset_type synthetic, or one number for all; at most the rows of its table",
        resume=INHERIT,
    )
    synthetic_dataset_num_numerical_features: int = option(
        13,
        "numerical features of --dataset_type synthetic",
        resume=INHERIT,
        pytorch=("synthetic_dataset_numerical_features", "num_numerical_features"),
        bounds=FROM_0,
    )
    synthetic_dataset_use_feature_spec: bool = option(
        False,
        "take features and cardinalities of --dataset_type synthetic from --dataset_path/--feature_spec",
        resume=INHERIT,
        needs="dataset_type synthetic",
    )

    def __post_init__(self):
        check_options(self)
        check(not self.patterns or self.dataset_type == TFRECORD, "dataset_type", self.dataset_type, f"{TFRECORD} with file patterns")
        cardinalities = self.synthetic_dataset_cardinalities
        check(len(cardinalities) > 0 and min(cardinalities) >= 1, "synthetic_dataset_cardinalities", cardinalities, "one or more positive numbers")
        check_hotness(self.synthetic_dataset_hotness, cardinalities, self.synthetic_dataset_use_feature_spec)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """The file patterns by split, for splits that are given by patterns."""
        given = {"train": self.train_data_pattern, "test": self.eval_data_pattern}
        return {split: patterns for split, patterns in given.items() if patterns}

    @property
    def places(self) -> tuple[str, ...]:
        """The dataset's folder, or the patterns of its files; empty for data that is drawn."""
        return (self.dataset_path,) if self.dataset_path else (*self.train_data_pattern, *self.eval_data_pattern)
