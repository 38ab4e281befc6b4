"""Generated raw files: their columns, equal output for equal seeds, and a planted signal whose best order no other order beats."""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose

from dataloading import generate_outbrain
from dataloading.generate_outbrain import expected_precision
from dataloading.synthetic.outbrain_world import OutbrainWorld, Sizes
from tests.helpers.commands import do, run_limited
from utils.errors import UserError

ROOT = Path(__file__).parents[2]
COLUMNS = {
    "clicks_train": ["display_id", "ad_id", "clicked"],
    "events": ["display_id", "uuid", "document_id", "timestamp", "platform", "geo_location"],
    "promoted_content": ["ad_id", "document_id", "campaign_id", "advertiser_id"],
    "documents_meta": ["document_id", "source_id", "publisher_id", "publish_time"],
    "documents_categories": ["document_id", "category_id", "confidence_level"],
    "documents_topics": ["document_id", "topic_id", "confidence_level"],
    "documents_entities": ["document_id", "entity_id", "confidence_level"],
}


def draw(folder, *flags):
    assert do(generate_outbrain, "--dst", folder, *flags) == 0
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outbrain")
    draw(folder, "--displays", 3000)
    return folder


def table(folder, name):
    return pl.read_csv(folder / f"{name}.csv", null_values=["\\N", ""], schema_overrides={"entity_id": pl.String, "geo_location": pl.String})


def test_the_seven_files_have_the_published_columns_and_gaps(drawn):
    tables = {name: table(drawn, name) for name in COLUMNS}
    assert {name: frame.columns for name, frame in tables.items()} == COLUMNS
    for name, column in (("events", "platform"), ("events", "geo_location"), ("documents_meta", "publish_time"), ("documents_meta", "publisher_id")):
        assert 0.003 < tables[name][column].null_count() / len(tables[name]) < 0.25, column
    assert b",\\N," in (drawn / "events.csv").read_bytes()
    clicks, events = tables["clicks_train"], tables["events"]
    displays = clicks.group_by("display_id").agg(pl.len().alias("ads"), pl.col("ad_id").n_unique().alias("different"), pl.col("clicked").sum())
    assert len(displays) == 3000 and (displays["clicked"] == 1).all() and (displays["ads"] == displays["different"]).all()
    assert displays["ads"].min() == 2 and displays["ads"].max() == 12 and 4.5 < displays["ads"].mean() < 5.7
    assert set(events["platform"].drop_nulls()) == {1, 2, 3} and events["timestamp"].is_sorted()
    assert set(events["timestamp"] // 86_400_000) == set(range(13))
    assert set(clicks["ad_id"]) <= set(tables["promoted_content"]["ad_id"])
    missing = displays.join(events, on="display_id", how="anti")
    assert 0 < len(missing) < 20 and len(events) > 3000  # some events belong to displays without clicks
    views = clicks["ad_id"].value_counts()["count"].sort(descending=True)
    assert views[0] > 8 * views[-1] and views.median() > 100
    for name in ("categories", "topics", "entities"):
        frame = tables[f"documents_{name}"]
        assert not frame.select(frame.columns[:2]).is_duplicated().any() and frame["confidence_level"].is_between(0, 1).all()


def test_equal_seeds_give_equal_files(tmp_path):
    first = draw(tmp_path / "a", "--displays", 200, "--seed", 3)
    assert draw(tmp_path / "b", "--displays", 200, "--seed", 3) == first
    other = draw(tmp_path / "c", "--displays", 200, "--seed", 4)
    assert other.keys() == first.keys() and all(other[name] != first[name] for name in first if name.endswith(".csv"))


# The best score --------------------------------------------------------------------------------------------------------


def test_the_expected_precision_by_hand():
    # P = 1/7, 4/7, 2/7: the ranks are 3, 1, 2, and 4/7 / 1 + 2/7 / 2 + 1/7 / 3 = 16/21; then two ads as good as each other: 1/2 + 1/4.
    expected, ranks = expected_precision(np.log([1.0, 4.0, 2.0, 3.0, 3.0]), np.array([0, 3]))
    assert_allclose(expected, [16 / 21, 3 / 4], atol=1e-12)
    assert ranks[:3].tolist() == [3, 1, 2] and sorted(ranks[3:]) == [1, 2]


def test_ads_beyond_the_twelfth_do_not_count():
    expected, _ = expected_precision(np.zeros(20), np.array([0]))
    assert_allclose(expected, [sum(1 / rank for rank in range(1, 13)) / 20])


@pytest.mark.parametrize("noise", [0.02, 0.3, 3.0])
def test_no_other_order_is_expected_to_be_better(noise):
    draw = np.random.default_rng(0)
    sizes = draw.integers(2, 16, 500)
    starts, utilities = np.cumsum(sizes) - sizes, draw.standard_normal(sizes.sum())
    best, _ = expected_precision(utilities, starts)
    weights = np.exp(utilities)
    shares = weights / np.repeat(np.add.reduceat(weights, starts), sizes)
    for _ in range(20):
        _, ranks = expected_precision(utilities + noise * draw.standard_normal(len(utilities)), starts)
        other = np.add.reduceat(np.where(ranks <= 12, shares / ranks, 0.0), starts)
        assert (other <= best + 1e-12).all() and other.mean() < best.mean()


def test_clicks_reach_the_expected_precision_of_the_true_order(drawn):
    truth, said = pl.read_parquet(drawn / "planted_signal.parquet"), json.loads((drawn / "planted_signal.json").read_text())
    assert len(truth) == 3000 and truth["expected_ap"].is_between(0.2, 1).all()
    last = truth.filter(pl.col("day") >= 11)
    assert 400 < len(last) < 520 and said["bayes_map_at_12"] == pytest.approx(last["expected_ap"].mean(), abs=1e-5)
    noise = truth["reached_ap"].std() / np.sqrt(len(truth))
    assert abs(truth["reached_ap"].mean() - truth["expected_ap"].mean()) < 4 * noise
    by_chance = table(drawn, "clicks_train").with_columns(pl.int_range(1, pl.len() + 1).over("display_id").alias("rank"))
    by_chance = (by_chance.filter(pl.col("clicked") == 1)["rank"] ** -1.0).mean()
    assert by_chance + 0.1 < truth["expected_ap"].mean() < 0.85


def test_utilities_depend_only_on_values_in_the_files():
    world = OutbrainWorld(Sizes.of(1000), 0)
    ads = np.array([0, 1, 2, 3])
    unknown = world.utilities(ads, np.full(4, -1), np.full(4, -1), np.full(4, -1))
    known = world.utilities(ads, np.arange(4), np.array([0, 1, 2, 0]), np.arange(4))
    assert np.isfinite(unknown).all() and (known != unknown).any()
    assert (OutbrainWorld(Sizes.of(1000), 0, signal=0.0).utilities(ads, np.arange(4), np.zeros(4, int), np.arange(4)) == 0).all()


# Errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [("--displays", 5), ("--seed", -1), ("--signal", -1), ("--signal", "nan"), ("--displays", 10**9)])
def test_invalid_flag_is_one_line_error(tmp_path, flags):
    with pytest.raises(UserError, match="expected"):
        do(generate_outbrain, "--dst", tmp_path / "x", *flags)
    assert not (tmp_path / "x").exists()


def test_existing_files_are_kept(tmp_path):
    (tmp_path / "events.csv").write_text("mine")
    with pytest.raises(UserError, match=r"events\.csv: already exists; choose another --dst"):
        do(generate_outbrain, "--dst", tmp_path, "--displays", "100")
    assert [path.name for path in tmp_path.iterdir()] == ["events.csv"]


@pytest.mark.parametrize("blocks", [2, 40])
def test_failed_write_is_one_line_error_and_leaves_no_files(tmp_path, blocks):
    flags = ["--dst", str(tmp_path / "new" / "raw"), "--displays", "2000"]
    result = run_limited(f"ulimit -f {blocks}", "-m", "dataloading.generate_outbrain", *flags)
    assert result.returncode == 1
    said = rf"dataloading.generate_outbrain: error: {tmp_path}/new/raw/\.writing-\w+/\w+\.(csv|parquet): File too large"
    assert re.fullmatch(said, result.stderr.strip())
    assert not (tmp_path / "new").exists()
