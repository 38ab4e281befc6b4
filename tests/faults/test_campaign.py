"""A short fault campaign: kills only, for `test_error_lines.py` brings about every other fault; `scripts/faults` runs the long one."""

import pytest
from campaign import Campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    return Campaign(tmp_path_factory.mktemp("faults"), seed=1)


@pytest.mark.parametrize(("count", "in_save", "workers"), [(3, True, 1), (2, False, 1), (1, True, 2)])
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_is_not(campaign, count, in_save, workers):
    row = campaign.kills(count, in_save, workers)
    assert row.tries == count and row.outcome["run to the end: bit-identical to the unbroken one"] >= 1
