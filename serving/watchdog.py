"""A watchdog that reloads versions whose backend processes have died: Triton 2.51 then answers only "Stub process is not healthy"."""

import contextlib
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.live import check_program, config_of, live
from serving.questions import FAULTS, LOADING, READY, Health, Questions, Version
from serving.stubs import Stub, end, stubs
from utils.errors import UserError

_EVERY_S = 0.25
_BETWEEN_S = 1.0  # minimum time between two examinations of a model that answers
_SHORTEST_REST_S, _LONGEST_REST_S = 0.5, 30.0
_WAITING_S = 5.0  # patience of a load with a backend process that has ended
_UNSEEN_S, _UNPACKING_S = (
    15.0,
    60.0,
)  # for a process that was never seen; the longer one where Triton unpacks an archived environment first
_ARCHIVE = re.compile(r'"EXECUTION_ENV_PATH"\s*value\s*:?\s*\{\s*string_value\s*:\s*"[^"]*\.(?:tar|tgz|tar\.gz)"')
_OTHERS_S = 3.0  # how long to wait for a load of the model that another client started


class Watchdog:
    """A thread that watches the models of a server.

    A version that the server calls ready is judged by its response to a request. It is sent one where requests have failed since the last look, or it
    has fewer processes than instances. A model of which nothing answers is unloaded at once, so that the server itself reports it as not ready, and
    then loaded. Where another instance or version of the model answers, it is loaded without unloading. A version that does not respond in time may
    be busy, and is left alone. A server that loads a version whose process has been killed waits for it forever: such a server is killed.

    Args:
        server: process number of the server.
        http: address of the server, HOST:PORT.
        repository: repository that it serves.
        say: called with a line about each event.
    """

    def __init__(self, server: int, http: str, repository: Path, say: Callable[[str], None]):
        self._server, self._repository, self._say, self._questions = server, repository, say, Questions(http)
        self._stop = threading.Event()
        self._failures: dict[Version, int] = {}  # as of the last look
        self._instances: dict[Version, int] = {}
        self._rests: dict[str, tuple[float, float]] = {}  # by model: end of its rest, and length of the rest after a failed load
        self._ready: set[str] = set()
        self._down: set[str] = set()  # models that this watchdog unloaded
        self._at_work: dict[str, threading.Thread] = {}
        self._loads = _Loads()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join(5)

    @property
    def models(self) -> list[str]:
        """The models that are served, or are to be served again."""
        return sorted(self._ready | self._down | set(filter(self._busy, self._at_work)))

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            with contextlib.suppress(*FAULTS):
                self._look()

    def _look(self) -> None:
        states, failures = self._questions.states(), self._questions.failures()
        alive, ready = Counter(stub.version for stub in self._stubs()), {version for version, state in states.items() if state == READY}
        self._ready = {version.model for version in ready}
        self._down -= {model for model in self._ready if not self._busy(model)}
        loading = {version: alive[version] for version, state in states.items() if state == LOADING}
        if stuck := self._loads.stuck(loading, lambda version: _patience(self._repository, version)):
            self._say(f"{stuck.model}: the server waits for a backend process of version {stuck.number} that has ended; the server is killed")
            self._stop.set()
            os.kill(self._server, signal.SIGKILL)
        for version in sorted(ready):
            with contextlib.suppress(*FAULTS):
                failed = failures.get(version, 0) > self._failures.get(version, 0)
                if not failed or self._begins(version.model, self._examine, version):
                    self._failures[version] = failures.get(version, 0)  # a load resets the server's count
                if not failed and alive[version] < self._expected(version):
                    self._begins(version.model, self._examine, version)
        for model in sorted(self._down):
            self._begins(model, self._load, model)

    def _begins(self, model: str, action: Callable, of: object) -> bool:
        """Run an action in a thread of the model's own, so that other models are not delayed; not while one runs or the model is left alone."""
        due, _ = self._rests.get(model, (0.0, 0.0))
        if time.monotonic() < due or self._busy(model):
            return False

        def acts() -> None:
            with contextlib.suppress(*FAULTS):
                action(of)

        self._at_work[model] = threading.Thread(target=acts, name=f"watchdog of {model}", daemon=True)
        self._at_work[model].start()
        return True

    def _busy(self, model: str) -> bool:
        return model in self._at_work and self._at_work[model].is_alive()

    def _examine(self, version: Version) -> None:
        """Examine a version in doubt, and restore it where it has died."""
        expected = self._expected(version, anew=True)
        answers = self._answers(version, expected)
        alive = self._alive(version)
        ended = alive < expected or answers.count(Health.DEAD) > 1
        if Health.NOT_READY in answers or not ended or self._questions.states().get(version) != READY:
            _, rested = self._rests.get(version.model, (0.0, 0.0))
            self._rests[version.model] = time.monotonic() + _BETWEEN_S, rested
            return
        partly = Health.ANSWERS in answers or 0 < alive < expected or any(one.version.model == version.model for one in self._stubs(but=version))
        what = f"{version.model}: {'a' if partly else 'the'} backend process of version {version.number}"
        if alive >= expected:
            end(self._server, version, only_stopped=Health.ANSWERS in answers)  # a stopped process would do damage when it continues
        self._say(f"{what} has ended or does not answer; restarting it")
        if partly and _touched(self._repository / version.model / str(version.number) / "model.py"):
            self._load(version.model)
        else:
            self._anew(version)

    def _answers(self, version: Version, expected: int) -> list[Health]:
        """Ask until the state is clear. A version whose processes exist is dead only after two answers: on a busy machine one may time out."""
        first = self._questions.health(version)
        if self._alive(version) >= expected and (expected > 1 or first is Health.DEAD):
            return [first, *(self._questions.health(version) for _ in range(2 * expected - 1))]
        if first is not Health.DEAD:
            time.sleep(2 * _EVERY_S)  # versions or instances may be changing just now
        return [first]

    def _anew(self, version: Version) -> None:
        deadline = time.monotonic() + _OTHERS_S
        while self._loading(version.model) and time.monotonic() < deadline:
            time.sleep(_EVERY_S)
        if self._questions.states().get(version) == READY and not self._alive(version):  # no other client has restored it
            self._down.add(version.model)
            self._questions.unload(version.model)
            self._load(version.model)

    def _load(self, model: str) -> None:
        start, (_, rested) = time.monotonic(), self._rests.get(model, (0.0, 0.0))
        try:
            for number in live(self._repository / model):
                check_program(self._repository / model, number)
            self._questions.load(model)
        except (UserError, *FAULTS) as error:
            rested = min(2 * rested, _LONGEST_REST_S) or _SHORTEST_REST_S
            self._rests[model] = time.monotonic() + rested, rested
            if not any(one.model == model and state == READY for one, state in self._questions.states().items()):
                self._down.add(model)
            self._say(f"{model}: cannot be loaded: {error}")
            return
        self._rests.pop(model, None)
        self._say(f"{model}: serves again after {time.monotonic() - start:.1f} s")

    def _loading(self, model: str) -> bool:
        return any(one.model == model and state == LOADING for one, state in self._questions.states().items())

    def _expected(self, version: Version, anew: bool = False) -> int:
        """Return the number of processes that a version should have."""
        if anew or version not in self._instances:
            groups = self._questions.config(version).get("instance_group", ())
            self._instances[version] = sum(int(group.get("count", 1)) for group in groups) or 1
        return self._instances[version]

    def _alive(self, version: Version) -> int:
        return sum(stub.version == version for stub in self._stubs())

    def _stubs(self, but: Version | None = None) -> list[Stub]:
        return [stub for stub in stubs(self._server) if stub.version != but]


def _patience(repository: Path, version: Version) -> float:
    """Return the seconds to wait for a process that was never seen."""
    try:
        return _UNPACKING_S if _ARCHIVE.search(config_of(repository / version.model, version.number)) else _UNSEEN_S
    except OSError:
        return _UNPACKING_S


def _touched(file: Path) -> bool:
    """Update the modification time of a version's file, so that the server reloads a version it has. Return whether a load will do."""
    try:
        os.utime(file)
    except FileNotFoundError:
        return True  # a load then takes the versions that still exist
    except OSError:
        return False
    return True


class _Loads:
    """The versions that are being loaded, whose processes may have ended."""

    def __init__(self):
        self._last: dict[Version, float] = {}  # the time when each was last seen with a process
        self._first: dict[Version, float] = {}

    def stuck(self, processes: Mapping[Version, int], patience: Callable[[Version], float]) -> Version | None:
        """Return a version whose process has ended; None where there is none.

        Args:
            processes: number of processes of each version that is being loaded.
            patience: seconds to wait for a process that was never seen.
        """
        now = time.monotonic()
        self._first = {version: self._first.get(version, now) for version in processes}
        self._last = {version: now if count else self._last.get(version, 0.0) for version, count in processes.items()}
        for version, last in self._last.items():
            if now - max(last, self._first[version]) > (_WAITING_S if last else patience(version)):
                return version
        return None
