"""What a user's mistake looks like: one clear line on standard error and a non-zero exit, no traceback."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can mend. The message says what was wrong, what was expected and how to mend it, in one line."""


def run_command(main: Callable[[], int | None], name: str) -> int:
    """Run a command's `main` and return its exit code; what a user can cause ends in one line.

    Args:
        main: the command; returns its exit code, None for 0.
        name: what the line starts with, "dlrm.py" for instance.
    """
    try:
        return main() or 0
    except UserError as error:
        message = str(error)
    except OSError as error:  # no permission, disk full, a folder where a file should be
        path = f"{error.filename}: " if error.filename else ""
        message = f"{path}{error.strerror or error}"
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    print(f"{name}: error: {message}", file=sys.stderr)
    return 1
