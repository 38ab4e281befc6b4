"""Which values a dataset's ids stand for, in few bytes, so that a model's rows are never taken for those of other values.

Preprocessing leaves `vocabulary/FEATURE.parquet` (value, id, count; in the order of the ids) beside the data. A checkpoint keeps the file, how many
values there were, and a digest of them. A dataset fits where its vocabulary begins with the same values: what is new comes behind.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.contract import VOCABULARY, DatasetError, stored_vocabulary
from dataloading.feature_spec import Categorical, FeatureSpec
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.zarr_store import file_of
from utils.config.config import Config
from utils.config.options import TRAIN
from utils.forks import POLARS, check_threads

RECORD = "vocabularies"  # in a checkpoint's manifest
_BLOCK = 1 << 20  # values in memory at a time


@dataclass(frozen=True)
class Vocabulary:
    """How many values there are, and a digest of them in the order of their ids; whether numbers are stored in 32 or 64 bits is all the same."""

    values: int
    digest: str


def check_vocabularies(
    config: Config, spec: FeatureSpec, checkpoint: Checkpoint | None, warn: Callable[[str], None], *, goes_on: bool
) -> dict[str, dict[str, Any]]:
    """Compare the dataset's vocabularies with those that a checkpoint was trained with.

    Takes a second for each 25 million values: a small part of the time to read the table of which they name the rows.

    Args:
        config: of the run.
        spec: of the dataset.
        checkpoint: what is restored; its features are known to be those of the dataset.
        warn: is told of what cannot be compared.
        goes_on: whether the run goes on with the very rows that the checkpoint was trained on.

    Returns:
        what the run's own checkpoints keep, by feature; empty where it writes none.

    Raises:
        DatasetError: an id of a feature stands for another value than in the checkpoint, or a vocabulary cannot be read.
    """
    known = checkpoint.manifest.get(RECORD, {}) if checkpoint else {}
    writes = config.run.mode == TRAIN and config.training.save_checkpoint_path is not None
    files = {feature: path for feature in spec.categorical if (path := vocabulary_file(config, spec, feature.name))}
    found = {}
    for feature, path in files.items():
        if feature.name in known or writes:
            found[feature.name] = asdict(_checked(feature, path, known.get(feature.name), checkpoint))
    if checkpoint:
        _warn_of_unknown(checkpoint, known, [feature.name for feature in files], config.training.allow_growth, warn)
    if not writes:
        return {}
    return {**(known if goes_on else {}), **found}


def record(spec: FeatureSpec) -> dict[str, dict[str, Any]]:
    """What a checkpoint keeps of a stored dataset's vocabularies. Raises DatasetError where one cannot be read."""
    files = {feature: stored_vocabulary(spec, feature.name) for feature in spec.categorical}
    return {feature.name: asdict(_checked(feature, path, None, None)) for feature, path in files.items() if path}


def vocabulary_file(config: Config, spec: FeatureSpec, feature: str) -> Path | None:
    """Where a feature's values stand; None for ready ids and for synthetic data."""
    return stored_vocabulary(spec, feature) if config.data.dataset_type != "synthetic" else None


def kept_file(feature: str) -> str:
    """Where a step of a checkpoint keeps a feature's vocabulary."""
    return f"{file_of(f'{VOCABULARY}/{feature}')}.parquet"


def vocabulary_files(config: Config, spec: FeatureSpec, recorded: Iterable[str], checkpoint: Checkpoint | None) -> dict[str, Path]:
    """The vocabularies that a run's checkpoints keep: where each lies now, by `kept_file`.

    Args:
        config: of the run.
        spec: of the dataset.
        recorded: the features that `check_vocabularies` gave.
        checkpoint: what is restored; it has those that the dataset lacks.
    """
    found = {}
    for name in recorded:
        path = vocabulary_file(config, spec, name) or (checkpoint and checkpoint.folder / kept_file(name))
        if path and os.path.isfile(path):
            found[kept_file(name)] = path
    return found


def _checked(feature: Categorical, path: Path, known: Mapping[str, Any] | None, checkpoint: Checkpoint | None) -> Vocabulary:
    vocabulary, beginning = read_vocabulary(path, known["values"] if known else 0, feature.cardinality)
    if known is None:
        return vocabulary
    mend = "use a dataset whose vocabulary is the checkpoint's or begins with it; such a model cannot go on with ids numbered anew"
    if vocabulary.values < known["values"]:
        raise DatasetError(
            f"feature {feature.name}: {path} has {vocabulary.values:,} values, {checkpoint.folder} was trained with {known['values']:,}; {mend}"
        )
    if beginning.digest != known["digest"]:
        raise DatasetError(
            f"feature {feature.name}: the first {known['values']:,} values of {path}, in the order of the ids, are not those that "
            f"{checkpoint.folder} was trained with, so its rows belong to other values; {mend}"
        )
    return vocabulary


def _warn_of_unknown(checkpoint: Checkpoint, known: Mapping[str, Any], stored: list[str], growth: bool, warn: Callable[[str], None]) -> None:
    trained = checkpoint.manifest["features"]["categorical"]
    lost = [name for name in known if name not in stored]
    if lost:
        warn(
            f"{_listed(lost)}: the dataset has no vocabulary/FEATURE.parquet, so whether ids mean what they meant in {checkpoint.folder} is not known"
        )
    elif growth and (unknown := [name for name in trained if name not in known]):
        warn(f"--allow_growth: {_listed(unknown)}: {checkpoint.folder} does not say what its ids stand for; see that the dataset's mean the same")


def _listed(names: list[str]) -> str:
    return f"feature{'s' if len(names) > 1 else ''} {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"


def read_vocabulary(path: Path, first: int, cardinality: int, block: int = _BLOCK) -> tuple[Vocabulary, Vocabulary]:
    """A vocabulary, and what it would be with its `first` values only (all where it has fewer).

    Raises:
        DatasetError: the file cannot be read, is not in the order of the ids, or has an id beyond the cardinality.
    """
    digest, beginning, next_id = _Digest(), None, 0
    for values, ids in _blocks(path, block):
        next_id = next_id if digest.count else int(ids[0])
        _check_order(path, ids, next_id, digest.count)
        if beginning is None and first <= digest.count + len(ids):
            head = first - digest.count
            digest.add(values[:head], next_id)
            beginning = digest.vocabulary()
            values, next_id = values[head:], next_id + head
        digest.add(values, next_id)
        next_id += len(values)
    if next_id > cardinality:
        raise DatasetError(f"{path}: id {next_id - 1} is not in [0, {cardinality}), the feature's ids: it is another dataset's; remove or replace it")
    whole = digest.vocabulary()
    return whole, beginning or whole


def _check_order(path: Path, ids: np.ndarray, first: int, row: int) -> None:
    wrong = np.flatnonzero(ids != np.arange(first, first + len(ids)))
    if first < 0 or len(wrong):
        place = int(wrong[0]) if len(wrong) else 0
        raise DatasetError(f"{path}: row {row + place}: id {ids[place]}; expected ids that rise by 1 from row to row")


class _Digest:
    """Of numbers or texts and the id of the first one, whatever the blocks they come in."""

    def __init__(self):
        self.count = 0
        self._bytes, self._lengths = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    def add(self, values: Any, first_id: int) -> None:
        """Add a block of values, the first of which has the given id."""
        if self.count == 0 and len(values):
            self._lengths.update(f"{values.dtype} from {first_id} ".encode())
        self.count += len(values)
        if values.dtype.is_integer():
            self._bytes.update(np.ascontiguousarray(values.to_numpy()).data)
        else:  # where one text ends and the next begins is not in their bytes
            self._lengths.update(np.ascontiguousarray(values.str.len_bytes().to_numpy(), np.uint64).data)
            self._bytes.update("".join(values.to_list()).encode())

    def vocabulary(self) -> Vocabulary:
        """What was added so far."""
        both = self._bytes.digest() + self._lengths.digest()
        return Vocabulary(self.count, hashlib.blake2b(both, digest_size=16).hexdigest())


def _blocks(path: Path, size: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Values, a Polars series of Int64 or String, and ids, block by block."""
    check_threads(POLARS)
    import polars as pl  # where there is a vocabulary; --help needs none of it

    try:
        frame = pl.scan_parquet(path, glob=False).select("value", "id")
        kind = frame.collect_schema()["value"]
        if not (kind.is_integer() or kind == pl.String):
            raise DatasetError(f"{path}: the values are {kind}; expected whole numbers or texts")
        for block in frame.collect_batches(chunk_size=size, maintain_order=True, engine="streaming"):
            if any(block.null_count().row(0)):
                raise DatasetError(f"{path}: holds a value or an id that is missing; expected one of each in every row")
            if not len(block):
                continue
            values = block["value"]
            if kind.is_integer():
                values = values.reinterpret(signed=True) if kind == pl.UInt64 else values.cast(pl.Int64)
            yield values, block["id"].cast(pl.Int64).to_numpy()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DatasetError(f"{path}: cannot be read as a vocabulary (value, id, count): {' '.join(str(error).split())[:200]}") from None
