"""Vocabularies of another dataset: used as they are, or extended by new values behind the old ones, whose ids stay."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from dataloading.contract import stored_vocabulary
from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from dataloading.vocabulary import read_vocabulary
from utils.encoding.vocabulary import build_vocabulary

_COLUMNS = {"value": pl.UInt32, "id": pl.Int32, "count": pl.UInt32}


@dataclass(frozen=True)
class KnownVocabularies:
    """The vocabularies that `preproc.criteo` wrote with a dataset.

    Attributes:
        spec: specification of that dataset.
    """

    spec: FeatureSpec

    @property
    def numerical_transform(self) -> str:
        """The transform that the dataset applied to the integers."""
        return self.spec.metadata["numerical_transform"]

    def read(self, feature: str) -> pl.DataFrame:
        """Read a feature's `value`, `id` and `count`, in the order of the ids. Raises DatasetError where the file is damaged."""
        return self.scan(feature).collect()

    def scan(self, feature: str) -> pl.LazyFrame:
        """Check a feature's vocabulary and return it as a lazy frame; otherwise the same as `read`."""
        path, rows = _path(self.spec, feature), self.rows(feature)
        read_vocabulary(path, 0, rows + 1)
        found = pl.scan_parquet(path, glob=False)
        first = found.head(1).collect()
        if dict(first.schema) != _COLUMNS or found.select(pl.len()).collect().item() != rows or (rows and first["id"][0] != 1):
            raise DatasetError(f"{path}: expected {rows:,} values with ids from 1, as preproc.criteo writes them; is it a file of another dataset?")
        return found

    def rows(self, feature: str) -> int:
        """Return the number of values of a feature."""
        return next(known.cardinality for known in self.spec.categorical if known.name == feature) - 1

    def extended(self, feature: str, values: pl.LazyFrame, threshold: int) -> pl.DataFrame:
        """Extend a feature's vocabulary by the new values of another dataset.

        Args:
            feature: its name.
            values: values of the days from which dictionaries are made: one UInt32 column with null for missing.
            threshold: the least number of occurrences of a new value.

        Returns:
            the old values, followed by the new ones by falling frequency, equal counts by rising value. The count of an old
            value is the sum over both datasets, at most 2^32 - 1.
        """
        old = self.read(feature)
        counts = build_vocabulary(values, 0).drop("id")
        seen = old.join(counts.rename({"count": "again"}), on="value", how="left", maintain_order="left")
        total = pl.col("count").cast(pl.UInt64) + pl.col("again").fill_null(0).cast(pl.UInt64)
        old = seen.select("value", "id", pl.min_horizontal(total, pl.lit(2**32 - 1, pl.UInt64)).cast(pl.UInt32).alias("count"))
        new = counts.join(old, on="value", how="anti", maintain_order="left").filter(pl.col("count") >= threshold)
        new = new.with_row_index("id", offset=old.height + 1).select("value", pl.col("id").cast(pl.Int32), "count")
        return pl.concat([old, new])


def known_vocabularies(folder: Path, categorical: tuple[str, ...]) -> KnownVocabularies:
    """Open the vocabularies of a dataset that `preproc.criteo` wrote.

    Raises:
        FeatureSpecError, DatasetError: there is no dataset, it has other features, it lacks a vocabulary, or another program made it.
    """
    spec = FeatureSpec.from_yaml(folder / "feature_spec.yaml", "--vocabulary")
    names = tuple(feature.name for feature in spec.categorical)
    if spec.metadata.get("source") != "criteo" or not isinstance(spec.metadata.get("numerical_transform"), str):
        raise DatasetError(f"--vocabulary {folder}: its metadata do not name preproc.criteo; expected a dataset that preproc.criteo wrote")
    if names != categorical:
        raise DatasetError(
            f"--vocabulary {folder}: has {len(names)} categorical features, {names[0]} to {names[-1]}; expected the {len(categorical)} of the logs, "
            f"{categorical[0]} to {categorical[-1]} (--num_categorical)"
        )
    for name in names:
        if stored_vocabulary(spec, name) is None:
            raise DatasetError(f"{_path(spec, name)}: no such file; expected the vocabulary of the feature")
    return KnownVocabularies(spec)


def _path(spec: FeatureSpec, feature: str) -> Path:
    return spec.base_directory / "vocabulary" / f"{feature}.parquet"
