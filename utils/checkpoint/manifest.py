"""The manifest of a checkpoint: its content, the size and checksum of each file, and a checksum of the manifest itself."""

import errno
import json
import math
import os
import stat
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from utils.checkpoint.durable import write_text
from utils.checkpoint.zarr_metadata import NAME as _METADATA
from utils.checkpoint.zarr_store import CHECKSUM_BYTES
from utils.errors import UserError

NAME = "manifest.json"
FORMAT = 3
TOUCHED_FORMAT = 4  # of a checkpoint that stores of some tables the touched rows only, see `touched_form`
READABLE = (2, FORMAT, TOUCHED_FORMAT)  # format 2 numbers the optimizer slots of the dense weights, and does not name the model
TOUCHED = "touched"  # key of an array of touched rows: how many it stores
_COUNTS = (
    *("step", "epoch", "batch", "samples", "evals_without_gain"),
    *("loss_count", "ids_out_of_range", "skipped_steps", "skipped_in_a_row", "clipped_steps", "weightless_steps"),
)


class CheckpointError(UserError):
    """The error for a checkpoint that is missing, damaged or of another model."""


class DamagedError(CheckpointError):
    """The error for a checkpoint that is not as it was written."""

    def __init__(self, folder: Path, what: str):
        super().__init__(what)
        self.folder = folder


def write(folder: Path, content: Mapping[str, Any], expected: Iterable[str] = ()) -> None:
    """Write the manifest of a step's folder, whose other files are complete.

    Raises:
        CheckpointError: an expected file, named relative to the folder, does not exist.
    """
    files = {str(path.relative_to(folder)): _stamp(path) for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NAME}
    for name in expected:
        if name not in files:
            raise CheckpointError(
                f"{folder / name}: no worker wrote this file, so the checkpoint is discarded; expected a folder that all workers share"
            )
    touched = any(TOUCHED in array for array in content.get("arrays", {}).values())
    whole = {**content, "format": TOUCHED_FORMAT if touched else FORMAT, "files": files}
    write_text(folder / NAME, json.dumps(whole | {"checksum": checksum(whole)}, indent=1))


def read(folder: Path) -> dict[str, Any]:
    """Read the manifest of a step's folder.

    Raises:
        CheckpointError: it is missing, damaged or of another format.
    """
    path = folder / NAME
    try:
        manifest = json.loads(path.read_bytes())
        version, written = manifest["format"], manifest.pop("checksum", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(folder, f"{path}: cannot be read ({brief_cause(error)}); the checkpoint is damaged") from None
    if version not in READABLE:
        raise CheckpointError(f"{folder}: the checkpoint has format {version}, this version reads formats {', '.join(map(str, READABLE))}")
    if written != checksum(manifest):
        raise DamagedError(folder, f"{path}: its checksum is wrong; the checkpoint is damaged")
    try:
        _check_values(manifest)
    except ValueError as error:
        raise DamagedError(folder, f"{path}: {error}; the checkpoint is damaged") from None
    return manifest


def gone(folder: Path) -> bool:
    """Return whether a step's folder was removed, which can happen on a file system without locks while it is read."""
    return not (folder / NAME).is_file()


def fault(folder: Path, path: Path, cause: str) -> CheckpointError:
    """Return the error for a file of a step's folder that cannot be read: it is damaged, or the whole folder was removed."""
    if gone(folder):
        return CheckpointError(
            f"{folder}: was removed while it was read, by the run that keeps only its newest steps there; start again with the newest"
        )
    return DamagedError(folder, f"{path}: {cause}; the checkpoint is damaged")


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Compare size and recorded checksum of every file with the manifest, without reading the data.

    Raises:
        CheckpointError: a file differs; the message names the first one.
    """
    for name, stamp in manifest["files"].items():
        path = folder / name
        try:
            found = _stamp(path)
        except OSError as error:
            raise DamagedError(folder, f"{path}: {error.strerror}; the checkpoint is damaged") from None
        if found[0] != stamp[0]:
            raise DamagedError(folder, f"{path}: {found[0]} bytes, the manifest says {stamp[0]}; the checkpoint is damaged")
        if found[1] != stamp[1]:
            raise DamagedError(folder, f"{path}: its checksum differs from the manifest's; the checkpoint is damaged")


def brief_cause(error: Exception) -> str:
    """Return an exception's text in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _stamp(path: Path) -> list:
    """Return a file's size and checksum; a chunk's checksum is the CRC-32C at its end, which is compared with the data when the chunk is read."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # opening a named pipe would block
        raise OSError(errno.EINVAL, "not a file")
    size = found.st_size
    if path.name == _METADATA:
        return [size, f"{zlib.crc32(path.read_bytes()):08x}"]
    with path.open("rb") as file:
        return [size, os.pread(file.fileno(), CHECKSUM_BYTES, max(size - CHECKSUM_BYTES, 0)).hex()]


def checksum(manifest: Mapping[str, Any]) -> str:
    """Compute the checksum of a manifest in the form that `read` returns."""
    return f"{zlib.crc32(json.dumps(manifest, sort_keys=True).encode()):08x}"


def _check_values(manifest: Mapping[str, Any]) -> None:
    """Check the values that a run relies on, where they are present; other code compares them with the run's own.

    The checksum proves that the manifest is unchanged, not that this application wrote it.

    Raises:
        ValueError: a value is invalid; the message names it and the expected values.
    """
    if "step" in manifest:
        _check_count(manifest["step"], "step")
    position = manifest.get("position")
    if isinstance(position, Mapping):
        _check_position(position)
        if position.get("step", manifest.get("step")) != manifest.get("step"):
            raise ValueError(f"position.step is {position['step']}, step is {manifest.get('step')}; expected the same")
        if isinstance(run := manifest.get("run"), Mapping):
            _check_place(position, run)
    if "vocabularies" in manifest:
        _check_vocabularies(manifest["vocabularies"])


def _check_position(position: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        if name in position:
            _check_count(position[name], f"position.{name}")
    for name in ("best_auc", "last_auc"):
        auc = position.get(name)
        if auc is not None and not (type(auc) in (int, float) and 0 <= auc <= 1):
            raise ValueError(f"position.{name} is {_brief(auc)}, expected null or a number from 0 to 1")
    for name in ("best_ranking", "best_on_schedule"):
        best = position.get(name, {})
        if not isinstance(best, Mapping) or not all(type(value) in (int, float) and 0 <= value <= 1 for value in best.values()):
            raise ValueError(f"position.{name} is {_brief(best)}, expected a mapping of metrics to numbers from 0 to 1")
    epoch = position.get("best_epoch")
    if epoch is not None and not (type(epoch) in (int, float) and 0 <= epoch < math.inf):
        raise ValueError(f"position.best_epoch is {_brief(epoch)}, expected null or a number of at least 0")
    for name in ("loss_sum", "mean_loss"):
        loss = position.get(name, 0)
        if not (type(loss) in (int, float) and math.isfinite(loss)) and not (loss is None and name == "mean_loss"):
            raise ValueError(f"position.{name} is {_brief(loss)}, expected a finite number")
    if not isinstance(due := position.get("evaluation_due", False), bool):
        raise ValueError(f"position.evaluation_due is {_brief(due)}, expected true or false")


def _check_place(position: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Check the position in the data against the number of steps: with another epoch length, an epoch would never end."""
    samples, batch_size = run.get("train_samples"), run.get("batch_size")
    known = all(type(value) is int for value in (samples, batch_size, *(position.get(name) for name in ("step", "epoch", "batch"))))
    if not known or samples < 1 or batch_size < 1:
        return
    steps = run.get("steps_per_epoch")
    batches = steps if type(steps) is int and steps > 0 else math.ceil(samples / batch_size)
    step, epoch, batch = position["step"], position["epoch"], position["batch"]
    if batch > batches or step != epoch * batches + batch:
        raise ValueError(f"position is step {step}, epoch {epoch}, batch {batch}, which is impossible in epochs of {batches} batches")


def _check_vocabularies(vocabularies: Any) -> None:
    if not isinstance(vocabularies, Mapping):
        raise ValueError(f"vocabularies is {_brief(vocabularies)}, expected a mapping of features")
    for feature, fact in vocabularies.items():
        if not isinstance(fact, Mapping) or not isinstance(fact.get("digest"), str):
            raise ValueError(f"vocabularies.{feature} is {_brief(fact)}, expected a mapping with values and digest")
        _check_count(fact.get("values"), f"vocabularies.{feature}.values")


def _check_count(value: Any, name: str) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {_brief(value)}, expected a whole number of at least 0")


def _brief(value: Any) -> str:
    return repr(value)[:60]
