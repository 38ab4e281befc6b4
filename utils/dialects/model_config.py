"""The flag `--model_config FILE.json` of older versions of NVIDIA's DLRM for PyTorch: a file of flags, as a JSON object."""

from collections.abc import Collection, Sequence
from typing import Any

from utils.errors import UserError
from utils.json_file import read_json

_FLAG = "model_config"


def expanded(arguments: Sequence[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Replace `--model_config FILE` by the flags in the file; flags on the command line take precedence.

    Args:
        arguments: the words of the command line.
        known: the names of all flags.

    Returns:
        the words of the expanded command line, and a line about the file where one is named.

    Raises:
        UserError: the file cannot be read, is not an object of flags and values, or holds an unknown flag.
    """
    places = [i for i, word in enumerate(arguments) if word.lstrip("-").partition("=")[0] == _FLAG and word.startswith("-")]
    if not places:
        return list(arguments), []
    place = places[-1]
    word, after = arguments[place], list(arguments[place + 1 :])
    path = word.partition("=")[2] if "=" in word else after.pop(0) if after else ""
    rest = [*arguments[:place], *after]
    if len(places) > 1 or not path:
        raise UserError(f"--{_FLAG}: expected one JSON file")
    given = {other.lstrip("-").partition("=")[0] for other in rest if other.startswith("-")}
    content, words = _read(path), []
    for name, value in content.items():
        if name not in known:
            raise UserError(f"--{_FLAG} {path}: {name[:60]!r} is not a flag here; remove it")
        if name not in given:
            words += [f"--{name}", _word(value, f"--{_FLAG} {path}: {name}")]
    return [*words, *rest], [f"--{_FLAG} {path} is {' '.join(words) or 'without effect'} here"]


def _read(path: str) -> dict[str, Any]:
    try:
        content = read_json(path)
    except ValueError as error:
        raise UserError(f"--{_FLAG} {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"--{_FLAG} {path}: expected an object of flags and values, found {type(content).__name__}")
    return content


def _word(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and value and all(type(item) in (int, float) for item in value):
        return ",".join(map(str, value))
    if isinstance(value, int | float | str):
        return str(value)
    raise UserError(f"{where}: expected a number, a word, true, false or a list of numbers")
