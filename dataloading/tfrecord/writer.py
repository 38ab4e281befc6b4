"""Writing of TFRecords in the layout of NVIDIA's Wide & Deep (see `spec.py`), for NVIDIA's reader and this project's.

Rows keep their order. A record holds 4,096 rows. NVIDIA's reader takes full records only. The remainder of a split is a shorter last record; if there
are several files, it is alone in the last one.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.contract import TFRECORD
from dataloading.feature_spec import DEFAULT_FILE_NAME, Chunk, FeatureSpec
from dataloading.features import DatasetError
from dataloading.tf_raw import move_in_place, refuse_replacing
from dataloading.tfrecord.example_bytes import encode_example
from dataloading.tfrecord.hidden_folder import InHiddenFolder
from dataloading.tfrecord.spec import FOLDERS, ROWS_PER_RECORD
from utils.naming import naming
from utils.runtime import prepare_tensorflow
from utils.scratch import Scratch, exclusively
from utils.signals import uninterrupted

DEFAULT_FILES = 40
SCHEMA = "transformed_metadata"


class TfRecordWriter(InHiddenFolder):
    """A writer that publishes complete records, or none: the counterpart of `tf_raw.TfRawWriter` for TFRecords.

        with TfRecordWriter(destination, spec, {"train": 60_000, "test": 27_000}) as writer:
            writer.append("train", numerical, ids, labels, groups)
            writer.publish(metadata)

    Raises:
        DatasetError: records cannot hold the features, or the destination holds a dataset already and `overwrite` is not set.
    """

    def __init__(
        self,
        destination: str | Path,
        spec: FeatureSpec,
        rows: Mapping[str, int],
        num_files: int = DEFAULT_FILES,
        spec_name: str = DEFAULT_FILE_NAME,
        overwrite: bool = False,
        unlabelled: Collection[str] = (),
    ):
        """Check the specification and create the hidden folder.

        Args:
            destination: folder of the records.
            spec: the features.
            rows: number of rows of each split.
            num_files: number of files of a split; fewer if it has fewer records.
            spec_name: file name of the specification that is written beside the records.
            overwrite: whether an existing dataset is replaced.
            unlabelled: the splits without labels.
        """
        self._destination, self._spec_name, self._overwrite = Path(destination), spec_name, overwrite
        self.spec = _described(spec, rows, num_files, unlabelled)
        refuse_replacing(self._destination, spec_name, [folder_of(split) for split in rows], overwrite)
        prepare_tensorflow()
        self._rows, self._splits = dict(rows), {}
        self._scratch = Scratch(self._destination, "writing")
        try:
            for split in rows:
                (self.folder / folder_of(split)).mkdir()
        except BaseException:
            self._scratch.remove()
            raise

    def append(
        self,
        split: str,
        numerical: np.ndarray,
        ids: Sequence[np.ndarray],
        labels: np.ndarray | None,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Append rows; see `tf_raw.TfRawWriter.append`. Raises ValueError if there are more rows than announced."""
        columns = dict(zip(self.spec.numerical, np.asarray(numerical, np.float32).T, strict=True))  # float lists have 4 bytes per value
        columns |= {feature.name: column for feature, column in zip(self.spec.categorical, ids, strict=True)}
        if self.spec.labelled(split):
            columns[self.spec.label] = labels
        if self.spec.group is not None:
            columns[self.spec.group] = groups
        if self.spec.weight is not None and self.spec.labelled(split):
            columns[self.spec.weight] = weights
        if split not in self._splits:
            self._splits[split] = _SplitWriter([self.folder / file for file in self.spec.sources[split][0].files], self._rows[split])
        self._splits[split].append(columns)

    def publish(self, metadata: Mapping[str, Any]) -> FeatureSpec:
        """Make the records visible, and return their specification.

        Raises:
            DatasetError: a split has fewer rows than announced, or another run has written a dataset here meanwhile.
        """
        for split, expected in self._rows.items():
            written = self._splits[split].close() if split in self._splits else 0
            if written != expected:
                raise DatasetError(f"nothing was written: split {split} has {written} rows, expected {expected}")
        final = replace(self.spec, metadata=dict(metadata), path=self._destination / self._spec_name)
        schema, partial = self.folder / SCHEMA / "schema.pbtxt", self.folder / self._spec_name
        for path, text in ((schema, schema_text(final)), (partial, final.to_yaml())):
            path.parent.mkdir(exist_ok=True)
            with naming(path):
                path.write_text(text, encoding="utf-8")
        with uninterrupted(), exclusively(self._destination):
            refuse_replacing(self._destination, self._spec_name, [folder_of(split) for split in self._rows], self._overwrite)
            move_in_place(self._scratch.entries(), partial, self._destination / self._spec_name)
        return final


def folder_of(split: str) -> str:
    """Return the folder of a split: the one in `FOLDERS`, otherwise one with the split's name."""
    return FOLDERS.get(split, split)


def records_of_files(rows: int, num_files: int) -> list[int]:
    """Return the number of records in each file of a split: full records are spread evenly; with several files, a last short record has its own."""
    whole, short = rows // ROWS_PER_RECORD, bool(rows % ROWS_PER_RECORD)
    files = min(num_files, whole + short)
    alone = short and files > 1
    shared = files - alone
    records = whole + (short and not alone)
    return [(i + 1) * records // shared - i * records // shared for i in range(shared)] + [1] * alone


def schema_text(spec: FeatureSpec) -> str:
    """Return the `tensorflow_metadata` schema of full records as text; tensorflow_transform's TFTransformOutput parses records by it."""
    names = {name: "FLOAT" for name in spec.numerical} | {feature.name: "INT" for feature in spec.categorical} | {spec.label: "INT"}
    names |= {} if spec.group is None else {spec.group: "INT"}
    names |= {} if spec.weight is None else {spec.weight: "FLOAT"}
    shape = f"  shape {{\n    dim {{\n      size: {ROWS_PER_RECORD}\n    }}\n    dim {{\n      size: 1\n    }}\n  }}\n"
    return "".join(
        f'feature {{\n  name: "{_quoted(name)}"\n  type: {kind}\n  presence {{\n    min_fraction: 1.0\n  }}\n{shape}}}\n'
        for name, kind in sorted(names.items())
    )


def _quoted(name: str) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:03o}" for byte in name.encode())


def _described(spec: FeatureSpec, rows: Mapping[str, int], num_files: int, unlabelled: Collection[str]) -> FeatureSpec:
    """Return the specification of the records, with the files of each split. Raises DatasetError if records cannot hold the features."""
    if num_files < 1:
        raise DatasetError(f"{num_files} files of TFRecords, expected at least 1")
    for feature in spec.categorical:
        if feature.is_list:
            has = "weights of its ids" if feature.weights else f"hotness {feature.hotness}"
            raise DatasetError(f"feature {feature.name} has {has}: pre-batched TFRecords hold one id per sample; write tf_raw")
    folders = [folder_of(split) for split in rows]
    if len({*folders, SCHEMA}) <= len(folders):
        raise DatasetError(f"two of the splits {', '.join(rows)} would be written to one folder; rename one in {spec.path}")
    raw, sources = spec.as_tf_raw(rows, {}, unlabelled), {}
    for split, count in rows.items():
        if not count:
            raise DatasetError(f"split {split} is empty; expected rows to write")
        names = tuple(name for chunk in raw.sources[split] for name in chunk.features)
        sources[split] = (
            Chunk(TFRECORD, names, tuple(f"{folder_of(split)}/part-r-{i:05d}" for i in range(len(records_of_files(count, num_files))))),
        )
    return replace(raw, sources=sources)


class _SplitWriter:
    """A writer of one split, which cuts columns into records and distributes the records to files."""

    def __init__(self, files: Sequence[Path], rows: int):
        self._files = self._next_files(files, records_of_files(rows, len(files)))
        self._left, self._written = rows, 0
        self._pending: dict[str, np.ndarray] = {}
        self._path, self._writer, self._room = files[0], None, 0

    @staticmethod
    def _next_files(files: Sequence[Path], records: Sequence[int]) -> Iterator[tuple[Path, int]]:
        return zip(files, records, strict=True)

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append rows: `[n]` of each feature."""
        if self._pending:
            columns = {name: np.concatenate([self._pending[name], column]) for name, column in columns.items()}
        count = len(next(iter(columns.values())))
        if count > self._left:
            raise ValueError(f"{count} rows, expected at most {self._left} more")
        start = 0
        while (size := min(ROWS_PER_RECORD, self._left)) and start + size <= count:
            self._write(encode_example({name: column[start : start + size] for name, column in columns.items()}))
            start, self._left, self._written = start + size, self._left - size, self._written + size
        self._pending = {name: column[start:].copy() for name, column in columns.items()}

    def close(self) -> int:
        """Close all files, flushed to disk, and return the number of rows written."""
        self._finish_file()
        return self._written

    def _write(self, record: bytes) -> None:
        import tensorflow as tf

        try:
            if not self._room:
                self._finish_file()
                self._path, self._room = next(self._files)
                self._writer = tf.io.TFRecordWriter(str(self._path))
            self._writer.write(record)
        except tf.errors.OpError as error:
            raise _unwritten(self._path, error) from None
        self._room -= 1

    def _finish_file(self) -> None:
        import tensorflow as tf

        if self._writer is None:
            return
        try:
            self._writer.close()
        except tf.errors.OpError as error:
            raise _unwritten(self._path, error) from None
        self._writer = None
        with self._path.open("rb") as file, naming(self._path):
            os.fsync(file.fileno())


def _unwritten(path: Path, error: Exception) -> DatasetError:
    return DatasetError(f"{path}: cannot be written: {' '.join(str(error).split()).rsplit('; ', 1)[-1][:100]}")
