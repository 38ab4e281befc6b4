"""Weights of a version in a model repository: a checkpoint without optimizer state that shares the files of the original checkpoint."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dataloading.vocabulary import RECORD, kept_file
from utils.checkpoint import manifest, packed
from utils.checkpoint.links import link, link_tree
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import TOUCHED_ROWS, bitmap_name
from utils.checkpoint.zarr_store import file_of
from utils.config.serving import FLOAT32

_CONTENTS = "contents"  # key of a manifest: the checksum of each file of packed tables
_DROPPED = ("checksum", "files", "arrays", "format")


def verified(checkpoint: Checkpoint) -> None:
    """Read every weight once to verify its checksum: served weights are mapped and not verified. Raises CheckpointError."""
    for name in weights_of(checkpoint):
        checkpoint.check(name)


def check_contents(checkpoint: Checkpoint) -> None:
    """Read every weight of a version, packed ones too, and compare its checksum. Raises CheckpointError where a file is damaged.

    Packed tables of earlier exports have no checksums.
    """
    packs = packed.NAME in checkpoint.manifest
    for name in checkpoint.names(""):
        if not (packs and name.startswith("tables/")):
            checkpoint.check(name)
    for name, expected in checkpoint.manifest.get(_CONTENTS, {}).items():
        try:
            found = packed.checksum(checkpoint.folder / name)
        except OSError as error:
            raise manifest.fault(checkpoint.folder, checkpoint.folder / name, error.strerror or str(error)) from None
        if found != expected:
            raise manifest.fault(checkpoint.folder, checkpoint.folder / name, "its data do not match their checksum")


def stored_bytes(checkpoint: Checkpoint) -> int:
    """Return the size of a version's files."""
    return sum(size for size, _ in checkpoint.manifest["files"].values())


def weights_of(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the arrays that scores depend on."""
    return [name for name in checkpoint.names("") if name.startswith("dense/") or (name.startswith("tables/") and name.endswith("/weights"))]


def write_weights(checkpoint: Checkpoint, folder: Path, tables: Path | None, precision: str, config: Mapping[str, Any]) -> None:
    """Write the weights into a folder that `dlrm.load` reads.

    Args:
        checkpoint: checkpoint of the model.
        folder: folder to create.
        tables: folder of the tables in `precision`; None for the checkpoint's tables.
        precision: precision of the tables.
        config: changes of the manifest's configuration.

    Raises:
        OSError: the files cannot be written.
    """
    folder.mkdir(parents=True)
    arrays = {name: checkpoint.manifest["arrays"][name] for name in weights_of(checkpoint)}
    packs = tables is not None and precision != FLOAT32
    dropped = _DROPPED
    if packs:  # packed tables are whole
        arrays = {name: {key: value for key, value in array.items() if key != manifest.TOUCHED} for name, array in arrays.items()}
        dropped = (*_DROPPED, TOUCHED_ROWS)
    for name in arrays:
        if not (packs and name.startswith("tables/")):
            link_tree(checkpoint.folder / file_of(name), folder / file_of(name))
    if packs:
        link_tree(tables, folder)
    else:
        link_all(checkpoint.folder, folder, map(bitmap_name, checkpoint.manifest.get(TOUCHED_ROWS, {})))
    link_all(checkpoint.folder, folder, _vocabularies(checkpoint))
    kept = {name: value for name, value in checkpoint.manifest.items() if name not in dropped}
    content = {**kept, "config": {**checkpoint.manifest.get("config", {}), **config}, "arrays": arrays}
    if packs:
        files = (path for path in sorted(folder.rglob("*")) if path.name in (packed.ROWS, packed.SCALES))
        content |= {packed.NAME: precision, _CONTENTS: {str(path.relative_to(folder)): packed.checksum(path) for path in files}}
    manifest.write(folder, content)


def link_all(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Link files, by name, from one folder into another."""
    for name in names:
        link(source / name, folder / name)


def _vocabularies(checkpoint: Checkpoint) -> list[str]:
    return [name for name in map(kept_file, checkpoint.manifest.get(RECORD, {})) if (checkpoint.folder / name).is_file()]
