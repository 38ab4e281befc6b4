"""Translation of flag names in messages to the names that the user typed."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

AS_HERE: Mapping[str, str] = MappingProxyType({})  # no flag has another name


class Translated(NamedTuple):
    """A command line translated into this application's flags.

    Attributes:
        words: the words of the command line.
        lines: warnings about it, one a line.
        names: the user's names of flags, by their names here (without dashes; a key may include a value, as "resume auto" does).
    """

    words: list[str]
    lines: list[str]
    names: Mapping[str, str] = AS_HERE


def spoken(text: str, names: Mapping[str, str]) -> str:
    """Replace the flags in a message by the user's names of them."""
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    return re.sub(rf"--({'|'.join(map(re.escape, longest_first))})(?!\w)", lambda found: f"--{names[found[1]]}", text)
