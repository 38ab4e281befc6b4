"""A trial before training: whether checkpoints can be written to a folder and read back by all workers."""

import secrets
import shutil
import time
from pathlib import Path

import numpy as np
import psutil

from utils.checkpoint.folder import being_tried
from utils.checkpoint.zarr_store import brief, create_array, file_of, open_array, write_rows
from utils.distributed import World
from utils.errors import UserError

# A network file system may show a new file to other machines late: NFS caches a folder's content for up to 60 s. Local ones show it at once.
REMOTE_WITHIN_S, LOCAL_WITHIN_S = 70.0, 1.0
LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


def try_folder(path: Path, arrays: list[str], world: World) -> None:
    """Write a tiny array under the longest of the arrays' names, read it back on every worker and remove it.

    Args:
        path: the folder of the checkpoints, `--save_checkpoint_path`; it exists on the first worker.
        arrays: the names of the arrays that a checkpoint will hold.
        world: the workers; each calls this at the same point.

    Raises:
        UserError: the first worker cannot write or read there (a name is too long, the path is not UTF-8, the folder was removed,
            the disk is full), or another worker does not see the array: the folder is not shared.
    """
    token = world.from_first(secrets.randbits(24), "checkpoint_token")
    folder = being_tried(path)
    array = folder / max((file_of(name) for name in arrays), key=lambda name: (max(map(len, name.split("/"))), len(name)))
    try:
        world.agree(_problem(lambda: _write(folder, array, token), path) if world.first else None, "checkpoint_tried")
        world.agree(_problem(lambda: _read(array, token, world), path), "checkpoint_seen")
    finally:
        if world.first:
            shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, array: Path, token: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    create_array(array, (1,), (1,)).result()
    write_rows(open_array(array), 0, np.full(1, token, np.float32), None).result()


def _read(array: Path, token: int, world: World) -> None:
    deadline = time.monotonic() + (LOCAL_WITHIN_S if _is_local(array) else REMOTE_WITHIN_S)
    while True:
        try:
            found = int(open_array(array).read().result()[0])
        except ValueError:
            if world.first:
                raise
            found = None
        if found == token:
            return
        if time.monotonic() >= deadline or world.first:
            raise UserError("this worker does not see the files that the first one writes there; expected a folder that all workers share")
        time.sleep(0.2)


def _is_local(path: Path) -> bool:
    """Return whether a path, which need not exist yet, is on a local file system."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    place = path.resolve()
    return next((mounts[folder] for folder in (place, *place.parents) if folder in mounts), "") in LOCAL


def _problem(action, path: Path) -> str | None:
    """Call an action and return its error message, None where it succeeds, for `World.agree`."""
    try:
        action()
    except UserError as error:
        return f"--save_checkpoint_path {path}: {error}"
    except OSError as error:
        return f"--save_checkpoint_path {path}: no checkpoint can be written there: {error.filename or ''}: {error.strerror or error}"
    except ValueError as error:  # TensorStore raises it for errors of the system
        return f"--save_checkpoint_path {path}: no checkpoint can be written there: {brief(error)}"
    return None
