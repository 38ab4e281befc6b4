"""Reading and writing of tf_raw: a binary file for each categorical feature and one for the weights of its ids, one for all numerical features, and
one each for the label, the group and the weight.
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dataloading.contract import check_quick, file_faults, split_files, stored_vocabulary
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import VOCABULARY, WEIGHT_DTYPE, DatasetError
from dataloading.fingerprint import digest
from dataloading.id_weights import ids_and_weights, joined
from utils.naming import naming
from utils.scratch import Scratch, exclusively
from utils.signals import uninterrupted


class ColumnFile:
    """One open binary file of fixed-width samples, read by position.

    It uses `pread` rather than a memory map: a file truncated during the run is then a clear error, whereas a memory map would end the process with
    SIGBUS.
    """

    def __init__(self, path: Path, dtype: np.dtype, width: int = 1):
        self.path, self.dtype, self.width = path, np.dtype(dtype), width
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return samples start to stop: `[n]`, or `[n, width]` if width > 1.

        Raises:
            DatasetError: the file ends before `stop`.
        """
        out = np.empty((stop - start, self.width) if self.width > 1 else stop - start, self.dtype)
        size = self.dtype.itemsize * self.width
        view, done = memoryview(out.reshape(-1).view(np.uint8)), 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], start * size + done)
            if count == 0:
                found = os.fstat(self._descriptor).st_size // size
                raise DatasetError(f"{self.path}: holds {found} samples, expected at least {stop}; it was cut short after this run started")
            done += count
        return out

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class TfRawSplit:
    """One split of a tf_raw dataset, read by ranges of rows. A file is opened at its first read, so a worker opens only the files that it needs."""

    def __init__(self, spec: FeatureSpec, split: str):
        self.spec, self.name, self.first_row = spec, split, 0
        self.labelled = spec.labelled(split)
        self.num_samples = check_quick(spec, (split,))[split]
        files = split_files(spec, split)
        self._paths: dict[str, tuple[Path, str, int]] = {}
        if self.labelled:
            self._paths["label"] = (files.label, "uint8", 1)  # bool on disk; read as bytes, so that values other than 0 and 1 are detected
        if spec.numerical:
            self._paths["numerical"] = (files.numerical, spec.numerical_dtype, len(spec.numerical))
        for i, (feature, path) in enumerate(zip(spec.categorical, files.categorical, strict=True)):
            self._paths[f"ids {i}"] = (path, feature.dtype, feature.hotness)
            if feature.weights:
                self._paths[f"weights of ids {i}"] = (files.id_weights[feature.name], WEIGHT_DTYPE, feature.hotness)
        self._files = {spec.label: str(files.label or "")} | dict.fromkeys(spec.numerical, str(files.numerical))
        self._files |= {feature.name: str(path) for feature, path in zip(spec.categorical, files.categorical, strict=True)}
        self._files |= {name: f"{self._files[name]} (weights: {path.name})" for name, path in files.id_weights.items()}
        if spec.group is not None:
            self._paths["group"] = (files.group, spec.group_dtype, 1)
            self._files[spec.group] = str(files.group)
        if files.weight is not None:
            self._paths["weight"] = (files.weight, spec.weight_dtype, 1)
            self._files[spec.weight] = str(files.weight)
        self._open: dict[str, ColumnFile] = {}

    def _column(self, key: str) -> ColumnFile:
        if key not in self._open:
            self._open[key] = ColumnFile(*self._paths[key])
        return self._open[key]

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Return ids of a feature (by its index in the model's order), rows start to stop.

        Returns:
            `[n]`, int8, int16 or int32; for lists `[n, h]`, padded with -1, or with weights `[n, 2h]` (`id_weights`).
        """
        ids = self._column(f"ids {feature}").read(start, stop)
        if not self.spec.categorical[feature].weights:
            return ids
        weights = self._column(f"weights of ids {feature}").read(start, stop)
        return joined(ids.reshape(len(ids), -1), weights.reshape(len(ids), -1))

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Return numerical features of rows start to stop: `[n, M]`, float16 or float32."""
        if not self.spec.numerical:
            return np.empty((stop - start, 0), self.spec.numerical_dtype)
        return self._column("numerical").read(start, stop).reshape(stop - start, len(self.spec.numerical))

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Return labels of rows start to stop: `[n]` uint8, 0 or 1; all 0 if the split has none (`labelled`)."""
        return self._column("label").read(start, stop) if self.labelled else np.zeros(stop - start, np.uint8)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Return groups of rows start to stop: `[n]`, int32 or int64. The dataset must have a group."""
        return self._column("group").read(start, stop)

    def read_weights(self, start: int, stop: int) -> np.ndarray:
        """Return weights of rows start to stop: `[n]` float32. The dataset must have weights, and the split labels."""
        return self._column("weight").read(start, stop)

    def file(self, feature: str, row: int = 0) -> str:
        """Return the file that a feature is read from."""
        return self._files[feature]

    def fingerprint(self) -> str:
        """Return a hash of the features, the file sizes and a sample of the files' bytes."""
        return digest(self.spec, (self.name, self.num_samples), split_files(self.spec, self.name).all())

    def close(self) -> None:
        """Close every file."""
        for column in self._open.values():
            column.close()
        self._open.clear()


class TfRawWriter:
    """A writer that publishes a complete tf_raw dataset, or none.

    Files are written to a hidden folder inside the destination. `publish` checks that they agree, moves them in place and adds the feature
    specification last. If an exception leaves the `with` block, the written files are removed.

        with TfRawWriter(destination, spec, splits=("train", "test")) as writer:
            writer.append("train", numerical, ids, labels)      # or fill the files at writer.files("train") yourself
            writer.publish(metadata)

    Splits in `unlabelled` have no labels and are for prediction only. `within` is the caller's own hidden folder in the destination: it may hold
    files already, and it is not removed.

    Raises:
        DatasetError: the destination holds a dataset already and `overwrite` is not set.
    """

    def __init__(
        self,
        destination: str | Path,
        spec: FeatureSpec,
        splits: Sequence[str] = ("train", "test"),
        spec_name: str = DEFAULT_FILE_NAME,
        overwrite: bool = False,
        unlabelled: Collection[str] = (),
        within: Path | None = None,
    ):
        self._destination, self._spec_name = Path(destination), spec_name
        self._source, self._splits, self._unlabelled = spec, tuple(splits), frozenset(unlabelled)
        self.spec = spec.as_tf_raw(splits, {}, self._unlabelled)
        self._overwrite = overwrite
        self._refuse_replacing()
        self._open, self._scratch = {}, Scratch(self._destination, "writing") if within is None else None
        self._folder = within or self._scratch.folder
        try:
            for split in self._splits:
                (self._folder / split).mkdir(exist_ok=within is not None)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> "TfRawWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError):  # closing fails on a full disk, too; the error being raised says so already
                file.close()
        if self._scratch is not None:
            self._scratch.remove()

    @property
    def folder(self) -> Path:
        """The hidden folder; other files placed here are published with the dataset."""
        return self._folder

    def files(self, split: str):
        """Return the files that hold the split's columns during writing (`contract.SplitFiles`), for writing column by column."""
        return split_files(self._placed(self._folder), split)

    def append(
        self,
        split: str,
        numerical: np.ndarray,
        ids: Sequence[np.ndarray],
        labels: np.ndarray | None,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Append rows.

        Args:
            split: the split of the rows.
            numerical: `[n, M]`, stored as float16 or float32.
            ids: F arrays as `read_ids` returns them; the ids are not checked here and must be in range.
            labels: `[n]`, 0 or 1; None if the split has none.
            groups: `[n]` whole numbers, if the dataset has a group.
            weights: `[n]`, if the dataset has weights and the split labels.

        Raises:
            ValueError: labels are given for a split without labels, or missing for a split with labels.
        """
        files = self.files(split)
        if (labels is None) != (files.label is None):
            raise ValueError(
                f"split {split}: labels were {'not ' if labels is None else ''}given, but the split has {'labels' if files.label else 'no labels'}"
            )
        if files.numerical is not None:
            self._write(files.numerical, np.ascontiguousarray(numerical, self.spec.numerical_dtype))
        for feature, path, column in zip(self.spec.categorical, files.categorical, ids, strict=True):
            if feature.weights:
                column, of_ids = ids_and_weights(column)
                self._write(files.id_weights[feature.name], of_ids)
            self._write(path, np.ascontiguousarray(column, feature.dtype))
        if files.label is not None:
            self._write(files.label, np.ascontiguousarray(labels, np.bool_))
        if files.group is not None:
            self._write(files.group, np.ascontiguousarray(groups, self.spec.group_dtype))
        if files.weight is not None:
            self._write(files.weight, np.ascontiguousarray(weights, self.spec.weight_dtype))

    def copy_vocabularies(self, spec: FeatureSpec) -> None:
        """Publish `spec`'s vocabularies with the dataset, if there are any: copied rows keep their ids."""
        copy_vocabularies(spec, self._folder)

    def publish(self, metadata: dict[str, Any]) -> FeatureSpec:
        """Make the dataset visible, and return its specification.

        Raises:
            DatasetError: the columns hold different numbers of samples, a split is empty, or another run has written a dataset here meanwhile.
        """
        for split in self._splits:
            for path in self.files(split).all():
                self._write(path, np.empty(0, np.uint8))  # a split without rows gets empty files instead of missing ones
        for path, file in self._open.items():
            with naming(path):
                file.flush()
                os.fsync(file.fileno())
        for split in self._splits:
            faults, _ = file_faults(self._placed(self._folder), split)
            if faults:
                raise DatasetError(f"nothing was written: {faults[0]}")
        final = self._placed(self._destination, metadata)
        partial = self._folder / self._spec_name
        with naming(partial):
            partial.write_text(final.to_yaml(), encoding="utf-8")
        with uninterrupted(), exclusively(self._destination):
            self._refuse_replacing()
            entries = self._scratch.entries() if self._scratch else list(self._folder.iterdir())
            move_in_place(entries, partial, self._destination / self._spec_name)
        return final

    def _refuse_replacing(self) -> None:
        refuse_replacing(self._destination, self._spec_name, self._splits, self._overwrite)

    def _placed(self, folder: Path, metadata: dict[str, Any] | None = None) -> FeatureSpec:
        return replace(self._source.as_tf_raw(self._splits, metadata or {}, self._unlabelled), path=folder / self._spec_name)

    def _write(self, path: Path, values: np.ndarray) -> None:
        if path not in self._open:
            self._open[path] = path.open("ab")
        with naming(path):
            self._open[path].write(values.data if values.size else b"")


def move_in_place(entries: Collection[Path], spec: Path, target: Path) -> None:
    """Move the entries of a dataset in place, the specification last; until then the folder is not a dataset.

    Args:
        entries: files and folders, which replace existing ones of the same names.
        spec: the specification, one of the entries.
        target: destination of the specification; the other entries are moved to its folder.
    """
    destination = target.parent
    target.unlink(missing_ok=True)
    if (destination / VOCABULARY).is_dir():
        shutil.rmtree(destination / VOCABULARY)  # the old vocabularies belong to other ids, and this dataset may bring none
    for entry in sorted({*entries} - {spec}):
        old = destination / entry.name
        if old.is_dir():
            shutil.rmtree(old)
        entry.rename(old)
    spec.rename(target)


def refuse_dataset(destination: Path, spec_name: str, overwrite: bool) -> None:
    """Raise DatasetError if `destination` cannot be a dataset's folder, or holds a dataset and `overwrite` is not set."""
    if destination.is_symlink() and not destination.exists():
        raise DatasetError(f"{destination} is a link to {os.readlink(destination)}, which does not exist; create that folder, or remove the link")
    if destination.is_file():
        raise DatasetError(f"{destination} is a file; expected a folder for the dataset")
    if not overwrite and (destination / spec_name).exists():
        raise DatasetError(f"{destination} holds a dataset already ({spec_name}); choose another folder or pass --overwrite")


def refuse_replacing(destination: Path, spec_name: str, folders: Iterable[str], overwrite: bool) -> None:
    """Raise DatasetError where `refuse_dataset` does, or if one of the `folders` in `destination` is not empty and `overwrite` is not set."""
    refuse_dataset(destination, spec_name, overwrite)
    for name in folders:
        folder = destination / name
        if not overwrite and folder.is_dir() and any(folder.iterdir()):
            raise DatasetError(f"{folder} exists and would be replaced; choose another folder or pass --overwrite")


def copy_vocabularies(spec: FeatureSpec, folder: Path) -> None:
    """Copy the vocabularies of `spec`'s features to `folder`, if there are any."""
    for feature in spec.categorical:
        if source := stored_vocabulary(spec, feature.name):
            copy = folder / VOCABULARY / source.name
            with naming(copy):
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, copy)
