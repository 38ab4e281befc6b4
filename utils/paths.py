"""Checks of paths for bytes that are not UTF-8: the system accepts them, but TensorFlow, TensorStore, Polars and JSON do not."""

import contextlib
import os
from collections.abc import Sequence

from utils.errors import UserError


def check_utf8(path: str | os.PathLike[str], flag: str = "") -> None:
    """Raise UserError for a path that is not UTF-8, or that resolves to such a path through a link or the current folder.

    Args:
        path: the path, which need not exist.
        flag: the flag that gave it, for the message.

    Raises:
        UserError: the path is not UTF-8; the message names it.
    """
    text = os.fspath(path)
    if _has_other_bytes(text):
        raise UserError(f"{flag} {_shown(text)} is not UTF-8; expected a path in UTF-8: rename the file or folder".lstrip())
    with contextlib.suppress(OSError, ValueError):  # no current folder, or a NUL in the path: opening it reports that
        if _has_other_bytes(real := os.path.realpath(text)):
            raise UserError(f"{flag} {text}: lies in {_shown(real)}, which is not UTF-8; expected a path in UTF-8: rename it".lstrip())


def check_words(arguments: Sequence[str]) -> None:
    """Apply `check_utf8` to every word of a command line, path or not, and check the current folder. Raises UserError."""
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
    """Return whether a text holds halves of surrogate pairs, by which Python represents bytes that are not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _shown(text: str) -> str:
    try:
        return repr(os.fsencode(text))[1:]
    except UnicodeEncodeError:
        return ascii(text)
