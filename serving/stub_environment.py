"""The environment in which Triton's Python backend runs: this one's packages, and before them the NumPy that the backend was built for.

The stub that carries Python in Triton 2.51 was built for NumPy 1. NumPy 2 gives it arrays that repeat their first element, and it makes tensors that
are empty, without an error. So it runs in a virtual environment of its own in the cache, which holds no packages, but names the folder of that NumPy
and then the packages of the environment that runs this. `EXECUTION_ENV_PATH` of a model's `config.pbtxt` is its folder.

  python -m serving.stub_environment    makes it where it is not there yet, and says where it is
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

from serving.cache import cache_folder, install, made
from utils.commands import run_command
from utils.errors import UserError
from utils.signals import EndedBySignals

NAME = "serving.stub_environment"
REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements-stub.txt"
_PACKAGES = "dlrm_tf2_stub.pth"
_OPERATIONS = "lib/dlrm_ops"  # under an environment: the compiled operations, see `model.native`
_SILENT: Callable[[str], None] = lambda text: None  # noqa: E731


def stub_environment(say: Callable[[str], None] = _SILENT) -> Path:
    """The folder of the environment for this Python and its packages, made where it is not there yet.

    Args:
        say: is told of what takes long.

    Raises:
        UserError: it cannot be made.
    """
    numpy, packages = numpy_folder(), _packages()
    facts = json.dumps([sys.prefix, sys.base_prefix, str(numpy), packages])
    folder = numpy.with_name(f"stub-{numpy.name}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}")
    if shlex.quote(str(folder)) != str(folder):  # Triton 2.51 hangs there
        raise UserError(f"{folder}: Triton hands this path to a shell as it is; DLRM_CACHE_DIR is to name a folder of plain letters, without blanks")

    def fill(staging: Path) -> None:
        say(f"fetching {_pin()}, which Triton's Python backend was built for, into {numpy}")
        install(staging, ["-r", str(REQUIREMENTS)], _pin(), "the package index")

    made(numpy, fill)
    return made(folder, lambda staging: _make(staging, folder, [str(numpy), *packages]))


def numpy_folder() -> Path:
    """Where NumPy for the backend is, or belongs; environments of one Python share it."""
    return cache_folder() / f"{_pin().replace('==', '-')}-python{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"


def _pin() -> str:
    """`numpy==VERSION`."""
    (found,) = re.findall(r"^[\w.=-]+", REQUIREMENTS.read_text(), re.M)
    return found


def numpy_version() -> str:
    """The NumPy of the environment."""
    return _pin().partition("==")[2]


def _packages() -> list[str]:
    """The folders of this environment's packages."""
    return [*filter(lambda folder: Path(folder).is_dir(), site.getsitepackages()), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _make(staging: Path, folder: Path, packages: Sequence[str]) -> None:
    """A virtual environment in `staging` that is to be moved to `folder`."""
    venv.EnvBuilder(symlinks=True).create(staging)
    activate = staging / "bin/activate"
    activate.write_text(activate.read_text().replace(str(staging), str(folder)))
    (own,) = staging.glob("lib/python*/site-packages")
    first, *others = packages
    lines = [first, *(f"import site; site.addsitedir({other!a})" for other in others)]  # with their own .pth files
    (own / _PACKAGES).write_text("".join(f"{line}\n" for line in lines))
    (staging / _OPERATIONS).symlink_to(Path(sys.prefix) / _OPERATIONS)


def main() -> None:
    """Make the environment."""
    print(stub_environment(lambda text: print(text, file=sys.stderr)))


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
