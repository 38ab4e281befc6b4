"""The project's folder in the user's cache."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the project's cache folder: `DLRM_CACHE_DIR`, or a folder in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("DLRM_CACHE_DIR") or Path(home) / "dlrm-tf2").absolute()
