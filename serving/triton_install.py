"""The Triton Inference Server out of NVIDIA's wheel, in a folder of its own under the cache.

python -m serving.triton_install      fetches it and makes the environment of its backend, where they are not there yet
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from serving.cache import cache_folder, install, made
from serving.stub_environment import stub_environment
from utils.commands import run_command
from utils.errors import UserError
from utils.signals import EndedBySignals

NAME = "serving.triton_install"
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


def server_folder() -> Path:
    """Where the server for this Python is, or belongs."""
    return cache_folder() / f"triton-{PACKAGE}-{VERSION}-python{_python()}"


def installed(say: Callable[[str], None] = lambda text: None) -> Installation:
    """The server for this Python, fetched where it is not there yet: 120 MB, once.

    Raises:
        UserError: it cannot be had.
    """

    def fill(staging: Path) -> None:
        say(f"fetching {PACKAGE}=={VERSION}, which carries the Triton server, into {folder}")
        _install(staging)

    folder = server_folder()
    return Installation(made(folder, fill) / "pytriton/tritonserver")


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
    """Fetch the server and make its backend's environment."""
    installed(print)
    stub_environment(print)


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
