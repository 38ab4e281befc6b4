"""Standard output and error that may be closed, broken or full: what is to be said is then lost, and nothing else."""

import contextlib
import os
import sys
from typing import TextIO


def open_missing() -> None:
    """Give a process that was started without standard streams (`>&-`) empty ones: else the next file it opens would be written by what prints."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process


def write(stream: TextIO, text: str) -> str:
    """Write and flush; returns what went wrong, with the stream's name, and "" where nothing did. After a fault the stream leads nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        found = f"{_name(stream)}: {getattr(error, 'strerror', None) or error}"
        silence(stream)
        return found
    return ""


def silence(stream: TextIO) -> None:
    """Let the stream lead nowhere, so that what it holds fails no later flush."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()


def _name(stream: TextIO) -> str:
    kind = {1: "standard output", 2: "standard error"}
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        target = os.readlink(f"/proc/self/fd/{number}")
        return f"{kind.get(number, 'output')} ({target})" if target.startswith("/") else kind.get(number, "output")
    return "output"


def escape_what_cannot_be_said() -> None:
    """Write characters that an output's encoding lacks as `\\u65e5`: a path in Japanese must not end a run whose terminal knows Latin letters only.

    The same goes for bytes of a path that are not UTF-8, which Python keeps as halves of surrogate pairs.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # None where it is closed; a test's or a notebook's own may lack it
            stream.reconfigure(errors="backslashreplace")
