"""Faults of serving: backends killed and stopped, publishing with and without a server and from a running training, all under requests.

They share the table of `campaign.py`, which has the kills and damages of training.
"""

import contextlib
import functools
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
from campaign import STEPS, Campaign, Row
from serving_fire import under_fire
from victim import ROOT, RUN, Victim

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/serving")]

import numpy as np  # noqa: E402
from real_server import PORTS, eventually, stubs  # noqa: E402
from served_models import PLAIN, export, train, write  # noqa: E402

import dlrm  # noqa: E402
from run.served_rows import drawn_rows  # noqa: E402
from serving.connection import Connection  # noqa: E402
from serving.live import live, versions  # noqa: E402
from serving.server import Server  # noqa: E402
from utils.errors import UserError  # noqa: E402


class ServingFaults:
    """The faults, one method each.

    Args:
        campaign: the campaign whose folder and dataset are used.
        requests: the number of requests of raw rows under publishing and kills.
    """

    def __init__(self, campaign: Campaign, requests: int):
        self.campaign, self.folder, self.draw, self._requests = campaign, campaign.folder / "serving", campaign.draw, requests
        self._scores: list[np.ndarray] = []

    def all(self, count: int) -> list:
        """Return every fault, to be called one after another."""
        return [
            lambda: self.killed_backends(count),
            lambda: self.stopped_backends(max(count // 2, 1)),
            self.busy,
            lambda: self.killed_publishes(count),
            lambda: self.published_from_a_running_training(count),
            self.fire,
        ]

    def _made(self) -> Path:
        """Make a new repository with a model of the first of two checkpoints; the first call trains both."""
        if not self._scores:
            self.folder.mkdir()
            data = write(self.folder / "data", PLAIN)
            for number, rate in enumerate((0.02, 0.2)):
                train(data, self.folder / f"c{number}", learning_rate=rate)
                model = dlrm.load(self.folder / f"c{number}", mmap=True, cpu=True)
                drawn, scorer = drawn_rows(model.features, 3), model.over_arrays()
                self._inputs = {"numerical": drawn.numerical[:40], "categorical": drawn.ids[:40]}
                self._scores.append(scorer.score(*scorer.checked(*self._inputs.values())))
        repository = self.folder / f"r{len(list(self.folder.glob('r*')))}"
        export(self.folder / "c0", repository)
        return repository

    def _answer(self, server: Server) -> int | None:
        """Return the number of the checkpoint whose scores the server gives; None while it gives none."""
        try:
            found = Connection(f"grpc://{server.grpc}", "dlrm").infer(self._inputs)
        except UserError:
            return None
        return next(number for number, scores in enumerate(self._scores) if np.array_equal(found, scores))

    def killed_backends(self, count: int) -> Row:
        """Kill the backend's process (`kill -9`) at random moments, and also the process that replaces it."""
        row, said = Row("`kill -9` of a backend's process"), []
        with Server(self._made(), PORTS, said.append) as server:
            server.wait_until_ready()
            for _ in range(count):
                for _ in range(self.draw.randint(1, 3)):
                    for process in stubs(server):
                        with contextlib.suppress(psutil.Error):
                            process.kill()
                            row.tries += 1
                    time.sleep(self.draw.uniform(0, 3))
                eventually(lambda: self._answer(server) == 0, 120)
                row.outcome["served again"] += 1
        if again := sum("ready again" in text for text in said):
            row.outcome["the server itself was started again"] = again
        return row

    def stopped_backends(self, count: int) -> Row:
        """Stop a backend's process (SIGSTOP) under requests and continue it (SIGCONT) later: the server may abort."""
        row, said = Row("a backend's process stopped (SIGSTOP) under load"), []
        with Server(self._made(), PORTS, said.append) as server:
            server.wait_until_ready()
            for _ in range(count):
                (stub,) = eventually(lambda: stubs(server) if len(stubs(server)) == 1 else None)
                connection = Connection(f"grpc://{server.grpc}", "dlrm")
                stub.send_signal(signal.SIGSTOP)
                for _ in range(500):
                    connection.begin(self._inputs, lambda scores, error: None)
                time.sleep(self.draw.uniform(0, 4))
                with contextlib.suppress(psutil.Error):
                    stub.send_signal(signal.SIGCONT)
                eventually(lambda: self._answer(server) == 0, 120)
                connection.close()
                row.tries += 1
                row.outcome["served again"] += 1
        if aborted := sum("ended unexpectedly by SIG" in text for text in said):
            row.outcome["the server aborted and was started again"] = aborted
        return row

    def busy(self) -> Row:
        """Keep 2,000 requests in flight for a minute, of which the model refuses one in a hundred: nothing has died, so nothing is loaded again."""
        row, said, places = Row("2,000 requests in flight for 60 s"), [], threading.Semaphore(2000)
        repository, found = self._made(), Counter()
        refused = self._inputs | {"categorical": np.full_like(self._inputs["categorical"], -5)}

        def finished(good: bool, scores: np.ndarray | None, error: UserError | None) -> None:
            if good:
                found["answered with their bits" if error is None and np.array_equal(scores, self._scores[0]) else f"{error or scores}"] += 1
            else:
                found["refused by the model" if "is not in [0, " in str(error) else f"{error or scores}"] += 1
            places.release()

        with Server(repository, PORTS, said.append) as server:
            server.wait_until_ready()
            before = {process.pid for process in stubs(server)}
            connection, end = Connection(f"grpc://{server.grpc}", "dlrm"), time.monotonic() + 60
            while time.monotonic() < end:
                places.acquire()
                good = row.tries % 100 != 99
                connection.begin(self._inputs if good else refused, functools.partial(finished, good))
                row.tries += 1
            assert all(places.acquire(timeout=120) for _ in range(2000)), "some requests were not answered"
            connection.close()
            assert {process.pid for process in stubs(server)} == before, said
        assert not said and sorted(found) == ["answered with their bits", "refused by the model"], (said, found.most_common(5))
        row.outcome.update(found)
        return row

    def killed_publishes(self, count: int) -> Row:
        """Kill publishing (`kill -9`) with and without a server: after a restart the server serves a complete version that was announced."""
        row = Row("`kill -9` of publishing")
        repository = self._made()
        for i in range(count):
            before = live(repository / "dlrm")
            with Server(repository, PORTS) as server:
                server.wait_until_ready()
                served = self._answer(server)
                url = ["--url", f"grpc://{server.grpc}"] if i % 2 else []
                words = ["-m", "serving.publish", "--repository", repository, "--checkpoint", self.folder / f"c{1 - served}", "--keep", "1", *url]
                with subprocess.Popen([sys.executable, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                    newest = versions(repository / "dlrm")[-1]
                    if self.draw.random() < 0.3:
                        time.sleep(self.draw.uniform(0, 5))
                    else:
                        eventually(lambda: versions(repository / "dlrm")[-1] > newest or process.poll() is not None, 120)  # noqa: B023
                        time.sleep(self.draw.uniform(0, 4))
                    process.kill()
                for stub in stubs(server):
                    with contextlib.suppress(psutil.Error):
                        stub.kill()
                eventually(lambda: self._answer(server) is not None, 120)
            announced = live(repository / "dlrm")
            assert len(announced) == 1 and (url or announced == before), (before, announced)
            with Server(repository, PORTS) as server:
                server.wait_until_ready()
                assert self._answer(server) == (served if announced == before else 1 - served)
            row.tries += 1
            row.outcome["the version before is served" if announced == before else "the new version is served"] += 1
        return row

    def published_from_a_running_training(self, count: int) -> Row:
        """Export from a folder in which a run keeps one checkpoint and writes a new one at every other step."""
        row, folder = Row("publishing from a running training that keeps one checkpoint"), self.campaign.folder / "publishing"
        repository = self.campaign.folder / "published"
        flags = ("--dataset_path", self.campaign.dataset, "--save_checkpoint_path", folder, "--checkpoint_every_steps", 2, "--keep_checkpoints", 1)
        run = Victim(self.campaign.folder, *flags, *RUN, "--max_steps", 100 * STEPS, "--epochs", 400)
        try:
            assert run.wait_until(lambda: run.step > 4), run.err
            for number in range(1, count + 1):
                assert run.process.poll() is None, "the run ended too early"
                words = ["serving.publish", "--repository", repository, "--checkpoint", folder] if number > 1 else []
                first = ["dlrm.py", "--mode", "export", "--restore_checkpoint_path", folder, "--export_path", repository, "--cpu", "--log_path", ""]
                command = [sys.executable, *(["-m", *words] if words else first)]
                done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
                assert done.returncode == 0 and versions(repository / "dlrm")[-1] == number, done.stderr
                row.tries += 1
                row.outcome["published"] += 1
        finally:
            run.process.send_signal(signal.SIGTERM)
            run.end()
        return row

    def fire(self) -> Row:
        """Send requests under publishing and kills as in `serving_fire.py`, which runs alone with more requests."""
        row, folder = Row(f"{self._requests:,} requests of raw rows under publishing and kills"), self.campaign.folder / "fire"
        folder.mkdir()
        report = under_fire(folder, self._requests, self.draw.randint(0, 999), 15.0)
        assert not report.wrong and not report.lost and not report.faults, (report.wrong[:3], report.lost[:3], report.faults[:3])
        assert report.requests == self._requests
        row.tries = sum(report.done.values())
        row.outcome.update({"requests answered as one of the versions": report.requests, "requests sent again after a kill": report.failed})
        row.outcome.update(report.done)
        return row
