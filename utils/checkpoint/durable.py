"""Durable and atomic writes: a file survives a power cut, and is either complete or absent."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_THREADS = 16


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically by a new one."""
    partial = path.with_name(f".{path.name}.writing")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make the entries of a folder and of all folders below it durable."""
    with ThreadPoolExecutor(_THREADS) as pool:  # the file system commits several folders at once
        list(pool.map(sync_folder, [Path(path) for path, _, _ in os.walk(folder)]))
