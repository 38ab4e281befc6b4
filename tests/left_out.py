"""Tests that are left out: because something is not installed, never silently, and never in continuous integration; or by `--quick`."""

import os
from typing import NoReturn

import pytest

MARK = "NOT RUN"
quick = False  # True with --quick


def left_out(why: str) -> NoReturn:
    """Skip the test and say so in the last lines of the run; fail it where the variable `CI` is true."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(f"{MARK}: {why}")


def starts(what: str) -> None:
    """Skip the test with `--quick`, because it starts workers, a server, Spark or a browser, as `what` says."""
    if quick:
        pytest.skip(f"--quick: starts {what}")


def summary(reasons: list[str]) -> str | None:
    """Return one line about all tests that were left out; None where none was."""
    found = [reason.partition(f"{MARK}: ")[2] for reason in reasons if f"{MARK}: " in reason]
    return f"{MARK}: {len(found)} tests, the first because {found[0]}" if found else None
