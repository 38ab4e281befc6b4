"""Every feature worked out by hand on fifteen clicks, and all features compared with a slow definition on some thousand generated ones."""

import gzip
import math
import random
import shutil

import numpy as np
import polars as pl
import pytest

from dataloading import generate_outbrain
from preproc.outbrain.split import SplitRule, hashed
from tests.helpers.commands import do
from tests.preproc.outbrain.outbrain_raw import Slow, assert_equal, columns, preprocessed, split_mix, write_raw

# By the timestamps display 1 is at 04:00:00 of 14 June 2016 (UTC), display 2 a day later, and so on. Display 4 has no event, 7 and 9 no clicks.
RAW = {
    "events": r"""
        display_id uuid document_id timestamp platform geo_location
        1          a    10          2         1        US>CA>807
        2          b    300020      86400002  2        US>NY>501
        3          c    10          172800002 \N       _
        5          d    99          259200002 3        US>CA>807
        6          e    10          950400002 2        GB
        7          f    10          259200002 2        US>NY>501
        8          g    300020      950400003 1        US>NY>501
        9          h    10          950400004 1        US>NY>501""",
    "promoted_content": """
        ad_id  document_id campaign_id advertiser_id
        100    30          7           5003
        101    100031      7           2
        102    30          8           2
        250103 _           5009        4""",
    "documents_meta": """
        document_id source_id publisher_id publish_time
        10          1         11           2016-06-04^04:00:00.0
        300020      2         _            _
        30          1         11           2016-06-15^03:00:00.0
        100031      _         12           2000-01-01^00:00:00.0
        """
    + "\n".join(f"{1000 + i} 3 3 _" for i in range(26)),
    "documents_categories": """
        document_id category_id confidence_level
        10          1           0.9
        10          2           0.1
        30          1           0.5
        30          3           0.5
        300020      2           1""",
    "documents_topics": """
        document_id topic_id confidence_level
        10          7        0.2
        30          7        0.8
        300020      8        0.5
        99          7        1.0""",
    "documents_entities": """
        document_id entity_id confidence_level
        10          ab        0.5
        30          cd        0.5
        30          ab        0.5
        10          common    1.0
        30          common    1.0
        99          common    1.0
        """
    + "\n".join(f"{1000 + i} common 1" for i in range(9)),
    "clicks_train": """
        display_id ad_id  clicked
        8          101    1
        1          100    1
        1          101    0
        1          104    0
        2          100    0
        2          102    1
        3          250103 0
        3          101    1
        3          102    0
        4          100    1
        4          102    0
        5          101    0
        5          100    1
        6          100    0
        6          102    1
        6          777    0
        8          100    0""",
}
FLAGS = ("--eval_fraction", 0, "--min_views", 1, "--min_group_views", 3, "--min_events", 2)

# Rows of training as display:ad. 1:100 1:101 1:104 2:100 2:102 3:250103 3:101 3:102 4:100 4:102 5:101 5:100
# Views (clicks) by id. Ads: 100: 4 (3), 101: 3 (1), 102: 3 (1), 104: 1, 250103: 1. Documents: 30: 7 (4), 100031: 3 (1).
# Advertisers: 5003: 4 (3), 2: 6 (2). Campaigns: 7: 7 (4), 8: 3. Sources: 1: 7 (4). Publishers: 11: 7 (4), 12: 3.
# Ages in days. Pages: 10 of display 1, 12 of display 3. Ads: 1 of 3:102, 2 of 5:100.
OWN = 13  # the publisher of documents of source 2 that have none: numbered last, after 12
A = {100: 3 / 4, 101: 1 / 3, 102: 1 / 3, 104: 0, 250103: 0, 777: 0}  # click rates of ads
V = {100: math.log2(5) / math.log2(5), 101: 2 / math.log2(5), 102: 2 / math.log2(5), 104: 0, 250103: 0, 777: 0}  # views of ads, scaled
X, Y = math.log(math.log(30 / 2)), math.log(math.log(30 / 1))  # weights of subjects of two, and of one, of 30 documents
CATEGORIES = X * 0.9 * X * 0.5 / (math.hypot(X * 0.9, X * 0.1) * math.hypot(X * 0.5, Y * 0.5))  # similarity of documents 10 and 30
ENTITIES = X / math.hypot(X, Y)  # "common" is in 12 of 30 documents: more than 1 / e, so it counts for nothing
TRAIN = {
    "display_id": [1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5],
    "label": [1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1],
    "ad_id": [100, 101, 104, 100, 102, 103, 101, 102, 100, 102, 101, 100],
    "campaign_id": [7, 7, 4999, 7, 8, 9, 7, 8, 7, 8, 7, 7],
    "doc_event_id": [10, 10, 10, 20, 20, 10, 10, 10, 299999, 299999, 99, 99],
    "event_platform": [0, 0, 0, 1, 1, 3, 3, 3, 3, 3, 2, 2],
    "doc_id": [30, 31, 99999, 30, 30, 99999, 31, 30, 30, 30, 31, 30],
    "ad_advertiser": [3, 2, 2499, 3, 2, 4, 2, 2, 3, 2, 2, 3],
    "doc_event_source_id": [1, 1, 1, 2, 2, 1, 1, 1, 3999, 3999, 3999, 3999],
    "doc_event_publisher_id": [11, 11, 11, OWN, OWN, 11, 11, 11, 999, 999, 999, 999],
    "doc_ad_source_id": [1, 3999, 3999, 1, 1, 3999, 3999, 1, 1, 1, 3999, 1],
    "doc_ad_publisher_id": [11, 12, 999, 11, 11, 999, 12, 11, 11, 11, 12, 11],
    "event_geo_location": [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1],  # US>CA>807 twice; US>NY>501 once in training
    "event_country": [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1],
    "event_country_state": [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1],
    "doc_event_days_since_published_log_01scaled": [math.log2(11) / math.log2(13)] * 3 + [0] * 2 + [1] * 3 + [0] * 4,
    "doc_ad_days_since_published_log_01scaled": [0] * 7 + [1 / math.log2(3)] + [0] * 3 + [1],
    "doc_views_log_01scaled": [1, 2 / 3, 0, 1, 1, 0, 2 / 3, 1, 1, 1, 2 / 3, 1],
    "ad_views_log_01scaled": [V[ad] for ad in (100, 101, 104, 100, 102, 250103, 101, 102, 100, 102, 101, 100)],
    "pop_ad_id": [A[ad] for ad in (100, 101, 104, 100, 102, 250103, 101, 102, 100, 102, 101, 100)],
    "pop_document_id": [4 / 7, 1 / 3, 0, 4 / 7, 4 / 7, 0, 1 / 3, 4 / 7, 4 / 7, 4 / 7, 1 / 3, 4 / 7],
    "pop_source_id": [4 / 7, 0, 0, 4 / 7, 4 / 7, 0, 0, 4 / 7, 4 / 7, 4 / 7, 0, 4 / 7],
    "pop_publisher_id": [4 / 7, 0, 0, 4 / 7, 4 / 7, 0, 0, 4 / 7, 4 / 7, 4 / 7, 0, 4 / 7],
    "pop_advertiser_id": [3 / 4, 1 / 3, 0, 3 / 4, 1 / 3, 0, 1 / 3, 1 / 3, 3 / 4, 1 / 3, 1 / 3, 3 / 4],
    "pop_campain_id": [4 / 7, 4 / 7, 0, 4 / 7, 0, 0, 4 / 7, 0, 4 / 7, 0, 4 / 7, 4 / 7],
    "doc_event_doc_ad_sim_categories": [CATEGORIES, 0, 0, 0, 0, 0, 0, CATEGORIES, 0, 0, 0, 0],
    "doc_event_doc_ad_sim_topics": [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1],
    "doc_event_doc_ad_sim_entities": [ENTITIES, 0, 0, 0, 0, 0, 0, ENTITIES, 0, 0, 0, 0],
}
TEST = {  # of the last two days, in the order of the displays; an age above all ages of training is scaled to 1
    "display_id": [6, 6, 6, 8, 8],
    "label": [0, 1, 0, 1, 0],
    "ad_id": [100, 102, 777, 101, 100],
    "campaign_id": [7, 8, 4999, 7, 7],
    "doc_event_id": [10, 10, 10, 20, 20],
    "event_platform": [1, 1, 1, 0, 0],
    "doc_id": [30, 30, 99999, 31, 30],
    "ad_advertiser": [3, 2, 2499, 2, 3],
    "doc_event_source_id": [1, 1, 1, 2, 2],
    "doc_event_publisher_id": [11, 11, 11, OWN, OWN],
    "doc_ad_source_id": [1, 1, 3999, 3999, 1],
    "doc_ad_publisher_id": [11, 11, 999, 12, 11],
    "event_geo_location": [0] * 5,
    "event_country": [0, 0, 0, 1, 1],
    "event_country_state": [0] * 5,
    "doc_event_days_since_published_log_01scaled": [1, 1, 1, 0, 0],
    "doc_ad_days_since_published_log_01scaled": [1, 1, 0, 0, 1],
    "doc_views_log_01scaled": [1, 1, 0, 2 / 3, 1],
    "ad_views_log_01scaled": [V[ad] for ad in (100, 102, 777, 101, 100)],
    "pop_ad_id": [A[ad] for ad in (100, 102, 777, 101, 100)],
    "pop_document_id": [4 / 7, 4 / 7, 0, 1 / 3, 4 / 7],
    "pop_source_id": [4 / 7, 4 / 7, 0, 0, 4 / 7],
    "pop_publisher_id": [4 / 7, 4 / 7, 0, 0, 4 / 7],
    "pop_advertiser_id": [3 / 4, 1 / 3, 0, 1 / 3, 3 / 4],
    "pop_campain_id": [4 / 7, 0, 0, 4 / 7, 4 / 7],
    "doc_event_doc_ad_sim_categories": [CATEGORIES, CATEGORIES, 0, 0, 0],
    "doc_event_doc_ad_sim_topics": [1, 1, 0, 0, 0],
    "doc_event_doc_ad_sim_entities": [ENTITIES, ENTITIES, 0, 0, 0],
}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    return preprocessed(write_raw(tmp_path_factory.mktemp("outbrain") / "raw", RAW), *FLAGS)


@pytest.mark.parametrize(("split", "expected"), [("train", TRAIN), ("test", TEST)])
def test_every_feature_by_hand(by_hand, split, expected):
    found = columns(by_hand, split)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-6), name


def test_specification_of_the_dataset(by_hand):
    widths = {feature.name: feature.embedding_dim for feature in by_hand.categorical}
    assert list(widths) == list(TRAIN)[2:15] and sum(widths.values()) == 976 and sum(by_hand.cardinalities) == 672_304
    assert by_hand.group == "display_id" and by_hand.dtypes["display_id"] == "int32" and by_hand.numerical_dtype == "float32"
    found = by_hand.metadata
    assert found["train"] == {"rows": 12, "displays": 5, "click_rate": round(5 / 12, 6)}
    assert found["test"] == {"rows": 5, "displays": 2, "click_rate": 0.4}
    assert found["rows_without"] == {"displays": 2, "ads": 2, "documents": 1} and found["bad_lines_skipped"] == 0
    assert found["log_scales"]["doc_event_days_since_published_log_01scaled"] == {"low": 0, "high": 12}
    assert found["documents"] == {"total": 30, "named": 5} and found["aspects"] == {"categories": 3, "topics": 2, "entities": 3}
    assert "bayes_map_at_12" not in found
    dictionary = pl.read_parquet(by_hand.base_directory / "vocabulary" / "event_country.parquet")
    assert dictionary.rows() == [("US", 1, 3)] and found["vocabularies"]["event_country"]["values"] == 1


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    raw = tmp_path_factory.mktemp("drawn") / "raw"
    assert do(generate_outbrain, "--displays", "1500", "--dst", raw, "--seed", "5") == 0
    return raw


@pytest.mark.parametrize("seed", [0, 3])
def test_all_features_of_generated_clicks_equal_a_slow_definition(drawn, seed):
    spec, slow = preprocessed(drawn, "--seed", seed), Slow(drawn, seed)
    for split, clicks in (("train", slow.train), ("test", slow.test)):
        assert_equal(columns(spec, split), [slow.row(*click) for click in clicks])
    assert 2000 < len(slow.test) < len(slow.train)


def files_of(spec):
    return {path.relative_to(spec.base_directory): path.read_bytes() for path in sorted(spec.base_directory.rglob("*.bin"))}


def test_small_blocks_compression_and_row_order_do_not_change_the_features(drawn, tmp_path):
    whole = preprocessed(drawn)
    raw = tmp_path / "raw"
    shutil.copytree(drawn, raw)
    for name in ("events", "documents_meta"):
        (raw / f"{name}.csv.gz").write_bytes(gzip.compress((raw / f"{name}.csv").read_bytes()))
        (raw / f"{name}.csv").unlink()
    (raw / "documents_meta.csv.gz").rename(raw / "document_meta.csv.gz")  # the name in the README of NVIDIA's model
    assert files_of(preprocessed(raw, "--block_bytes", 5000)) == files_of(whole)
    for name in ("events", "documents_meta"):
        shutil.copy(drawn / f"{name}.csv", raw / f"{name}.csv")
    for path in raw.glob("*.csv"):
        header, *lines = path.read_text().splitlines()
        random.Random(1).shuffle(lines)
        quoted = ['"' + line.replace(",", '","') + '"' for line in lines] if path.name == "promoted_content.csv" else lines
        path.write_text("\r\n".join([header, *quoted]))
    shuffled = columns(preprocessed(raw, "--block_bytes", 5000), "test")
    assert shuffled["display_id"] == columns(whole, "test")["display_id"]
    rows = lambda found: sorted(zip(*found.values(), strict=True))  # noqa: E731
    assert rows(shuffled) == rows(columns(whole, "test"))


def test_evaluation_rows_enter_no_rate_scale_or_dictionary(drawn, tmp_path):
    before, raw, slow = preprocessed(drawn), tmp_path / "raw", Slow(drawn)
    shutil.copytree(drawn, raw)
    held_out = {str(display) for display, _, _ in slow.test}
    changed = lambda line, row: ",".join([*line.split(",")[:2], "1"]) if row % 2 else line  # noqa: E731
    for name, change in (("clicks_train", changed), ("events", lambda line, row: ",".join([*line.split(",")[:4], "3", "ZZ>ZZ>999"]))):
        header, *lines = (raw / f"{name}.csv").read_text().splitlines()
        lines = [change(line, row) if line.split(",")[0] in held_out else line for row, line in enumerate(lines)]
        (raw / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    after = preprocessed(raw)
    train = lambda spec: {path: content for path, content in files_of(spec).items() if path.parts[0] == "train"}  # noqa: E731
    assert train(after) == train(before) and files_of(after) != files_of(before)
    for name in ("log_scales", "vocabularies", "train"):
        assert after.metadata[name] == before.metadata[name]


# The split -------------------------------------------------------------------------------------------------------------


def test_the_hash_is_that_of_splitmix64():
    assert int(hashed(np.array([0]), 0)[0]) == 0xE220A8397B1DCDAF  # the first number that SplitMix64 gives from the state 0
    ids = np.array([1, 77, 2**40, 2**62])
    assert hashed(ids, 9).tolist() == [split_mix((int(i) + 10 * 0x9E3779B97F4A7C15) % 2**64) for i in ids]


def test_a_fifth_of_the_first_days_and_all_of_the_last_are_for_evaluation():
    ids, rule = np.arange(200_000), SplitRule(0, 0.2, 11)
    early, other = rule.evaluates(ids, np.full(len(ids), 10)), SplitRule(1, 0.2, 11).evaluates(ids, np.full(len(ids), 10))
    assert 0.197 < early.mean() < 0.203 and 0.037 < (early & other).mean() < 0.043
    np.testing.assert_array_equal(rule.evaluates(ids[::-1], np.zeros(len(ids))), early[::-1])
    assert rule.evaluates(ids, np.full(len(ids), 11)).all() and not rule.evaluates(ids, np.full(len(ids), -1)).any()
    assert not SplitRule(0, 0.0, 11).evaluates(ids, np.full(len(ids), 5)).any()


def test_no_display_is_in_both_splits(drawn):
    spec = preprocessed(drawn)
    train, test = (set(columns(spec, split)["display_id"]) for split in ("train", "test"))
    assert not train & test and len(train) + len(test) == 1500
    assert spec.metadata["train"]["displays"] == len(train) and spec.metadata["test"]["displays"] == len(test)


def test_metadata_hold_the_best_score(drawn):
    spec = preprocessed(drawn)
    truth = pl.read_parquet(drawn / "planted_signal.parquet").filter(pl.col("display_id").is_in(set(columns(spec, "test")["display_id"])))
    assert spec.metadata["bayes_map_at_12"] == pytest.approx(truth["expected_ap"].mean(), abs=1e-5)
    assert spec.metadata["map_at_12_of_the_true_order"] == pytest.approx(truth["reached_ap"].mean(), abs=1e-5)
    assert spec.metadata["generated"]["seed"] == 5
