"""Tests that are left out because something is not installed: never silently, and never in continuous integration."""

import os
from typing import NoReturn

import pytest

MARK = "NOT RUN"


def left_out(why: str) -> NoReturn:
    """Skip the test and say so in the last lines of the run; fail it where the variable `CI` is true."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(f"{MARK}: {why}")


def summary(reasons: list[str]) -> str | None:
    """Return one line about all tests that were left out; None where none was."""
    found = [reason.partition(f"{MARK}: ")[2] for reason in reasons if f"{MARK}: " in reason]
    return f"{MARK}: {len(found)} tests, the first because {found[0]}" if found else None
