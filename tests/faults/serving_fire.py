"""Requests of raw rows in mixed batches over both protocols, while versions are published and backends are killed.

python tests/faults/serving_fire.py --requests 100000       # prints its observations; some minutes for each ten thousand on 2 cores

Every answer has, bit for bit, the scores of one of the versions by the C++ scorer. A request that fails is sent again; it may fail only if it was
in flight between a kill and the first answer after it.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "serving")]

import numpy as np  # noqa: E402
import psutil  # noqa: E402
from real_server import eventually, stubs  # noqa: E402
from served_models import criteo_data, export, train  # noqa: E402

import dlrm  # noqa: E402
from run.raw_rows import drawn_columns  # noqa: E402
from serving.connection import Connection  # noqa: E402
from serving.publish import PublishConfig, publish  # noqa: E402
from serving.server import Server, ServerConfig  # noqa: E402
from utils.errors import UserError  # noqa: E402

MODEL, MOST = "dlrm", 300
PARTS = 400  # number of parts of the rows; a request sends one part
GRPC_CLIENTS, HTTP_CLIENTS = 12, 4
CHECKPOINTS = 4


class Try(NamedTuple):
    """A request that failed: the times when it was sent and when it came back, and the error's words."""

    begin: float
    end: float
    words: str


class Client(threading.Thread):
    """A client that sends requests over its own connection again and again, and checks the answers.

    Args:
        fire: the state that all clients share.
        scheme: grpc or http.
        seed: seed of the choice of requests.
    """

    def __init__(self, fire: "Fire", scheme: str, seed: int):
        super().__init__(daemon=True)
        self._fire, self._draw = fire, random.Random(seed)
        self._scheme = scheme
        self.failed: list[Try] = []
        self.answered: list[float] = []  # for the first answer after each failure: when its request was sent
        self.by_version: Counter = Counter()
        self.wrong: list[str] = []
        self.broken: Exception | None = None

    def run(self) -> None:
        try:
            connection = Connection(
                f"{self._scheme}://{getattr(self._fire.server, self._scheme)}", MODEL
            )  # made here, because HTTP's client must stay in its thread
            parts = [(start, stop, connection.tensors(self._fire.part(start, stop))) for start, stop in self._fire.places]
            while self._fire.takes_one():
                self._send(connection, *self._draw.choice(parts))
        except Exception as error:
            self.broken = error

    def _send(self, connection: Connection, start: int, stop: int, tensors: list) -> None:
        while True:
            begin = time.monotonic()
            try:
                found = connection.client.infer(MODEL, tensors).as_numpy("probability")[:, 0]
                break
            except Exception as error:  # Triton's client raises errors of any kind when the server is gone
                self.failed.append(Try(begin, time.monotonic(), " ".join(str(error).split())[:160]))
                time.sleep(0.05)
        if self.failed and (not self.answered or self.answered[-1] < self.failed[-1].end):
            self.answered.append(begin)
        bits = [scores[start:stop].view(np.uint32) for scores in self._fire.expected]
        if which := [version for version, expected in enumerate(bits) if np.array_equal(found.view(np.uint32), expected)]:
            self.by_version[which[0]] += 1
        else:
            off = min(float(np.abs(found - scores[start:stop]).max()) for scores in self._fire.expected)
            self.wrong.append(f"rows {start} to {stop}: off by {off:.2e}")

    def unexplained(self, kills: list[float]) -> list[Try]:
        """Return the failed requests that no kill explains: nothing had been killed since the last answer."""
        found = []
        for one in self.failed:
            before = [kill for kill in kills if kill <= one.end]
            recovered = before and next((begin for begin in self.answered if begin > before[-1]), float("inf"))
            if not before or one.begin > recovered:
                found.append(one)
        return found


class Fire:
    """A server, its clients, and the publishing and kills during their requests.

    Args:
        folder: an empty folder.
        requests: the number of requests to be answered.
        seed: seed of all random choices.
        rest_s: mean seconds between two kills.
        stops: the share of them that are stops (SIGSTOP) instead.
    """

    def __init__(self, folder: Path, requests: int, seed: int, rest_s: float, stops: float):
        self._rest_s = rest_s
        self._draw, self._folder, self._left, self._lock = random.Random(seed), folder, requests, threading.Lock()
        (folder / "log").mkdir()
        data = criteo_data(folder / "log")
        widths = {"embedding_dim": 4, "bottom_mlp_dims": "16,4", "learning_rate": 0.05}
        self._checkpoints = [train(data, folder / f"c{number}", seed=number, **widths) for number in range(CHECKPOINTS)]
        models = [dlrm.load(path, mmap=True, cpu=True) for path in self._checkpoints]
        self._columns = drawn_columns(models[0].raw_inputs(), seed=11)
        scorers = [model.over_raw_arrays() for model in models]
        self.expected = [scorer.score(*scorer.checked(self._columns)) for scorer in scorers]
        for one, other in zip(self.expected, self.expected[1:], strict=False):
            assert np.abs(one - other).max() > 1e-3, "the versions' scores are too similar to distinguish"
        rows = len(self.expected[0])
        sizes = [self._draw.choice((1, 1, 1, 1, 2, 2, 3, 3, 4, 5, 8, 8, 13, 20, 64, MOST)) for _ in range(PARTS)]
        self.places = [(start, start + size) for size in sizes for start in [self._draw.randrange(rows - size)]]
        export(self._checkpoints[0], folder / "r", "--model_name", MODEL, "--inputs", "raw", "--max_batch_size", 2048, "--max_queue_delay_us", 2000)
        self.stops = stops
        self.said: list[str] = []
        self.kills: list[float] = []
        self.done: Counter = Counter()
        self.faults: list[str] = []
        self.server: Server | None = None

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the inputs of a request."""
        return {
            name: np.array([str(value).encode() for value in values[start:stop]], object)[:, np.newaxis]
            if values.dtype == object
            else values[start:stop, np.newaxis]
            for name, values in self._columns.items()
        }

    def takes_one(self) -> bool:
        """Take one request from the count; return True if there was one left to send."""
        with self._lock:
            self._left -= 1
            if self._left > 0 and self._left % 1000 == 0:
                print(f"{time.strftime('%H:%M:%S')} {self._left:,} requests to go; {dict(self.done)}", file=sys.stderr)
            return self._left >= 0

    def run(self) -> list[Client]:
        """Send requests until all are answered; return the clients."""
        config = ServerConfig(http_port=0, grpc_port=0, metrics_port=0, exit_seconds=5, restarts=1000)
        with Server(self._folder / "r", config, self.said.append) as self.server:
            self.server.wait_until_ready()
            schemes = ("grpc",) * GRPC_CLIENTS + ("http",) * HTTP_CLIENTS
            clients = [Client(self, scheme, seed) for seed, scheme in enumerate(schemes)]
            for client in clients:
                client.start()
            disturbers = [threading.Thread(target=one, args=(clients,), daemon=True) for one in (self._publishes, self._kills)]
            for one in disturbers:
                one.start()
            for one in (*clients, *disturbers):
                one.join()
        return clients

    def _runs(self, clients: list[Client], seconds: float) -> bool:
        """Wait for some seconds, or until no client runs; return True if clients still run."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(client.is_alive() for client in clients):
            time.sleep(0.05)
        return any(client.is_alive() for client in clients)

    def _publishes(self, clients: list[Client]) -> None:
        number = 0
        while self._runs(clients, self._draw.uniform(0.1, 0.5) * self._rest_s):
            number += 1
            checkpoint, kills = self._checkpoints[number % CHECKPOINTS], len(self.kills)
            urls = tuple(f"{scheme}://{getattr(self.server, scheme)}" for scheme in self._draw.sample(("grpc", "http"), self._draw.randint(0, 1)))
            with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
                config = PublishConfig(str(self._folder / "r"), MODEL, str(checkpoint), url=urls, keep=self._draw.randint(1, 3))
                begin = time.monotonic()
                try:
                    publish(config)
                    self.done["published" if urls else "written without a server"] += 1
                except UserError as error:
                    # A kill during the load of a new version makes the load fail, which is no fault of publishing.
                    if len(self.kills) == kills and not any(kill > begin - 30 for kill in self.kills):
                        self.faults.append(str(error))
                    self.done["publishing refused after a kill"] += 1

    def _kills(self, clients: list[Client]) -> None:
        while self._runs(clients, self._draw.uniform(0.5, 1.5) * self._rest_s):
            kind = self._draw.random()
            with contextlib.suppress(psutil.Error, IndexError, ProcessLookupError):
                if kind < 0.06:
                    self._noted("server killed")
                    os.kill(self.server.process.pid, signal.SIGKILL)
                elif kind < 0.06 + self.stops:
                    stub = self._draw.choice(stubs(self.server))
                    self._noted("backend stopped")
                    stub.send_signal(signal.SIGSTOP)
                    self._runs(clients, self._draw.uniform(0, 6))
                    self.kills.append(time.monotonic())
                    stub.send_signal(signal.SIGCONT)
                elif kind < 0.3 + self.stops:
                    again = sum("serves again" in text for text in self.said)
                    self._kill_one()
                    eventually(lambda: sum("serves again" in text for text in self.said) > again or not self._runs(clients, 0.01))  # noqa: B023
                    self._kill_one("backend killed as soon as it served again")
                else:
                    self._kill_one()

    def _kill_one(self, what: str = "backend killed") -> None:
        stub = self._draw.choice(stubs(self.server))
        self._noted(what)
        stub.kill()

    def _noted(self, what: str) -> None:
        self.done[what] += 1
        self.kills.append(time.monotonic())


class Report(NamedTuple):
    """The observations of a run."""

    requests: int
    seconds: float
    by_version: Counter
    wrong: list[str]
    lost: list[str]
    failed: int
    done: Counter
    restarts: int
    faults: list[str]


def under_fire(folder: Path, requests: int, seed: int, rest_s: float, stops: float = 0.1) -> Report:
    """Send the given number of requests until each is answered; report the observations."""
    fire, start = Fire(folder, requests, seed, rest_s, stops), time.monotonic()
    clients = fire.run()
    broken = [str(client.broken) for client in clients if client.broken]
    lost = [f"{client.name}: {one.words}" for client in clients for one in client.unexplained(fire.kills)]
    by_version = sum((client.by_version for client in clients), Counter())
    again = sum("ready again" in text for text in fire.said)
    wrong, failed = [text for client in clients for text in client.wrong], sum(len(client.failed) for client in clients)
    return Report(sum(by_version.values()), time.monotonic() - start, by_version, wrong, lost, failed, fire.done, again, fire.faults + broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, help="number of requests to be answered")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--stops", type=float, default=0.1, help="share of the kills that are stops (SIGSTOP) instead")
    parser.add_argument("--rest", type=float, default=20.0, help="mean seconds between two kills")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fire-") as folder:
        report = under_fire(Path(folder), options.requests, options.seed, options.rest, options.stops)
    print(f"{report.requests:,} requests answered in {report.seconds:.0f} s, by checkpoint: {dict(sorted(report.by_version.items()))}")
    print(f"done meanwhile: {dict(report.done)}; the server was started again {report.restarts} times")
    print(f"failed between a kill and the next answer, and sent again: {report.failed - len(report.lost):,}")
    print(f"wrong: {len(report.wrong)} {report.wrong[:3]}; lost: {len(report.lost)} {report.lost[:3]}; other faults: {report.faults[:3]}")
    return int(bool(report.wrong or report.lost or report.faults or report.requests != options.requests))


if __name__ == "__main__":
    sys.exit(main())
