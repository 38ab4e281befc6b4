"""Errors that a user can cause."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from utils.errors import UserError


@contextmanager
def refused(message: str, kind: type[Exception] = UserError) -> Iterator[pytest.ExceptionInfo]:
    """Check that the block raises an error of one line that holds this text."""
    with pytest.raises(kind) as raised:
        yield raised
    said = str(raised.value)
    assert message in said and "\n" not in said, said
