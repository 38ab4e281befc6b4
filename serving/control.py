"""Control of the versions that a Triton server serves, for publishing; over gRPC or HTTP."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serving.connection import GRPC, HTTP, RequestError, tools
from serving.live import config_of, naming
from serving.questions import READY, UNAVAILABLE
from utils.errors import UserError

_GONE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")  # gRPC states where no server answers


class Unreachable(UserError):
    """An error raised where no server answers."""


class Control:
    """A server whose models can be loaded and unloaded.

    Args:
        url: `grpc://HOST:PORT`, `http://HOST:PORT`, or HOST:PORT for gRPC.

    Every method raises Unreachable where no server answers.

    Raises:
        UserError: tritonclient is missing, or the address is invalid.
    """

    def __init__(self, url: str):
        scheme, _, place = url.rpartition("://")
        if scheme not in ("", GRPC, HTTP) or not place:
            raise UserError(f"--url {url}: expected grpc://HOST:PORT or http://HOST:PORT")
        self.url, self._over_http = url, scheme == HTTP
        self._tools = tools(HTTP if self._over_http else GRPC)
        patience = {"connection_timeout": 10.0, "network_timeout": 600.0} if self._over_http else {}
        self._client = self._tools.InferenceServerClient(place.rstrip("/"), **patience)

    def states(self, model: str) -> dict[int, str] | None:
        """Return the states of the model's versions that the server knows, by number; None where its repository has no such model."""
        as_json = {} if self._over_http else {"as_json": True}
        found = self._asked(lambda: self._client.get_model_repository_index(**as_json), "its index")
        found = found if isinstance(found, list) else found.get("models", [])
        mine = [one for one in found if one["name"] == model]
        return {int(one["version"]): one.get("state", "") for one in mine if one.get("version")} if mine else None

    def ready(self, model: str) -> list[int]:
        """Return the model's versions that answer."""
        return sorted(number for number, state in (self.states(model) or {}).items() if state == READY)

    def in_use(self, model: str) -> set[int]:
        """Return the model's versions whose files the server may read: they answer, or are being loaded or unloaded."""
        return {number for number, state in (self.states(model) or {}).items() if state not in ("", UNAVAILABLE)}

    def load(self, model: Path, numbers: Sequence[int]) -> None:
        """Serve these versions of a model, whatever its `config.pbtxt` says. Raises RequestError; the server then keeps its loaded versions."""
        from google.protobuf import json_format, text_format  # installed with tritonclient
        from tritonclient.grpc import model_config_pb2

        text = naming(config_of(model, numbers[-1]), *numbers)
        try:
            config = json_format.MessageToJson(text_format.Parse(text, model_config_pb2.ModelConfig()), preserving_proto_field_name=True)
        except text_format.ParseError as error:
            raise RequestError(f"{model}: the config.pbtxt of version {numbers[-1]} cannot be read: {' '.join(str(error).split())}") from None
        self._asked(lambda: self._client.load_model(model.name, config=config), f"loading model {model.name}")
        if missing := set(numbers) - set(self.ready(model.name)):
            raise RequestError(f"{self.url}: loading model {model.name}: version {min(missing)} is not served; expected a server of this repository")

    def load_named(self, model: str) -> None:
        """Serve the versions that the model's `config.pbtxt` names. Raises RequestError."""
        self._asked(lambda: self._client.load_model(model), f"loading model {model}")

    def unload(self, model: str) -> None:
        """Stop serving the model. Raises RequestError."""
        self._asked(lambda: self._client.unload_model(model), f"unloading model {model}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _asked(self, question: Callable[[], Any], what: str) -> Any:
        try:
            return question()
        except self._tools.InferenceServerException as error:
            words = " ".join(str(error.message()).partition("\n\nAt:")[0].split())[:400]
            kind = Unreachable if any(gone in str(error.status()) for gone in _GONE) else RequestError
            raise kind(f"{self.url}: {what}: {words}") from None
        except OSError as error:
            raise Unreachable(f"{self.url}: {what}: {error.strerror or error}; no server answers there; start one with ./scripts/serve") from None
