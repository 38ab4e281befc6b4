"""Start the real Triton server on a model repository, loopback only unless told otherwise, and end it cleanly.

  ./scripts/serve REPOSITORY
  python -m serving.server REPOSITORY --http_port 8000 --grpc_port 8001 --metrics_port 8002

It is fetched into the cache folder on first use. SIGINT and SIGTERM end it after the requests in flight. Models of other backends are left out.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.repository import CONFIG, versions
from serving.triton_install import Installation, installed
from serving.watchdog import Watchdog
from utils.errors import UserError, run_command
from utils.flags import Parser, add_flags, build, check, check_types, option

NAME = "serve"
_PYTHON = re.compile(r'^backend: "python"', re.M)
_PDEATHSIG = 1  # of prctl
_ERROR = re.compile(r"^E\d{4} \S+ +\d+ \S+\] (.*)$", re.M)
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class ServerConfig:
    """Server."""

    address: str = option("127.0.0.1", "address it listens on; 0.0.0.0 for all of this machine's")
    http_port: int = option(8000, "port of HTTP; 0 for any that is free")
    grpc_port: int = option(8001, "port of gRPC; 0 for any that is free")
    metrics_port: int = option(8002, "port of the metrics, http://ADDRESS:PORT/metrics; 0 for any that is free")
    server_log: str | None = option(None, "file for the server's own log; the default is a new one among the temporary files")
    ready_seconds: float = option(120.0, "how long it may take to load the models", unit="seconds")
    exit_seconds: int = option(30, "how long requests in flight may take when it ends", unit="seconds")

    def __post_init__(self):
        check_types(self)
        for name in ("http_port", "grpc_port", "metrics_port"):
            check(0 <= getattr(self, name) < 2**16, name, getattr(self, name), "a port, 0 to 65535")
        check(self.ready_seconds > 0, "ready_seconds", self.ready_seconds, "more than 0 seconds")
        check(self.exit_seconds >= 0, "exit_seconds", self.exit_seconds, "0 or more seconds")


class Server:
    """A running server; a context manager that ends it.

    Args:
        repository: of models.
        config: its options.
        say: is told what a person wants to know.

    Attributes:
        http, grpc, metrics: addresses.
        log: the server's own log.

    Raises:
        UserError: there is no model, a port is taken, or a model cannot be loaded.
    """

    def __init__(self, repository: Path, config: ServerConfig = ServerConfig(), say: Callable[[str], None] = lambda text: None):
        self._config, self._say, self._watchdog = config, say, None
        models = _models(repository, say)
        program = installed(say)
        ports = [port or _free_port(config.address) for port in (config.http_port, config.grpc_port, config.metrics_port)]
        self.http, self.grpc, self.metrics = (f"{config.address}:{port}" for port in ports)
        for flag, port in zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True):
            _check_free(config.address, port, flag)
        descriptor, self.log = _log_file(config.server_log)
        self._prefix = f"dlrm_{os.getpid()}_{ports[0]}_"  # of its shared memory, so that what a killed one leaves can be told
        self._start = time.monotonic()
        with os.fdopen(descriptor, "wb") as log:
            self.process = subprocess.Popen(
                _command(program, repository, models, config, ports, self._prefix),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | program.environment | {"TF_CPP_MIN_LOG_LEVEL": "2"},
                start_new_session=True,  # ^C is ours: the server is ended after its requests
                preexec_fn=_dies_with_its_parent,
            )

    def wait_until_ready(self) -> float:
        """Returns the seconds it took. Raises UserError where it does not come to it."""
        while not self._answers():
            if self.process.poll() is not None:
                raise UserError(f"the server ended: {self._cause()} (all of its log: {self.log})")
            if time.monotonic() - self._start > self._config.ready_seconds:
                raise UserError(f"not ready after {self._config.ready_seconds:g} s (--ready_seconds): {self._cause()} (all of its log: {self.log})")
            time.sleep(0.05)
        self._watchdog = Watchdog(self.process.pid, self.http, self._say)
        return time.monotonic() - self._start

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.http}/v2/health/ready", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def _cause(self) -> str:
        """The server's own words."""
        text = Path(self.log).read_text(errors="replace")
        found = _ERROR.findall(text)
        return (found[-1] if found else text.strip().splitlines()[-1] if text.strip() else "it says nothing")[:400]

    def close(self) -> int:
        """End it after its requests; returns its exit code."""
        if self._watchdog is not None:
            self._watchdog.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self._config.exit_seconds + 15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for left in _SHARED_MEMORY.glob(f"{self._prefix}*"):  # of a backend that was killed
            left.unlink(missing_ok=True)
        return self.process.returncode

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _models(repository: Path, say: Callable[[str], None]) -> list[str]:
    """Those of the Python backend."""
    if not repository.is_dir():
        raise UserError(f"{repository}: no such folder; expected a model repository (dlrm.py --mode export --export_path writes one)")
    found = []
    for folder in sorted(path for path in repository.iterdir() if (path / CONFIG).is_file() and not path.name.startswith(".")):
        if not versions(folder):
            raise UserError(f"{folder}: has no version, a folder called 1 for instance")
        if _PYTHON.search((folder / CONFIG).read_text()):
            found.append(folder.name)
        else:
            say(f"{folder.name}: left out; this server has the Python backend only, Triton's containers have others")
    if not found:
        raise UserError(f"{repository}: holds no model of the Python backend; dlrm.py --mode export --formats triton writes one")
    return found


def _command(program: Installation, repository: Path, models: Sequence[str], config: ServerConfig, ports: Sequence[int], prefix: str) -> list[str]:
    flags = {
        "model-repository": repository,
        "backend-directory": program.backends,
        "model-control-mode": "explicit",  # new versions come when they are asked for, and an error is an answer
        "backend-config": f"python,shm-region-prefix-name={prefix}",
        "exit-timeout-secs": config.exit_seconds,
        **{f"{name}-address": config.address for name in ("http", "grpc", "metrics")},
        **{f"{name}-port": port for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)},
    }
    return [str(program.server), *(f"--{name}={value}" for name, value in flags.items()), *(f"--load-model={model}" for model in models)]


def _log_file(path: str | None) -> tuple[int, str]:
    if path is None:
        return tempfile.mkstemp(prefix="dlrm-serve-", suffix=".log")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), path


def _free_port(address: str) -> int:
    with socket.socket() as found:
        found.bind((address, 0))
        return found.getsockname()[1]


def _check_free(address: str, port: int, flag: str) -> None:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((address, port))
        except OSError as error:
            raise UserError(f"--{flag} {port}: {error.strerror} on {address}; choose another, or 0 for any that is free") from None


def _dies_with_its_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)


class _Ended(Exception):
    """A signal has ended the wait."""


def _end(number: int, frame: object) -> None:
    raise _Ended


def main() -> int:
    """Serve until a signal comes, or the server ends by itself."""
    parser = Parser(prog=NAME, description=__doc__)
    parser.add_argument("repository", metavar="REPOSITORY", help="folder of a Triton model repository")
    add_flags(parser, [ServerConfig])
    values = vars(parser.parse_strictly(sys.argv[1:]))
    repository, config = Path(values.pop("repository")), build(ServerConfig, values)

    def say(text: str) -> None:
        print(text, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(Server(repository, config, say))
            seconds = server.wait_until_ready()
            say(f"ready after {seconds:.1f} s: http://{server.http}, grpc://{server.grpc}, metrics http://{server.metrics}/metrics; log {server.log}")
            code = server.process.wait()
            raise UserError(f"the server ended by itself with code {code}: {server._cause()} (all of its log: {server.log})")
        except _Ended:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            say("ending")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
