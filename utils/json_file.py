"""Reading of a JSON file, with one-line error messages."""

import json
from typing import Any


def read_json(path: str) -> Any:
    """Return a JSON file's content. Raises ValueError, which names the file, where it cannot be read or is not JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())[:80]}; expected JSON") from None
