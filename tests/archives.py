"""Unpacking of archives that the repository holds."""

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive into a folder. Debian 12's Python 3.11.2 has no argument `filter`; later ones take the attribute."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)
