"""The Triton Inference Server out of NVIDIA's wheel, in a folder of its own under the cache."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

from serving import children
from utils.errors import UserError
from utils.scratch import Scratch, exclusively

PACKAGE, VERSION = "nvidia-pytriton", "0.7.0"  # carries Triton 2.51
_STUB = "triton_python_backend_stub"


class Installation(NamedTuple):
    """Where the server is, and what it is started with."""

    folder: Path

    @property
    def server(self) -> Path:
        """The program, which finds its libraries relative to itself."""
        return self.folder / "bin/tritonserver"

    @property
    def backends(self) -> Path:
        """The backends: the Python one."""
        return self.folder / "backends"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables: where Python's library is, where it is one outside the system's folders."""
        if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
            return {}
        known = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": ":".join(filter(None, (sysconfig.get_config_var("LIBDIR"), known)))}


def cache_folder() -> Path:
    """Where the project keeps what it has fetched: `DLRM_CACHE_DIR`, or a folder in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("DLRM_CACHE_DIR") or Path(home) / "dlrm-tf2")


def installed(say=lambda text: None) -> Installation:
    """The server for this Python, fetched where it is not there yet: 120 MB, once.

    Raises:
        UserError: it cannot be had.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"triton-{PACKAGE}-{VERSION}-python{version}"
    found = Installation(folder / "pytriton/tritonserver")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusively(folder.parent):
        if not folder.exists():
            say(f"fetching {PACKAGE}=={VERSION}, which carries the Triton server, into {folder}")
            _install(folder, version)
    return found


def _install(folder: Path, version: str) -> None:
    scratch = Scratch(folder.parent, "staging")
    try:
        staging = scratch.folder / "wheel"
        words = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(staging), f"{PACKAGE}=={VERSION}")
        result = children.run([sys.executable, *words], stdout=PIPE, stderr=PIPE)
        if result.returncode:
            cause = next((line for line in reversed(result.stderr.splitlines()) if line.startswith("ERROR")), result.stderr.strip()[-200:])
            raise UserError(f"{PACKAGE}=={VERSION} cannot be installed ({cause}); it needs Linux on x86-64 or ARM64 and the package index")
        server = staging / "pytriton/tritonserver"
        stub = server / "python_backend_stubs" / version / _STUB
        if not stub.is_file():
            raise UserError(f"{PACKAGE}=={VERSION} has no backend for Python {version}")
        shutil.copy2(stub, server / "backends/python" / _STUB)
        staging.rename(folder)
    finally:
        scratch.remove()
