"""Parquet files as NVIDIA's Wide & Deep has them in its current release: Outbrain's 29 inputs at small cardinalities, written with Polars alone."""

import numpy as np
import polars as pl
import yaml

from dataloading.feature_spec import FeatureSpec
from dataloading.features import Categorical
from dataloading.tf_raw import TfRawWriter

ONE_HOT = {
    "ad_id": 300,
    "document_id": 200,
    "platform": 4,
    "document_id_promo": 90,
    "campaign_id": 50,
    "advertiser_id": 25,
    "source_id": 40,
    "geo_location": 25,
    "geo_location_country": 30,
    "geo_location_state": 20,
    "publisher_id": 10,
    "source_id_promo": 40,
    "publisher_id_promo": 10,
}
MULTI_HOT = {"topic_id_list": 35, "entity_id_list": 200, "category_id_list": 10}
HOTNESS = 3
NUMERICAL = (
    *(f"document_id_document_id_promo_sim_{kind}" for kind in ("categories", "topics", "entities")),
    *("document_id_promo_ctr", "publisher_id_promo_ctr", "source_id_promo_ctr", "document_id_promo_count", "publish_time_days_since_published"),
    *("ad_id_ctr", "advertiser_id_ctr", "campaign_id_ctr", "ad_id_count", "publish_time_promo_days_since_published"),
)
LABEL, MAP = "clicked", "display_id"
ROWS = {"train": 1000, "test": 330}
FILES = {"train": ("train/part_0.parquet", "train/part_1.parquet", "train/part_10.parquet"), "test": ("valid/part_0.parquet", "valid/part_1.parquet")}


def nvidia_spec() -> dict:
    """Return the content of feature_spec.yaml."""
    features = {name: {"cardinality": rows} for name, rows in ONE_HOT.items()}
    features |= {name: {"cardinality": rows, "max_hotness": HOTNESS} for name, rows in MULTI_HOT.items()}
    features |= {name: {} for name in (*NUMERICAL, LABEL, MAP)}
    named = [*ONE_HOT, *MULTI_HOT, *NUMERICAL, LABEL]
    return {
        "feature_spec": features,
        "source_spec": {
            "train": [{"type": "parquet", "features": named, "files": list(reversed(FILES["train"]))}],
            "test": [{"type": "parquet", "features": [*named, MAP], "files": list(FILES["test"])}],
        },
        "channel_spec": {
            "onehot_categorical": [*ONE_HOT],
            "multihot_categorical": [*MULTI_HOT],
            "numerical": [*NUMERICAL],
            "label": [LABEL],
            "map": [MAP],
        },
        "metadata": {},
    }


def drawn(count: int, seed: int) -> pl.DataFrame:
    """Draw rows: one click for every display of 5 ads, lists of 0 to 3 ids, and a label that depends on the ad."""
    draw = np.random.default_rng(seed)
    columns = {name: draw.integers(0, rows, count).astype(np.int32 if rows % 20 else np.int64) for name, rows in ONE_HOT.items()}
    for name, rows in MULTI_HOT.items():
        lists = [draw.choice(rows, size, replace=False).tolist() for size in draw.integers(0, HOTNESS + 1, count)]
        columns[name] = pl.Series(lists, dtype=pl.List(pl.Int64))
    columns |= {name: draw.random(count).astype(np.float64 if name.endswith("ctr") else np.float32) for name in NUMERICAL}
    columns[LABEL] = (draw.random(count) < 0.1 + 0.5 * (columns["ad_id"] % 3 == 0)).astype(np.int64)
    columns[MAP] = np.arange(count) // 5 + 10_000_000
    return pl.DataFrame(columns)


def write_files(folder, rows=ROWS, spec=None, change=lambda frame: frame, group_rows: int = 70) -> dict[str, pl.DataFrame]:
    """Write a dataset; return the rows of each split in the order in which they are to be read: that of the files' names as text."""
    found = {}
    for seed, (split, names) in enumerate(FILES.items()):
        found[split] = change(drawn(rows[split], seed))
        cuts = [rows[split] * part // len(names) for part in range(len(names) + 1)]
        for name, start, stop in zip(sorted(names), cuts[:-1], cuts[1:], strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            found[split][start:stop].write_parquet(folder / name, row_group_size=group_rows)
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(spec or nvidia_spec(), sort_keys=False))
    return found


def padded(lists: pl.Series) -> np.ndarray:
    """Return lists as `[n, 3]`, padded with -1."""
    return np.array([(one + [-1] * HOTNESS)[:HOTNESS] for one in lists.to_list()])


def write_raw(folder, frames: dict[str, pl.DataFrame], widths=None) -> FeatureSpec:
    """Write the same rows as a tf_raw dataset; return its specification."""
    widths = widths or {}
    categorical = [Categorical(name, rows, "int16", embedding_dim=widths.get(name)) for name, rows in ONE_HOT.items()]
    categorical += [Categorical(name, rows, "int16", HOTNESS, embedding_dim=widths.get(name)) for name, rows in MULTI_HOT.items()]
    dtypes = dict.fromkeys((*ONE_HOT, *MULTI_HOT), "int16") | dict.fromkeys(NUMERICAL, "float32") | {LABEL: "bool", MAP: "int64"}
    with TfRawWriter(folder, FeatureSpec(tuple(categorical), NUMERICAL, LABEL, dtypes, group=MAP), tuple(frames)) as writer:
        for split, frame in frames.items():
            numerical = np.stack([frame[name].to_numpy().astype(np.float32) for name in NUMERICAL], axis=1)
            ids = [frame[name].to_numpy() for name in ONE_HOT] + [padded(frame[name]) for name in MULTI_HOT]
            writer.append(split, numerical, ids, frame[LABEL].to_numpy(), frame[MAP].to_numpy())
        return writer.publish({})
