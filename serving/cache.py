"""The project's cache of downloaded or generated folders for serving; a folder is either complete or absent."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE

from utils.cluster import processes
from utils.errors import UserError
from utils.scratch import Scratch, exclusively


def ensure_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; create it if it does not exist. Of several processes one creates it while the others wait.

    Args:
        folder: folder in the cache.
        fill: called with an empty folder to fill, which then becomes `folder`.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with exclusively(folder.parent):
                if not folder.is_dir():
                    _fill(folder, fill)
    except OSError as error:
        message = f"{error.filename or folder}: {error.strerror or error}"
        raise UserError(f"{message}; serving keeps its programs in this folder; set DLRM_CACHE_DIR to a writable one") from None
    return folder


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    scratch = Scratch(folder.parent, "staging")
    try:
        staging = scratch.folder / "made"
        staging.mkdir()
        fill(staging)
        staging.rename(folder)
    finally:
        scratch.remove()


def install(folder: Path, words: Sequence[str], what: str, needs: str) -> None:
    """Install packages into a folder of their own, without their dependencies.

    Args:
        folder: an existing folder.
        words: arguments for pip that name the packages.
        what: name of the packages in messages.
        needs: requirements of the installation, for an error message.

    Raises:
        UserError: pip cannot install them.
    """
    fixed = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--target", str(folder))
    result = processes.run([sys.executable, "-m", "pip", "install", *fixed, *words], stdout=PIPE, stderr=PIPE)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or [f"exit code {result.returncode}"]
        cause = next((line for line in reversed(lines) if line.startswith("ERROR: ") and line != "ERROR: Exception:"), lines[-1])
        raise UserError(f"{what} cannot be installed into {folder.parent.parent} ({' '.join(cause.split())[:300]}); it needs {needs}")
