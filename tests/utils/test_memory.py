"""How much memory there is, and what is said where it is too little."""

import psutil
import pytest

from utils.errors import UserError
from utils.memory import GIB, available_bytes, check_fits


def test_available_memory_is_some_of_the_machines():
    assert 0 < available_bytes() <= psutil.virtual_memory().total


def test_what_fits_passes():
    check_fits(10 * GIB, "tables", available=10 * GIB)
    check_fits(1, "tables", available_bytes())


def test_the_shortfall_is_named_in_gib():
    with pytest.raises(UserError, match=r"^the tables need 16\.0 GiB.*12\.5 GiB.*3\.5 GiB short") as raised:
        check_fits(16 * GIB, "the tables", available=int(12.5 * GIB))
    assert "\n" not in str(raised.value)


def test_a_table_larger_than_any_machine_is_refused():
    with pytest.raises(UserError):
        check_fits(1 << 60, "the tables", available_bytes())
