"""Extraction of the reason for a server's end from its log."""

import re
import signal
from pathlib import Path

_ERROR = re.compile(r"^E\d{4} \S+ +\d+ \S+\] (.*)$", re.M)
_HARMLESS = ("CudaDriverHelper",)  # logged at every start without a GPU
_CRASH = re.compile(r"^terminate called .*(?:\n  what\(\): .*)?|^Signal \(\d+\) received\.|^.*(?:Assertion .* failed|[Ss]egmentation fault).*", re.M)
_TABLE = re.compile(r"^[|+].*[|+]$")
_WIDTH = 400


def last_words(log: str | Path, start: int = 0) -> str:
    """Return the message with which a server ended, in one line: that of its crash, or its last error.

    Args:
        log: path of the file.
        start: position of this server's first output: earlier servers may have written to the file.
    """
    with open(log, "rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    if crash := _CRASH.search(text):
        return " ".join(crash[0].split())[:_WIDTH]
    if errors := [error for error in _ERROR.findall(text) if not any(word in error for word in _HARMLESS)]:
        return _plain(errors[-1])[:_WIDTH]
    lines = [line.strip() for line in text.splitlines() if not any(word in line for word in _HARMLESS)]
    lines = [line for line in lines if line and not _TABLE.match(line)]
    return lines[-1][:_WIDTH] if lines else "it logged no error"


def _plain(error: str) -> str:
    """Return an error as plain text, from Triton's quoted form without the stack that it appends to a backend's error."""
    return " ".join(error.partition(r"\n\nAt:")[0].strip('"').replace(r"\n", " ").split())


def ending(code: int) -> str:
    """Describe an exit code in words."""
    if code >= 0:
        return f"with code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
