"""Start the real Triton server on a model repository, on the loopback address by default, and stop it cleanly.

  ./scripts/serve REPOSITORY
  python -m serving.server REPOSITORY --http_port 8000 --grpc_port 8001 --metrics_port 8002

It is downloaded into the cache folder on first use. SIGINT and SIGTERM stop it after the requests in flight. Models of other backends are skipped.
A server that ends unexpectedly is restarted at the same addresses.
"""

import contextlib
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from serving.description import CHECKPOINT
from serving.keeper import Keeper
from serving.live import CONFIG, check_program, is_python, live, versions
from serving.ports import NAMES, Ports
from serving.server_log import ending, last_words
from serving.shared_memory import Segments
from serving.stubs import end_of
from serving.triton_install import Installation, installed
from serving.watchdog import Watchdog
from utils.cluster.processes import end_all, of_group, start_bound
from utils.commands import run_command
from utils.config.flags import Parser, add_flags
from utils.config.option import FROM_0, FROM_1, Bounds, build, check, check_options, option
from utils.errors import UserError
from utils.signals import EndOnce, Once

NAME = "serve"
_COMPARED_BYTES_PER_S = 100e6  # at least, when a version is first loaded; see `integrity`
_TAKEN = re.compile(r"Socket '\S+' already in use")


@dataclass(frozen=True)
class ServerConfig:
    """Server."""

    address: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for all addresses of this machine")
    http_port: int = option(8000, "port for HTTP; 0 for any free port")
    grpc_port: int = option(8001, "port for gRPC; 0 for any free port")
    metrics_port: int = option(8002, "port for the metrics, http://ADDRESS:PORT/metrics; 0 for any free port")
    server_log: str | None = option(None, "file for the server's own log; the default is a new temporary file")
    ready_seconds: float = option(
        120.0,
        "time limit for loading the models, beside a second for each 100 MB of weights, which a first load compares with their checksums",
        unit="seconds",
        bounds=Bounds("more than 0 seconds", 0, above=True, besides=(math.inf,)),
    )
    request_mib: int = option(256, "length of the longest request by HTTP", unit="MiB", bounds=FROM_1)
    exit_seconds: int = option(30, "time limit for requests in flight when it is stopped", unit="seconds", bounds=Bounds("0 or more seconds", 0))
    restarts: int = option(
        5,
        "failing starts in a row after which a server that ended unexpectedly is given up; one that was ready is always started again, after pauses "
        "of up to 30 s. 0: it is never started again",
        bounds=FROM_0,
    )

    def __post_init__(self):
        check_options(self)
        for name in NAMES:
            check(0 <= getattr(self, name) < 2**16, name, getattr(self, name), "a port, 0 to 65535")


class Server:
    """A running server, as a context manager that ends it. After it was ready once, it is restarted whenever it ends unexpectedly.

    Args:
        repository: folder of the models.
        config: options of the server.
        say: called with messages for the user.

    Attributes:
        http, grpc, metrics: addresses, which stay the same.
        process: the server's process, a new one after a restart.
        log: path of the server's own log.

    Raises:
        UserError: there is no model, a port is taken, or a model cannot be loaded.
    """

    def __init__(self, repository: Path, config: ServerConfig = ServerConfig(), say: Callable[[str], None] = lambda text: None):
        self._config, self._say, self._watchdog, self._keeper = config, say, None, None
        self._closes = threading.Event()
        self._repository, self._models, self._program = repository, _models(repository, say), installed(say)
        self._ports = Ports(config, say)
        self.log = _log_file(config.server_log)
        self._shared = Segments(self._ports.clients[0])
        self._start = time.monotonic()
        self._again = self._ports.free  # a free port may be taken before the server binds it: then one more start with other ports is allowed
        self._begin("wb")

    def _begin(self, mode: str = "ab") -> None:
        config, program, shared = self._config, self._program, self._shared
        self.http, self.grpc, self.metrics = (f"{config.address}:{port}" for port in self._ports.clients)
        with open(self.log, mode) as log:
            self._written = log.seek(0, os.SEEK_END)  # length of the log of earlier servers
            self.process = start_bound(
                _command(program, self._repository, self._models, self._ports.own, shared.prefix, config.exit_seconds),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | program.environment | {"TF_CPP_MIN_LOG_LEVEL": "2"},
                start_new_session=True,  # ^C goes to this process only, which ends the server after its requests
                pass_fds=[] if shared.lock is None else [shared.lock],
            )

        self._ports.open()

    def look(self) -> None:
        """Start the door again where it has ended. Raises OSError."""
        self._ports.look()

    def start_again(self) -> float:
        """Restart the server at the same addresses with the same models after it ended unexpectedly; return the seconds it took. Raises UserError.

        The calling thread must live as long as the server: the server ends with it.
        """
        if self._watchdog is not None:
            self._watchdog.close()
            self._models = self._watchdog.models or self._models
            self._watchdog = None
        end_of(self._shared.prefix)
        self._shared.remove()
        self._again, self._start = False, time.monotonic()
        self._begin()
        return self.wait_until_ready()

    def wait_until_ready(self) -> float:
        """Wait until the server is ready; return the seconds since its start. Raises UserError where it ends or takes too long."""
        comparing = _weights_bytes(self._repository, self._models) / _COMPARED_BYTES_PER_S
        while not self._answers():
            self.look()
            if self._closes.is_set():
                raise UserError("the server is being stopped")
            if self.process.poll() is not None:
                if self._again and _TAKEN.search(Path(self.log).read_text(errors="replace")):  # another program took a port meanwhile
                    self._again = False
                    self._ports.choose()
                    self._begin()
                    continue
                raise UserError(f"the server ended: {self._words()}" if self.process.returncode >= 0 else f"the server ended {self.end}")
            if time.monotonic() - self._start > self._config.ready_seconds + comparing:
                raise UserError(f"not ready after {self._config.ready_seconds:g} s (--ready_seconds): {self._words()}")
            time.sleep(0.05)
        self._watchdog = Watchdog(self.process.pid, "{}:{}".format(*self._ports.own[0]), self._repository, self._say)
        self._keeper = self._keeper or Keeper(self, self._config.restarts, self._say)
        return time.monotonic() - self._start

    @property
    def error(self) -> UserError | None:
        """The reason why the server is no longer restarted, where it has ended unexpectedly too often."""
        return self._keeper and self._keeper.error

    def _answers(self) -> bool:
        """Return whether the server is ready and answers on its last port, the metrics'. Without that port it would end right after readiness."""
        try:
            for place in (f"{self.http}/v2/health/ready", f"{self.metrics}/metrics"):
                with urllib.request.urlopen(f"http://{place}", timeout=5) as response:
                    if response.status != 200:
                        return False
            return True
        except (OSError, HTTPException):
            return False

    @property
    def end(self) -> str:
        """A description of the server's unexpected end."""
        return f"{ending(self.process.returncode)}: {self._words()}"

    def _words(self) -> str:
        return f"{last_words(self.log, self._written)} (full log: {self.log})"

    def close(self) -> int:
        """End the server after its requests; return its exit code."""
        self._closes.set()
        if self._keeper is not None:
            self._keeper.close()
        if self._watchdog is not None:
            self._watchdog.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self._config.exit_seconds + 15)
            except subprocess.TimeoutExpired:
                end_all(lambda: of_group(self.process.pid))
                self.process.wait()
        self._ports.close()
        end_of(self._shared.prefix)
        self._shared.close()
        return self.process.returncode

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _models(repository: Path, say: Callable[[str], None]) -> list[str]:
    """Return the models of the Python backend in the repository."""
    if not repository.is_dir():
        raise UserError(f"{repository}: no such folder; expected a model repository (dlrm.py --mode export --export_path writes one)")
    if any(letter.isspace() for letter in str(repository.absolute())):  # Triton 2.51 would never be ready: its stub splits the path at a space
        raise UserError(f"{str(repository.absolute())!r}: Triton's Python backend takes no path with a space; move the repository")
    found, faults = [], []
    for folder in sorted(path for path in repository.iterdir() if (path / CONFIG).is_file() and not path.name.startswith(".")):
        if not versions(folder):
            raise UserError(f"{folder}: has no version; expected a folder with a number as its name, such as 1")
        if not is_python((folder / CONFIG).read_text()):
            say(f"{folder.name}: skipped: this server has only the Python backend; Triton's containers have others")
            continue
        try:
            for number in live(folder):
                check_program(folder, number)
        except UserError as error:
            say(f"{folder.name}: skipped: {error}")
            faults.append(error)
            continue
        found.append(folder.name)
    if faults and not found:
        raise faults[0]
    if not found:
        raise UserError(f"{repository}: holds no model of the Python backend; dlrm.py --mode export --formats triton writes one")
    return found


def _weights_bytes(repository: Path, models: Sequence[str]) -> int:
    """Return the size of the weights of the live versions."""
    folders = (repository / model / str(number) / CHECKPOINT for model in models for number in live(repository / model))
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def _command(
    program: Installation, repository: Path, models: Sequence[str], addresses: Sequence[tuple[str, int]], prefix: str, exit_seconds: int
) -> list[str]:
    flags = {
        "model-repository": repository,
        "backend-directory": program.backends,
        "model-control-mode": "explicit",  # new versions are loaded on request, and errors are reported to the client
        "backend-config": f"python,shm-region-prefix-name={prefix}",
        "exit-timeout-secs": exit_seconds,
        **{f"{name}-address": address for name, (address, _) in zip(("http", "grpc", "metrics"), addresses, strict=True)},
        **{flag.replace("_", "-"): port for flag, (_, port) in zip(NAMES, addresses, strict=True)},
    }
    return [str(program.server), *(f"--{name}={value}" for name, value in flags.items()), *(f"--load-model={model}" for model in models)]


def _log_file(path: str | None) -> str:
    if path is not None:
        return path
    descriptor, path = tempfile.mkstemp(prefix="dlrm-serve-", suffix=".log")
    os.close(descriptor)
    return path


def main() -> int:
    """Run the command line: serve until a signal arrives or the server has ended unexpectedly too often."""
    parser = Parser(prog=NAME, description=__doc__)
    parser.add_argument("repository", metavar="REPOSITORY", help="folder of a Triton model repository")
    add_flags(parser, [ServerConfig])
    values = vars(parser.parse_strictly(sys.argv[1:]))
    repository, config = Path(values.pop("repository")), build(ServerConfig, values)

    def say(text: str) -> None:
        print(text, flush=True)

    ending = Once()
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(Server(repository, config, say))
            opened.callback(ending.close)
            seconds = server.wait_until_ready()
            say(f"ready after {seconds:.1f} s: http://{server.http}, grpc://{server.grpc}, metrics http://{server.metrics}/metrics; log {server.log}")
            while server.error is None:
                time.sleep(0.2)  # in short waits, as an endless wait would not notice a signal that another thread takes
            raise server.error
        except EndOnce:
            say("stopping")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
