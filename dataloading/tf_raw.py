"""Reading and writing tf_raw: one binary file per categorical feature, one for the numerical ones, one for the label, one for the group."""

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
from dataloading.features import VOCABULARY, DatasetError
from dataloading.fingerprint import digest
from utils.naming import naming
from utils.scratch import Scratch, exclusively
from utils.signals import uninterrupted


class ColumnFile:
    """One open binary file of fixed-width samples, read by position.

    Plain `pread` and not a memory map: a file that is cut short while the run goes on is then a clear error, where a
    map would end the process with SIGBUS.
    """

    def __init__(self, path: Path, dtype: np.dtype, width: int = 1):
        self.path, self.dtype, self.width = path, np.dtype(dtype), width
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Samples start to stop: `[n]`, or `[n, width]` where width > 1.

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
    """One split of a tf_raw dataset, read by ranges of rows. Files are opened when first read, so a worker opens only its own."""

    def __init__(self, spec: FeatureSpec, split: str):
        self.spec, self.name, self.first_row = spec, split, 0
        self.labelled = spec.labelled(split)
        self.num_samples = check_quick(spec, (split,))[split]
        files = split_files(spec, split)
        self._paths: dict[str, tuple[Path, str, int]] = {}
        if self.labelled:
            self._paths["label"] = (files.label, "uint8", 1)  # bool on disk; read as bytes, so that a value other than 0 and 1 is seen
        if spec.numerical:
            self._paths["numerical"] = (files.numerical, spec.numerical_dtype, len(spec.numerical))
        for i, (feature, path) in enumerate(zip(spec.categorical, files.categorical, strict=True)):
            self._paths[f"ids {i}"] = (path, feature.dtype, feature.hotness)
        self._files = {spec.label: str(files.label or "")} | dict.fromkeys(spec.numerical, str(files.numerical))
        self._files |= {feature.name: str(path) for feature, path in zip(spec.categorical, files.categorical, strict=True)}
        if spec.group is not None:
            self._paths["group"] = (files.group, spec.group_dtype, 1)
            self._files[spec.group] = str(files.group)
        self._open: dict[str, ColumnFile] = {}

    def _column(self, key: str) -> ColumnFile:
        if key not in self._open:
            self._open[key] = ColumnFile(*self._paths[key])
        return self._open[key]

    def read_ids(self, feature: int, start: int, stop: int) -> np.ndarray:
        """Ids of a feature (by its place in the model's order), rows start to stop.

        Returns:
            `[n]`, int8, int16 or int32; `[n, h]` where the feature has several ids a sample, -1 where there is none.
        """
        return self._column(f"ids {feature}").read(start, stop)

    def read_numerical(self, start: int, stop: int) -> np.ndarray:
        """Numerical features of rows start to stop: `[n, M]`, float16 or float32."""
        if not self.spec.numerical:
            return np.empty((stop - start, 0), self.spec.numerical_dtype)
        return self._column("numerical").read(start, stop).reshape(stop - start, len(self.spec.numerical))

    def read_labels(self, start: int, stop: int) -> np.ndarray:
        """Labels of rows start to stop: `[n]` uint8, 0 or 1; all 0 where the split has none (`labelled`)."""
        return self._column("label").read(start, stop) if self.labelled else np.zeros(stop - start, np.uint8)

    def read_group(self, start: int, stop: int) -> np.ndarray:
        """Groups of rows start to stop, where the dataset has a group: `[n]`, int32 or int64."""
        return self._column("group").read(start, stop)

    def file(self, feature: str, row: int = 0) -> str:
        """The file that a feature is read from."""
        return self._files[feature]

    def fingerprint(self) -> str:
        """The same where features, file sizes and a sample of the files' bytes are the same."""
        return digest(self.spec, (self.name, self.num_samples), split_files(self.spec, self.name).all())

    def close(self) -> None:
        """Close every file."""
        for column in self._open.values():
            column.close()
        self._open.clear()


class TfRawWriter:
    """Writes a tf_raw dataset that is whole or not there.

    Files grow in a hidden folder inside the destination; `publish` checks that they agree, moves them in place and
    writes the feature specification last. Leaving the `with` block by an exception removes what was written.

        with TfRawWriter(destination, spec, splits=("train", "test")) as writer:
            writer.append("train", numerical, ids, labels)      # or fill the files at writer.files("train") yourself
            writer.publish(metadata)

    Splits in `unlabelled` have no labels and are for prediction only. `within` is a hidden folder of the caller's in the destination: files may stand
    there already, and it stays.

    Raises:
        DatasetError: the destination holds a dataset already and `overwrite` is not given.
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
            with contextlib.suppress(OSError):  # a full disk, which the error on its way says already
                file.close()
        if self._scratch is not None:
            self._scratch.remove()

    @property
    def folder(self) -> Path:
        """The hidden folder: whatever else is put here is published with the dataset."""
        return self._folder

    def files(self, split: str):
        """Where the split's columns are being written (`contract.SplitFiles`), for a writer that works column by column."""
        return split_files(self._placed(self._folder), split)

    def append(
        self, split: str, numerical: np.ndarray, ids: Sequence[np.ndarray], labels: np.ndarray | None, groups: np.ndarray | None = None
    ) -> None:
        """Append rows.

        Args:
            split: which split they belong to.
            numerical: `[n, M]`, stored as float16 or float32.
            ids: F arrays `[n]`, or `[n, h]` with -1 for no id, already known to be in range.
            labels: `[n]`, 0 or 1; None where the split has none.
            groups: `[n]` whole numbers, where the dataset has a group.

        Raises:
            ValueError: labels for a split without them, or none for one with.
        """
        files = self.files(split)
        if (labels is None) != (files.label is None):
            raise ValueError(f"split {split}: labels were {'not ' if labels is None else ''}given, and it has {'them' if files.label else 'none'}")
        if files.numerical is not None:
            self._write(files.numerical, np.ascontiguousarray(numerical, self.spec.numerical_dtype))
        for feature, path, column in zip(self.spec.categorical, files.categorical, ids, strict=True):
            self._write(path, np.ascontiguousarray(column, feature.dtype))
        if files.label is not None:
            self._write(files.label, np.ascontiguousarray(labels, np.bool_))
        if files.group is not None:
            self._write(files.group, np.ascontiguousarray(groups, self.spec.group_dtype))

    def copy_vocabularies(self, spec: FeatureSpec) -> None:
        """Publish with the dataset what `spec`'s ids stand for, where that is known: rows that are only copied keep their ids."""
        copy_vocabularies(spec, self._folder)

    def publish(self, metadata: dict[str, Any]) -> FeatureSpec:
        """Make the dataset visible; returns its specification.

        Raises:
            DatasetError: the columns do not hold the same number of samples, a split is empty, or another run has
                written a dataset here meanwhile.
        """
        for split in self._splits:
            for path in self.files(split).all():
                self._write(path, np.empty(0, np.uint8))  # a split without rows has empty files, not missing ones
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
    """Put what makes a dataset in its place, the specification last: until then the folder is no dataset.

    Args:
        entries: files and folders, which replace those of their names.
        spec: one of them, the specification.
        target: where that goes; the folder of the others.
    """
    destination = target.parent
    target.unlink(missing_ok=True)
    if (destination / VOCABULARY).is_dir():
        shutil.rmtree(destination / VOCABULARY)  # the values of other ids, where this dataset brings none
    for entry in sorted({*entries} - {spec}):
        old = destination / entry.name
        if old.is_dir():
            shutil.rmtree(old)
        entry.rename(old)
    spec.rename(target)


def refuse_dataset(destination: Path, spec_name: str, overwrite: bool) -> None:
    """Raise DatasetError where `destination` holds a dataset and may not be overwritten."""
    if destination.is_symlink() and not destination.exists():
        raise DatasetError(f"{destination} is a link to {os.readlink(destination)}, which is not there; make that folder, or remove the link")
    if destination.is_file():
        raise DatasetError(f"{destination} is a file; expected a folder for the dataset")
    if not overwrite and (destination / spec_name).exists():
        raise DatasetError(f"{destination} holds a dataset already ({spec_name}); choose another folder or pass --overwrite")


def refuse_replacing(destination: Path, spec_name: str, folders: Iterable[str], overwrite: bool) -> None:
    """Raise DatasetError where `destination` holds a dataset, or one of its folders holds anything, and may not be overwritten."""
    refuse_dataset(destination, spec_name, overwrite)
    for name in folders:
        folder = destination / name
        if not overwrite and folder.is_dir() and any(folder.iterdir()):
            raise DatasetError(f"{folder} exists and would be replaced; choose another folder or pass --overwrite")


def copy_vocabularies(spec: FeatureSpec, folder: Path) -> None:
    """Copy into `folder` what `spec`'s ids stand for, where that is known."""
    for feature in spec.categorical:
        if source := stored_vocabulary(spec, feature.name):
            copy = folder / VOCABULARY / source.name
            with naming(copy):
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, copy)
