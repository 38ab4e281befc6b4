"""A Triton model repository on the disk: versions are complete or absent, and no version is ever replaced."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.live import CARD, CONFIG, announce, naming, pin, stated, versions
from serving.triton_config import Tensor, config_text, interface
from utils.checkpoint.durable import sync_folder, sync_tree, write_text
from utils.config.serving import ExportConfig
from utils.errors import UserError
from utils.scratch import Scratch

FLAGS = "flags.json"  # of a version: its export flags, without source, target and version number


class Repository:
    """A model repository to which a version of one or more models is added.

    Args:
        folder: folder of the repository; need not exist.
        options: options of the export.
        inputs: inputs of the models.

    Raises:
        UserError: the version exists already, the model's other versions have other inputs, or the folder cannot be written.
    """

    def __init__(self, folder: Path, options: ExportConfig, inputs: Sequence[Tensor]):
        self.folder, self._number = folder, options.model_version
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--export_path {folder}: is a file, expected a folder")
        self._place = _place(folder, list(options.names.values()))
        for form, name in options.names.items():
            target = folder / name / str(self._number)
            if target.exists():
                newest = max(versions(folder / name), default=self._number)  # no version where the path is a file
                raise UserError(f"{target}: already exists, and versions are never replaced; use --model_version {newest + 1}")
            config = folder / name / CONFIG
            if config.exists() and interface(config.read_text()) != interface(config_text(options, form, inputs, {})):
                raise UserError(f"{config}: the model's existing versions have other inputs than this export; use another --model_name")

    @property
    def note(self) -> str:
        """A line for the user where the version has to be written where a server that starts meanwhile may take it for a model; else empty."""
        if self._place != self.folder:
            return ""
        return (
            f"{self.folder}: nothing can be moved there from the folder beside it (a mount point?), so the first version is written within it "
            "in a hidden folder, which a server that loads every model must not meet: start such a server afterwards"
        )

    @contextmanager
    def staged(self) -> Iterator["Staging"]:
        """Yield a staging area in a hidden folder, which is removed on exit."""
        scratch = Scratch(self._place, "writing")
        try:
            yield Staging(self.folder, scratch.folder, self._number)
        finally:
            scratch.remove()


class Staging:
    """Models that are being written.

    Args:
        repository: target folder.
        folder: hidden folder for the files being written.
        number: number of the version.

    Attributes:
        tables: folder for files that formats share.
    """

    def __init__(self, repository: Path, folder: Path, number: int):
        self._repository, self._folder, self._number = repository, folder / "models", number
        self.tables = folder / "shared"
        self._names: list[str] = []

    def version(self, name: str, config: str) -> Path:
        """Add a model; return the folder of its version."""
        self._names.append(name)
        path = self._folder / name / str(self._number)
        path.mkdir(parents=True)
        for folder in (path.parent, path):
            (folder / CONFIG).write_text(naming(config, self._number))
        return path

    def card(self, name: str, text: str) -> None:
        """Write a version's card, which is also the model's card while the version is live."""
        for path in (self._folder / name / CARD, self._folder / name / str(self._number) / CARD):
            path.write_text(text)

    def flags(self, name: str, words: Sequence[str]) -> None:
        """Record the export flags of a version."""
        (self._folder / name / str(self._number) / FLAGS).write_text(json.dumps(list(words)))

    def publish(self) -> list[Path]:
        """Make every model visible, each atomically, and return the versions' folders. Raises UserError where another export wrote the version first.

        A new version of an existing model does not become live, unless none of the versions that the model's `config.pbtxt` names exists.
        """
        sync_tree(self._folder)
        self._repository.mkdir(parents=True, exist_ok=True)
        found = []
        for name in self._names:
            source, target = self._folder / name, self._repository / name
            version = target / str(self._number)
            try:
                if target.exists():
                    self._add(source, target)
                else:
                    _rename(source, target)
            except FileExistsError:
                raise UserError(f"{version}: another export wrote this version in the meantime; this export is discarded") from None
            found.append(version)
        return found

    def _add(self, source: Path, target: Path) -> None:
        """Make the version of one model visible. Raises FileExistsError."""
        pin(target)
        _rename(source / str(self._number), target / str(self._number))
        sync_folder(target)
        if not (target / CONFIG).is_file():
            write_text(target / CONFIG, (source / CONFIG).read_text())
        named, others = stated((target / CONFIG).read_text()), set(versions(target)) - {self._number}
        if named and not others.intersection(named):
            announce(target, self._number)


def _place(repository: Path, names: Sequence[str]) -> Path:
    """Return the folder for staging: beside the repository, as Triton takes every folder in the repository for a model, hidden or not.

    Where nothing can be moved from there (it is not writable, or the repository is a mount point, be it of the same file system), it is the folder of
    an existing model, in which Triton ignores all but numbers; for new models the repository itself.

    Raises:
        UserError: the repository cannot be written.
    """
    beside = repository.absolute().parent
    if not beside.is_dir() or not repository.is_dir():
        return beside
    check_writable(repository)
    if _moves(beside, repository):
        return beside
    return next((repository / name for name in names if (repository / name).is_dir()), repository)


def check_writable(folder: Path) -> None:
    """Raise UserError where no file can be made in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; a version is written there, so it must be writable") from None


def _moves(source: Path, target: Path) -> bool:
    """Return whether a file can be moved from one folder to another. A file, because Triton may look meanwhile, and takes folders for models."""
    made = None
    try:
        descriptor, made = tempfile.mkstemp(prefix=".probe-", dir=source)
        os.close(descriptor)
        os.rename(made, target / Path(made).name)
        made = str(target / Path(made).name)
        return True
    except OSError:
        return False
    finally:
        if made is not None:
            with suppress(OSError):
                os.unlink(made)


def remove_version(model: Path, number: int) -> None:
    """Remove a version: hide it, then delete it. Also delete the remains of removals that were killed."""
    for left in model.glob(".removed-*"):
        shutil.rmtree(left, ignore_errors=True)
    hidden = model / f".removed-{number}"
    (model / str(number)).rename(hidden)
    with suppress(FileNotFoundError):  # a concurrent removal may delete this folder as such remains
        shutil.rmtree(hidden)


def _rename(source: Path, target: Path) -> None:
    """Rename a folder. Raises FileExistsError where the target exists, as `os.rename` would replace an empty folder."""
    if target.exists():
        raise FileExistsError(target)
    try:
        os.rename(source, target)
    except OSError as error:  # another export created it after the check
        raise FileExistsError(target) if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else error from None
