"""Installation of the Triton Inference Server from NVIDIA's wheel, in a folder of the cache.

python -m serving.triton_install      fetches it and makes the environment of its backend, where they do not exist yet
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from serving.cache import ensure_folder, install
from serving.stub_environment import stub_environment
from utils.cache import cache_folder
from utils.commands import run_command
from utils.errors import UserError
from utils.signals import EndedBySignals

NAME = "serving.triton_install"
PACKAGE, VERSION = "nvidia-pytriton", "0.7.0"  # contains Triton 2.51
_STUB = "triton_python_backend_stub"


class Installation(NamedTuple):
    """The folder of an installed server, with its paths and environment."""

    folder: Path

    @property
    def server(self) -> Path:
        """The server program; it finds its libraries relative to itself."""
        return self.folder / "bin/tritonserver"

    @property
    def backends(self) -> Path:
        """The folder of the backends: the Python backend."""
        return self.folder / "backends"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the server: the folder of Python's library, where Python has a shared one."""
        if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
            return {}
        known = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": ":".join(filter(None, (sysconfig.get_config_var("LIBDIR"), known)))}


def server_folder() -> Path:
    """Return the folder of the server for this Python, existing or not."""
    return cache_folder() / f"triton-{PACKAGE}-{VERSION}-python{_python()}"


def installed(say: Callable[[str], None] = lambda text: None) -> Installation:
    """Return the server for this Python; download it where it is missing: 120 MB, once.

    Raises:
        UserError: the server cannot be installed.
    """

    def fill(staging: Path) -> None:
        say(f"fetching {PACKAGE}=={VERSION}, which contains the Triton server, into {folder}")
        _install(staging)

    folder = server_folder()
    return Installation(ensure_folder(folder, fill) / "pytriton/tritonserver")


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _install(staging: Path) -> None:
    install(staging, [f"{PACKAGE}=={VERSION}"], f"{PACKAGE}=={VERSION}", "Linux on x86-64 or ARM64 and the package index")
    server = staging / "pytriton/tritonserver"
    stub = server / "python_backend_stubs" / _python() / _STUB
    if not stub.is_file():
        raise UserError(f"{PACKAGE}=={VERSION} has no backend for Python {_python()}")
    shutil.copy2(stub, server / "backends/python" / _STUB)


def main() -> None:
    """Run the command line: fetch the server and make its backend's environment."""
    installed(print)
    stub_environment(print)


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
