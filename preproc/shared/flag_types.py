"""Parsers of flag values, for argparse's `type`: an invalid value gives a one-line error that says what was expected."""

import argparse
from collections.abc import Callable


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers of at least `least` and, where it is given, at most `most`."""

    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"expected a whole number of at most {most}, found {text!r}")
        return value

    return read


def rate(text: str) -> float:
    """Parse a number above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below 1, found {text!r}")
    return value


def share(text: str) -> float:
    """Parse a number of at least 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share of at least 0 and below 1, found {text!r}")
    return value
