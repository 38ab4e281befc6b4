"""The environment of Triton's Python backend: this environment's packages, preceded by the NumPy that the backend was built for.

The stub that runs Python in Triton 2.51 was built for NumPy 1. With NumPy 2 it silently receives arrays that repeat their first element, and makes
empty tensors. Therefore it runs in a virtual environment of its own in the cache. That holds no packages, but names the folder of that NumPy and
then the packages of the environment that runs this. `EXECUTION_ENV_PATH` of a model's `config.pbtxt` is its folder.

  python -m serving.stub_environment    creates it if it does not exist yet, and prints its folder
"""

import hashlib
import json
import platform
import re
import shlex
import site
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from serving.cache import ensure_folder, install
from utils.cache import cache_folder
from utils.commands import run_command
from utils.errors import UserError
from utils.signals import EndedBySignals

NAME = "serving.stub_environment"
REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements-stub.txt"
_NEWEST = (3, 12)  # the newest Python for which that NumPy is
_PACKAGES = "dlrm_tf2_stub.pth"
_OPERATIONS = "lib/dlrm_ops"  # the compiled operations under an environment, see `model.native`
_SILENT: Callable[[str], None] = lambda text: None  # noqa: E731


def stub_environment(say: Callable[[str], None] = _SILENT) -> Path:
    """Return the folder of the environment for this Python and its packages; make it where it does not exist.

    Args:
        say: called with a line before a slow step.

    Raises:
        UserError: the environment cannot be made.
    """
    if sys.version_info[:2] > _NEWEST:
        newest = ".".join(map(str, _NEWEST))
        raise UserError(
            f"Triton's Python backend needs {_pin()}, which no Python after {newest} has; this is Python {platform.python_version()}: expected an "
            f"environment of Python {newest} (DLRM_PYTHON=python{newest} ./scripts/install)"
        )
    numpy, packages = numpy_folder(), _packages()
    facts = json.dumps([sys.prefix, sys.base_prefix, str(numpy), packages])
    folder = numpy.with_name(f"stub-{numpy.name}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}")
    if shlex.quote(str(folder)) != str(folder):  # Triton 2.51 hangs with such a path
        raise UserError(f"{folder}: Triton passes this path to a shell unquoted; set DLRM_CACHE_DIR to a path without spaces and special characters")

    def fill(staging: Path) -> None:
        say(f"fetching {_pin()}, which Triton's Python backend was built for, into {numpy}")
        install(staging, ["-r", str(REQUIREMENTS)], _pin(), "the package index")

    ensure_folder(numpy, fill)
    return ensure_folder(folder, lambda staging: _make(staging, folder, [str(numpy), *packages]))


def numpy_folder() -> Path:
    """Return the folder of the backend's NumPy, existing or not; environments of one Python share it."""
    return cache_folder() / f"{_pin().replace('==', '-')}-python{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"


def _pin() -> str:
    """Return the requirement of NumPy, `numpy==VERSION`."""
    (found,) = re.findall(r"^[\w.=-]+", REQUIREMENTS.read_text(), re.M)
    return found


def numpy_version() -> str:
    """Return the NumPy version of the environment."""
    return _pin().partition("==")[2]


def _packages() -> list[str]:
    """Return the folders of this environment's packages."""
    return [*filter(lambda folder: Path(folder).is_dir(), site.getsitepackages()), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _make(staging: Path, folder: Path, packages: Sequence[str]) -> None:
    """Make a virtual environment in `staging`, to be moved to `folder`."""
    venv.EnvBuilder(symlinks=True).create(staging)
    activate = staging / "bin/activate"
    activate.write_text(activate.read_text().replace(str(staging), str(folder)))
    (own,) = staging.glob("lib/python*/site-packages")
    first, *others = packages
    lines = [first, *(f"import site; site.addsitedir({other!a})" for other in others)]  # these read the packages' own .pth files, too
    (own / _PACKAGES).write_text("".join(f"{line}\n" for line in lines))
    (staging / _OPERATIONS).symlink_to(Path(sys.prefix) / _OPERATIONS)


def main() -> None:
    """Run the command line: make the environment and print its folder."""
    print(stub_environment(lambda text: print(text, file=sys.stderr)))


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
