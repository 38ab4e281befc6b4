"""A short fault campaign of kills only; `scripts/faults` runs the long one.

`test_curves.py` kills between saves, again and again, and `test_error_lines.py` causes every other fault.
"""

import pytest
from campaign import Campaign
from victim import MODELS, Victim, contents


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    yield Campaign(tmp_path_factory.mktemp("faults"), seed=1)
    Victim.end_all()


@pytest.fixture(autouse=True)
def _end_what_was_started():
    yield
    Victim.end_all()


@pytest.mark.costly("a run is killed and started again")
@pytest.mark.parametrize(("count", "in_save", "workers"), [(1, True, 1), (1, False, 1), (1, True, 2)])
def test_repeatedly_killed_run_ends_like_an_unbroken_one(campaign, count, in_save, workers):
    row = campaign.kills(count, in_save, workers)
    assert row.tries == count and row.outcome["run to the end: bit-identical to the unbroken one"] >= 1


LINEAR = {"tables/cat_0_wide/linear", "optimizer/wide/0/kernel/linear"}
SLOTS = {
    "Wide & Deep": {"tables/cat_0/velocity", *LINEAR},
    "DeepFM": {"tables/cat_0/velocity", *LINEAR},
    "FinalMLP": {"tables/cat_0/velocity", "optimizer/stream2/0/kernel/momentum"},
    "DLRM, lazy": {"tables/cat_0/velocity"},
    "DLRM, touched rows": {"tables/cat_0/velocity"},
}


@pytest.mark.costly("an unbroken run, one that is killed, and one that goes on")
@pytest.mark.parametrize("model", [name if name == "DeepFM" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def test_other_model_killed_inside_a_save_ends_like_an_unbroken_run(tmp_path, model):
    """The comparison includes all tables of each feature and the slots of all optimizers."""
    campaign = Campaign(tmp_path, 2, MODELS[model], model)
    assert set(contents(campaign.unbroken)) >= SLOTS[model]
    row = campaign.kills(1, in_save=True)
    assert row.tries == 1 and row.outcome["run to the end: bit-identical to the unbroken one"] == 1
