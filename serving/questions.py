"""HTTP requests to a Triton server for the watchdog: states, failures and health of versions, loading and unloading of models."""

import enum
import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, NamedTuple

READY, LOADING, UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"  # states of a version; the server also has UNLOADING
_LOAD_S = 600.0
PATIENCE_S = 3.0
_DEAD = ("not healthy", "unhealthy", "stub process")  # parts of Triton's messages about a backend that has died
_NUMBERS = ("INT", "UINT", "FP", "BOOL")


class Version(NamedTuple):
    """A version of a model."""

    model: str
    number: int


class Health(enum.Enum):
    """The health of a version, judged by its response to a request."""

    ANSWERS = "the model itself answers, be it with an error"
    DEAD = "the server answers in place of the backend process"
    NOT_READY = "the server does not report it as ready"
    SILENT = "no answer in time: it may be busy"


class Refused(Exception):
    """The server's error message."""


FAULTS = (OSError, ValueError, KeyError, HTTPException, Refused)  # raised where a server ends, for instance


class Questions:
    """A client of a server.

    Args:
        http: address of the server, HOST:PORT.

    Every method except `health` raises one of `FAULTS` where no complete answer arrives.
    """

    def __init__(self, http: str):
        self._http = http

    def states(self) -> dict[Version, str]:
        """Return the states of the versions that the server knows."""
        found = json.loads(self._asked("repository/index", {}))
        return {Version(one["name"], int(one["version"])): one.get("state", "") for one in found if one.get("version")}

    def failures(self) -> dict[Version, int]:
        """Return the number of requests that failed since each version was loaded."""
        found = json.loads(self._asked("models/stats"))["model_stats"]
        return {Version(one["name"], int(one["version"])): int(one["inference_stats"]["fail"]["count"]) for one in found}

    def config(self, version: Version) -> dict[str, Any]:
        """Return the configuration with which the server has loaded a version."""
        return json.loads(self._asked(f"models/{version.model}/versions/{version.number}/config"))

    def health(self, version: Version) -> Health:
        """Request the score of a sample of zeros and empty texts. Other programs' models are not asked, as a request may have any effect there."""
        try:
            config = self.config(version)
            if "PROJECT_PATH" not in config.get("parameters", {}):
                return Health.SILENT
            inputs = [_zeros(one) for one in config.get("input", ())]
            self._asked(f"models/{version.model}/versions/{version.number}/infer", {"inputs": inputs})
        except Refused as error:
            words = str(error).lower()
            return Health.NOT_READY if "ready state" in words else Health.DEAD if any(some in words for some in _DEAD) else Health.ANSWERS
        except FAULTS:
            return Health.SILENT
        return Health.ANSWERS

    def load(self, model: str) -> None:
        """Load the repository's current state of the model. Raises Refused; the server then keeps its loaded versions."""
        self._asked(f"repository/models/{model}/load", {}, _LOAD_S)

    def unload(self, model: str) -> None:
        """Stop serving the model. Raises Refused."""
        self._asked(f"repository/models/{model}/unload", {})

    def _asked(self, what: str, content: Any = None, patience_s: float | None = None) -> bytes:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"http://{self._http}/v2/{what}", data=body, method="GET" if body is None else "POST")
        try:
            with urllib.request.urlopen(request, timeout=patience_s or PATIENCE_S) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(_words(error.read())) from None


def _zeros(described: dict[str, Any]) -> dict[str, Any]:
    """Return an input of one sample, zeros or empty texts."""
    width = [max(int(size), 1) for size in described["dims"]]
    count, kind = 1, described["data_type"].removeprefix("TYPE_")
    for size in width:
        count *= size
    return {
        "name": described["name"],
        "shape": [1, *width],
        "datatype": "BYTES" if kind == "STRING" else kind,
        "data": [0 if kind.startswith(_NUMBERS) else ""] * count,
    }


def _words(answer: bytes) -> str:
    """Return the message of an error response in one line, without the stack that Triton appends to a backend's error."""
    try:
        text = str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        text = answer.decode(errors="replace")
    return " ".join(text.partition("\n\nAt:")[0].split())[:400]
