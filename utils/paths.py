"""Paths with bytes that are not UTF-8: the system takes them, but TensorFlow, TensorStore, Polars and JSON do not."""

import contextlib
import os
from collections.abc import Sequence

from utils.errors import UserError


def check_utf8(path: str | os.PathLike[str], flag: str = "") -> None:
    """Refuse a path that is not UTF-8, or that leads to such a one by a link or from such a current folder.

    Args:
        path: it need not exist.
        flag: which gave it, for the message.

    Raises:
        UserError: names the path.
    """
    text = os.fspath(path)
    if _has_other_bytes(text):
        raise UserError(f"{flag} {_shown(text)} is not UTF-8; expected a path in UTF-8: rename the file or folder".lstrip())
    with contextlib.suppress(OSError, ValueError):  # no current folder, a NUL: whoever opens it says so
        if _has_other_bytes(real := os.path.realpath(text)):
            raise UserError(f"{flag} {text}: lies in {_shown(real)}, which is not UTF-8; expected a path in UTF-8: rename it".lstrip())


def check_words(arguments: Sequence[str]) -> None:
    """The same for every word of a command line, path or not, and for the current folder."""
    with contextlib.suppress(OSError):
        if _has_other_bytes(folder := os.getcwd()):
            raise UserError(f"the current folder, {_shown(folder)}, is not UTF-8; start in another one")
    flag = ""
    for word in arguments:
        name, given, value = word.partition("=") if word.startswith("-") else ("", "", word)
        flag = name or flag
        if given or not name:
            check_utf8(value, flag)


def _has_other_bytes(text: str) -> bool:
    """Whether there are halves of surrogate pairs, in which Python keeps such bytes."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _shown(text: str) -> str:
    try:
        return repr(os.fsencode(text))[1:]
    except UnicodeEncodeError:
        return ascii(text)
