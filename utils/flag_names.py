"""Flags in messages by the names that the user gave them by."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

AS_HERE: Mapping[str, str] = MappingProxyType({})  # nothing has another name


class Translated(NamedTuple):
    """A command line in this application's flags.

    Attributes:
        words: of the command line.
        lines: about it, each a warning.
        names: of flags here (without dashes; "resume auto" is one with its value), and what the user calls them.
    """

    words: list[str]
    lines: list[str]
    names: Mapping[str, str] = AS_HERE


def spoken(text: str, names: Mapping[str, str]) -> str:
    """A message, with the flags in it by the user's names."""
    if not names:
        return text
    longest_first = sorted(names, key=len, reverse=True)
    return re.sub(rf"--({'|'.join(map(re.escape, longest_first))})(?!\w)", lambda found: f"--{names[found[1]]}", text)
