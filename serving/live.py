"""The live version of a model, named in `config.pbtxt`: a starting server, the watchdog and `serving.publish` all follow it."""

import re
from collections.abc import Sequence
from pathlib import Path

from utils.checkpoint.durable import sync_folder, write_text
from utils.errors import UserError

CONFIG, CARD = "config.pbtxt", "MODEL.md"  # the model's files are copies of its live version's
_PYTHON = re.compile(r'^[ \t]*backend\s*:\s*"python"', re.M)
_PROGRAM = re.compile(r'^[ \t]*default_model_filename\s*:\s*"([^"]+)"', re.M)
_POLICY = re.compile(r"^[ \t]*version_policy\s*:?\s*\{", re.M)
_COMMENT = re.compile(r"#.*")


def versions(model: Path) -> list[int]:
    """Return the numbers of a model's versions, in ascending order."""
    if not model.is_dir():
        return []
    return sorted(int(path.name) for path in model.iterdir() if path.is_dir() and path.name.isdigit() and not path.name.startswith("0"))


def stated(config: str) -> list[int] | None:
    """Return the versions named in a `config.pbtxt`; an empty list where its policy names none, None where it has no policy."""
    place = _policy(config)
    if place is None:
        return None
    policy = _COMMENT.sub("", config[slice(*place)])
    return [int(number) for number in re.findall(r"\d+", policy)] if "specific" in policy else []


def naming(config: str, *numbers: int) -> str:
    """Return the `config.pbtxt` text with these versions named as the live ones."""
    place = _policy(config)
    rest = config if place is None else config[: place[0]] + config[place[1] :].lstrip("\n")
    return f"{rest.rstrip()}\nversion_policy: {{ specific: {{ versions: [ {', '.join(map(str, numbers))} ] }} }}\n"


def live(model: Path) -> list[int]:
    """Return the versions that a server starting now would serve; the newest where the policy names none."""
    there = versions(model)
    named = stated((model / CONFIG).read_text()) if (model / CONFIG).is_file() else None
    return [number for number in named if number in there] if named else there[-1:]


def config_of(model: Path, number: int) -> str:
    """Return the `config.pbtxt` for a live version: its own, or the model's where an older export has none."""
    own = model / str(number) / CONFIG
    return naming((own if own.is_file() else model / CONFIG).read_text(), number)


def is_python(config: str) -> bool:
    """Return whether a `config.pbtxt` is of Triton's Python backend."""
    return _PYTHON.search(config) is not None


def check_program(model: Path, number: int) -> None:
    """Raise UserError where a version of the Python backend has no program: Triton 2.51, asked to load it, would wait for ever or end."""
    try:
        config = config_of(model, number)
    except OSError:
        return  # a server says what it lacks
    if is_python(config):
        named = _PROGRAM.search(config)
        path = model / str(number) / (named[1] if named else "model.py")
        if not path.is_file():
            raise UserError(f"{path}: no such file, and the version cannot be served without it; restore it, or export the version again")


def pin(model: Path, served: Sequence[int] = ()) -> None:
    """Name the live version where no policy is stated, as in older exports; a version added later is then not live merely by existing.

    Args:
        model: folder of the model.
        served: versions with which a server answers; the newest of these becomes live, or the newest of all where none of them exists.
    """
    if (model / CONFIG).is_file() and stated(config := (model / CONFIG).read_text()) is None and (there := versions(model)):
        _replace(model / CONFIG, naming(config, max(set(served).intersection(there), default=there[-1])))


def announce(model: Path, number: int) -> None:
    """Make a version the live one, atomically."""
    _replace(model / CONFIG, config_of(model, number))
    card = model / str(number) / CARD
    if card.is_file():
        _replace(model / CARD, card.read_text())


def _replace(path: Path, text: str) -> None:
    write_text(path, text)
    sync_folder(path.parent)


def _policy(config: str) -> tuple[int, int] | None:
    """Return the range of the policy in the text: its first character and the one after its last; None where there is none."""
    begin = _POLICY.search(config)
    if begin is None:
        return None
    depth, place = 1, begin.end()
    while depth and place < len(config):
        depth += {"{": 1, "}": -1}.get(config[place], 0)
        place += 1
    return begin.start(), place
