"""What a server's log says of its end."""

import re
import signal
from pathlib import Path

_ERROR = re.compile(r"^E\d{4} \S+ +\d+ \S+\] (.*)$", re.M)
_HARMLESS = ("CudaDriverHelper",)  # said at every start without a GPU
_CRASH = re.compile(r"^terminate called .*(?:\n  what\(\): .*)?|^Signal \(\d+\) received\.|^.*(?:Assertion .* failed|[Ss]egmentation fault).*", re.M)
_TABLE = re.compile(r"^[|+].*[|+]$")
_WIDTH = 400


def last_words(log: str | Path, start: int = 0) -> str:
    """The words in which a server ended: those of its crash, or its last error; in one line.

    Args:
        log: the file.
        start: of what this server wrote: earlier ones may have written there.
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
    return lines[-1][:_WIDTH] if lines else "it says nothing"


def _plain(error: str) -> str:
    """An error as Triton logs it, in quotes, without the stack that it appends to a backend's."""
    return " ".join(error.partition(r"\n\nAt:")[0].strip('"').replace(r"\n", " ").split())


def ending(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"with code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
