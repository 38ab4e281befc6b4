"""Safe use of standard output and error that may be closed, broken or full: then messages are lost, but nothing else fails."""

import contextlib
import os
import sys
from typing import TextIO


def open_missing() -> None:
    """Open /dev/null for closed standard streams (`>&-`); otherwise the next file opened would get their number, and prints would write to it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)  # `open` takes the lowest free descriptor
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process


def write(stream: TextIO, text: str) -> str:
    """Write and flush; return the error with the stream's name, "" where there is none. After an error the stream is redirected to /dev/null."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError) as error:
        found = f"{_name(stream)}: {getattr(error, 'strerror', None) or error}"
        silence(stream)
        return found
    return ""


def silence(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that its buffered text does not make a later flush fail."""
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


def escape_unencodable() -> None:
    """Write characters that an output's encoding lacks as `\\u65e5`: a Japanese path must not end a run whose terminal supports Latin letters only.

    Bytes of a path that are not UTF-8, which Python represents by halves of surrogate pairs, are escaped as well.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # None where the stream is closed; a replacement by a test or a notebook may lack it
            stream.reconfigure(errors="backslashreplace")
