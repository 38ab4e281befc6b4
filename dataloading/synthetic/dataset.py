"""Synthetic data written as a tf_raw dataset from its parameters alone, and kept where a folder holds it already."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataloading.blocks import drawn_blocks
from dataloading.contract import bytes_per_sample, check_quick
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import DatasetError
from dataloading.synthetic.planted_signal import DEFAULT_SIGNAL
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter, refuse_replacing
from dataloading.transcribe import generator_metadata, write_split
from utils.memory import check_room

_BLOCK_ROWS = 1 << 16
_DIR = "--synthetic_dataset_dir"


@dataclass(frozen=True)
class SyntheticDataset:
    """The parameters of a synthetic dataset, which determine every byte of it.

    Attributes:
        spec: the features; its sources have no effect.
        rows: rows of each split.
        seed: seed of all random numbers.
    """

    spec: FeatureSpec
    rows: Mapping[str, int]
    seed: int

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return sum(self.rows.values()) * sum(bytes_per_sample(self.spec.as_tf_raw(self.rows)).values())


def write_dataset(folder: Path, dataset: SyntheticDataset, overwrite: bool = False, keep: bool = False) -> bool:
    """Write a dataset, complete or not at all.

    Args:
        folder: the folder; created if missing.
        dataset: the parameters.
        overwrite: replace a dataset in the folder.
        keep: keep a dataset in the folder that has the same parameters, instead of refusing the folder.

    Returns:
        True if the dataset was written; False if the one in the folder was kept.

    Raises:
        DatasetError: the folder holds a dataset that is neither replaced nor kept; with `keep`, the message names the difference.
        FeatureSpecError: synthetic data cannot have these features.
        UserError: the disk is too full.
    """
    if keep and (folder / DEFAULT_FILE_NAME).exists():
        if found := difference(folder, dataset):
            raise DatasetError(f"{folder}: holds another dataset: {found}; choose another folder ({_DIR}), or remove that dataset")
        return False
    refuse_replacing(folder, DEFAULT_FILE_NAME, () if keep else dataset.rows, overwrite)
    if keep and (used := next((name for name in dataset.rows if (folder / name).exists()), None)):
        raise DatasetError(f"{folder / used}: exists, and {folder} holds no dataset; choose another folder ({_DIR}), or remove what is there")
    splits = {name: SyntheticSplit(dataset.spec, name, rows, dataset.seed, DEFAULT_SIGNAL) for name, rows in dataset.rows.items()}
    check_room(folder, dataset.bytes, _DIR)
    with TfRawWriter(folder, dataset.spec, tuple(splits), overwrite=overwrite) as writer:
        statistics = {
            name: write_split(writer, name, drawn_blocks(split, min(_BLOCK_ROWS, split.num_samples)), split.num_samples)
            for name, split in splits.items()
        }
        writer.publish(generator_metadata(dataset.spec, dataset.seed, DEFAULT_SIGNAL, statistics))
    return True


def difference(folder: Path, dataset: SyntheticDataset) -> str:
    """Return the first difference between the dataset in a folder and one with these parameters; an empty text if there is none.

    Raises:
        FeatureSpecError, DatasetError: the dataset in the folder is damaged.
    """
    there = FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME, _DIR)
    expected = dataset.spec.as_tf_raw(dataset.rows, generator_metadata(dataset.spec, dataset.seed, DEFAULT_SIGNAL, {}))
    rows = check_quick(there, tuple(there.sources)) if there.sources else {}
    if not isinstance(there.metadata.get("generator"), dict):
        return f"{folder / DEFAULT_FILE_NAME} does not name a generator, so its rows were not drawn by this program"
    for (what, found), (_, wanted) in zip(_facts(there, rows), _facts(expected, dataset.rows), strict=True):
        if found != wanted:
            return f"{what} {_shown(found)}, expected {_shown(wanted)}"
    return ""


def _facts(spec: FeatureSpec, rows: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """Yield what distinguishes synthetic datasets, each with its name for messages."""
    generator = spec.metadata["generator"]
    yield "table sizes", list(spec.cardinalities)
    yield "numerical features", len(spec.numerical)
    yield "names", [*(feature.name for feature in spec.categorical), *spec.numerical, spec.label, spec.group, *([spec.weight] if spec.weight else [])]
    yield "hotness", list(spec.hotness)
    yield "categorical features", [str(feature) for feature in spec.categorical]
    yield "type of the numerical features", spec.numerical_dtype
    yield "rows", dict(rows)
    for name in ("seed", "signal", "alpha"):
        yield name, generator.get(name)


def _shown(value: Any) -> str:
    text = ", ".join(f"{name} {count:,}" for name, count in value.items()) if isinstance(value, dict) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
