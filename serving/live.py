"""The live version of a model: `config.pbtxt` names it, and a server that starts, the watchdog and `serving.publish` go by that."""

import re
from collections.abc import Sequence
from pathlib import Path

from utils.checkpoint.durable import sync_folder, write_text

CONFIG, CARD = "config.pbtxt", "MODEL.md"  # of a model, those of its live version; a version has its own
_POLICY = re.compile(r"^[ \t]*version_policy\s*:?\s*\{", re.M)
_COMMENT = re.compile(r"#.*")


def versions(model: Path) -> list[int]:
    """The numbers of a model's versions, rising."""
    if not model.is_dir():
        return []
    return sorted(int(path.name) for path in model.iterdir() if path.is_dir() and path.name.isdigit() and not path.name.startswith("0"))


def stated(config: str) -> list[int] | None:
    """The versions that a `config.pbtxt` names; none where it states a policy that names none, None where it states no policy."""
    place = _policy(config)
    if place is None:
        return None
    policy = _COMMENT.sub("", config[slice(*place)])
    return [int(number) for number in re.findall(r"\d+", policy)] if "specific" in policy else []


def naming(config: str, *numbers: int) -> str:
    """A `config.pbtxt` that names these versions as the live ones."""
    place = _policy(config)
    rest = config if place is None else config[: place[0]] + config[place[1] :].lstrip("\n")
    return f"{rest.rstrip()}\nversion_policy: {{ specific: {{ versions: [ {', '.join(map(str, numbers))} ] }} }}\n"


def live(model: Path) -> list[int]:
    """The versions that a server which starts now would serve; of a policy that names none, the newest."""
    there = versions(model)
    named = stated((model / CONFIG).read_text()) if (model / CONFIG).is_file() else None
    return [number for number in named if number in there] if named else there[-1:]


def config_of(model: Path, number: int) -> str:
    """The `config.pbtxt` with which a version goes live: its own; of older exports the model's."""
    own = model / str(number) / CONFIG
    return naming((own if own.is_file() else model / CONFIG).read_text(), number)


def pin(model: Path, served: Sequence[int] = ()) -> None:
    """Name the live version where no policy is stated, as older exports left it: then one that comes later is not announced by being there.

    Args:
        model: its folder.
        served: versions that a server answers by; without, or where none of them is there, the newest is the live one.
    """
    if (model / CONFIG).is_file() and stated(config := (model / CONFIG).read_text()) is None and (there := versions(model)):
        _replace(model / CONFIG, naming(config, max(set(served).intersection(there), default=there[-1])))


def announce(model: Path, number: int) -> None:
    """Make a version the live one, in one step."""
    _replace(model / CONFIG, config_of(model, number))
    card = model / str(number) / CARD
    if card.is_file():
        _replace(model / CARD, card.read_text())


def _replace(path: Path, text: str) -> None:
    write_text(path, text)
    sync_folder(path.parent)


def _policy(config: str) -> tuple[int, int] | None:
    """Where the policy stands: its first character and the one after its last."""
    begin = _POLICY.search(config)
    if begin is None:
        return None
    depth, place = 1, begin.end()
    while depth and place < len(config):
        depth += {"{": 1, "}": -1}.get(config[place], 0)
        place += 1
    return begin.start(), place
