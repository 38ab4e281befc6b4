"""Files that every step of a run keeps beside its arrays: copied once, then the same file under several names."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO


class KeptFiles:
    """Files to keep; they were opened before the run began, so that what was checked then is what is kept.

    Args:
        files: open, by their names in a step's folder.
    """

    def __init__(self, files: Mapping[str, BinaryIO]):
        self._files, self._last = files, None

    def put(self, folder: Path) -> None:
        """Put them into a step's folder. Raises OSError."""
        for name, file in self._files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not self._linked(name, target):
                file.seek(0)
                with target.open("wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())

    def are_in(self, folder: Path) -> None:
        """The step that they were put into last is visible now, as this folder."""
        self._last = folder

    def _linked(self, name: str, target: Path) -> bool:
        """Whether the file of the step before could be used: it may be gone, and a file system may have no links."""
        try:
            os.link(self._last / name, target)
        except (OSError, TypeError):
            return False
        return True


NO_FILES = KeptFiles({})
