"""Standard output and error that can say every text."""

import sys


def escape_what_cannot_be_said() -> None:
    """Write characters that an output's encoding lacks as `\\u65e5`: a path in Japanese must not end a run whose terminal knows Latin letters only.

    The same goes for bytes of a path that are not UTF-8, which Python keeps as halves of surrogate pairs.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # None where it is closed; a test's or a notebook's own may lack it
            stream.reconfigure(errors="backslashreplace")
