"""A connection to a model on a Triton server, over gRPC or HTTP."""

import importlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from serving.description import PROBABILITY
from serving.triton_config import ROWS
from utils.errors import UserError

GRPC, HTTP = "grpc", "http"
_TIMEOUT_S = 300.0


class Input(NamedTuple):
    """An input of a model: its name, its type (FP32, INT64, BYTES) and the number of values a sample."""

    name: str
    kind: str
    width: int


class RequestError(UserError):
    """A request that the server answered with an error."""


def is_here(url: str) -> bool:
    """Return whether a server's address is one of this machine."""
    host = url.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        for family, *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind(address)  # only an address of this machine can be bound
                return True
    except OSError:
        pass
    return False


class Connection:
    """A connection to a model on a server. Several threads may share it over gRPC, but not over HTTP.

    Args:
        url: `grpc://HOST:PORT`, `http://HOST:PORT`, or HOST:PORT for gRPC.
        model: name of the model.
        version: number of the version; None for the one that the server chooses.

    Attributes:
        inputs: inputs of the model that requests need, without optional ones.
        versions: versions that are served.
        max_batch_size: maximum number of samples a request.
        rows: rows of the table that each of the K ids of a sample refers to; empty where the server does not state them.

    Raises:
        UserError: tritonclient is missing, no server answers, or it has no such model.
    """

    def __init__(self, url: str, model: str, version: int | None = None):
        scheme, _, place = url.rpartition("://")
        if scheme not in ("", GRPC, HTTP) or not place:
            raise UserError(f"--url {url}: expected grpc://HOST:PORT or http://HOST:PORT")
        self.url, self.model, self._version = url, model, "" if version is None else str(version)
        self.over_http = scheme == HTTP
        self._tools = tools(HTTP if self.over_http else GRPC)
        timeouts = {"connection_timeout": 10.0, "network_timeout": _TIMEOUT_S} if self.over_http else {}
        self.client = self._tools.InferenceServerClient(place.rstrip("/"), **timeouts)
        metadata = self._asked(lambda: self.client.get_model_metadata(model, self._version, **self._as_json), f"model {model}")
        self.versions = [int(number) for number in metadata.get("versions", ())]
        config = self._asked(lambda: self.client.get_model_config(model, self._version, **self._as_json), f"model {model}")
        config = config.get("config", config)
        optional = {one["name"] for one in config.get("input", ()) if one.get("optional", False)}
        inputs = (Input(one["name"], one["datatype"], int(one["shape"][-1])) for one in metadata["inputs"])
        self.inputs = [one for one in inputs if one.name not in optional]
        self.max_batch_size = int(config.get("max_batch_size", 1))
        described = config.get("parameters", {}).get(ROWS, {}).get("string_value", "")
        self.rows = np.array([rows for word in described.split(",") if word for rows in _repeated(word)], np.int64)

    @property
    def _as_json(self) -> dict[str, Any]:
        return {} if self.over_http else {"as_json": True}

    def infer(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return probabilities `[B]` for inputs `[B, width]`. Raises RequestError with the server's message."""
        options = {} if self.over_http else {"client_timeout": _TIMEOUT_S}
        result = self._asked(lambda: self.client.infer(self.model, self.tensors(arrays), self._version, **options), "request")
        return result.as_numpy(PROBABILITY)[:, 0]

    def begin(self, arrays: Mapping[str, np.ndarray], done: Callable[[np.ndarray | None, Exception | None], None]) -> None:
        """Send a request and return at once. Call `done` with the probabilities or the error, in another thread. Over gRPC only."""

        def finished(result: Any, error: Exception | None) -> None:
            done(None if error else result.as_numpy(PROBABILITY)[:, 0], error)

        self.client.async_infer(self.model, self.tensors(arrays), finished, self._version, client_timeout=_TIMEOUT_S)

    def statistics(self) -> dict[str, Any]:
        """Return the server's statistics for the version of the model that answered last."""
        found = self._asked(lambda: self.client.get_inference_statistics(self.model, self._version, **self._as_json), "statistics")
        stats = found.get("model_stats", [])
        if not stats:
            return {}
        return max(stats, key=lambda one: int(one.get("last_inference", 0)))

    def load(self) -> None:
        """Load the repository's current state of the model. Raises RequestError where that fails; the server then keeps its loaded versions."""
        self._asked(lambda: self.client.load_model(self.model), f"loading model {self.model}")

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def tensors(self, arrays: Mapping[str, np.ndarray]) -> list[Any]:
        """Return the input tensors of a request, from arrays by input name."""
        found = []
        for one in self.inputs:
            values = arrays[one.name]
            tensor = self._tools.InferInput(one.name, list(values.shape), one.kind)
            tensor.set_data_from_numpy(values)
            found.append(tensor)
        return found

    def _asked(self, question: Callable[[], Any], what: str) -> Any:
        try:
            return question()
        except self._tools.InferenceServerException as error:
            words = " ".join(str(error.message()).split())
            raise RequestError(f"{self.url}: {what}: {words[:400]}") from None
        except OSError as error:
            raise UserError(f"{self.url}: {what}: {error.strerror or error}; no server answers there; start one with ./scripts/serve") from None


def _repeated(word: str) -> list[int]:
    """Parse one entry of the parameter `ROWS`: `300*6` -> 300, six times."""
    rows, _, count = word.partition("*")
    return [int(rows)] * int(count or 1)


def tools(scheme: str) -> Any:
    """Return Triton's client module for a protocol. Raises UserError where it is missing."""
    try:
        # gRPC would start its threads again in a forked child, which aborts where it is only about to start another program.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        return importlib.import_module(f"tritonclient.{scheme}")
    except (ImportError, RuntimeError) as error:
        raise UserError(f"tritonclient cannot be used ({error}); python -m pip install --no-deps -r requirements-serving.txt") from None


def check_inputs(connection: Connection, expected: Sequence[str]) -> None:
    """Raise UserError where the model's inputs are not the expected ones."""
    found = [one.name for one in connection.inputs]
    if sorted(found) != sorted(expected):
        raise UserError(f"{connection.url}: model {connection.model} takes {', '.join(found[:6])}; expected {', '.join(expected)}")
