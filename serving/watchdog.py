"""Backend processes that end by themselves are started again: Triton 2.51 answers "Stub process is not healthy" from then on."""

import contextlib
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import psutil

_EVERY_S = 0.25
_LOAD_S = 600.0
_LONGEST_REST_S = 60.0
_STUB = "triton_python_backend_stub"
_FILE, _INSTANCE = 1, 8  # of a stub's command line: the version's model.py, and its name


class Stub(NamedTuple):
    """A backend process: the version's `model.py` and the instance's name."""

    file: Path
    instance: str


class Watchdog:
    """Watches the backend processes of a server, in a thread.

    A version whose process is gone while the server counts it as ready is loaded again. The server reads a version anew where a file of it is newer
    than it was, so `model.py` is touched.

    Args:
        server: its process.
        http: its address, HOST:PORT.
        say: is told.
    """

    def __init__(self, server: int, http: str, say: Callable[[str], None]):
        self._server, self._http, self._say = server, http, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join(5)

    def _watch(self) -> None:
        known: set[Stub] = set()
        rests: dict[Stub, tuple[float, float]] = {}  # when to try again, and how long it was rested
        while not self._stop.wait(_EVERY_S):
            alive = set(self._alive())
            for stub in sorted(known - alive):
                due, rested = rests.get(stub, (0.0, 0.5))
                if time.monotonic() < due:
                    continue
                with contextlib.suppress(OSError, ValueError, HTTPException):  # the server itself ends
                    if not self._ready(stub):
                        known.discard(stub)  # another version has taken its place
                    elif self._loaded_again(stub):
                        rests.pop(stub, None)
                    else:
                        rested = min(2 * rested, _LONGEST_REST_S)
                        rests[stub] = time.monotonic() + rested, rested
            known |= alive

    def _alive(self) -> Iterator[Stub]:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._server).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    words = child.cmdline()  # empty of one that has ended
                    if len(words) > _INSTANCE and Path(words[0]).name == _STUB:
                        yield Stub(Path(words[_FILE]), words[_INSTANCE])

    def _ready(self, stub: Stub) -> bool:
        """Whether the server counts the stub's version as ready."""
        model, version = stub.file.parts[-3], stub.file.parts[-2]
        found = json.loads(self._post("index"))
        return any((one["name"], one.get("version"), one.get("state")) == (model, version, "READY") for one in found)

    def _loaded_again(self, stub: Stub) -> bool:
        model = stub.file.parts[-3]
        self._say(f"{model}: the backend process {stub.instance} has ended; it is started again")
        start = time.monotonic()
        try:
            os.utime(stub.file)
            self._post(f"models/{model}/load")
        except urllib.error.HTTPError as error:
            self._say(f"{model}: cannot be loaded: {' '.join(error.read().decode(errors='replace').split())[:400]}")
            return False
        except (OSError, HTTPException) as error:
            self._say(f"{model}: cannot be loaded: {error}")
            return False
        self._say(f"{model}: serves again after {time.monotonic() - start:.1f} s")
        return True

    def _post(self, what: str) -> bytes:
        request = urllib.request.Request(f"http://{self._http}/v2/repository/{what}", data=b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=_LOAD_S) as answer:
            return answer.read()
