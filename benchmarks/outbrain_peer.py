"""The features of Wide & Deep from Outbrain's raw files, as usually written with pandas: merges and group-bys, with everything in memory."""

from pathlib import Path

import numpy as np

from dataloading.tfrecord.spec import OUTBRAIN_TABLES
from preproc.outbrain.features import CATEGORICAL, NUMERICAL, read_sizes
from preproc.outbrain.split import SplitRule

_START_MS, _DAY_MS, _DAY_S, _MAX_DAYS = 1_465_876_799_998, 86_400_000, 86_400, 3650
_RATES = {  # by the column that groups rows: the feature, and the number of views that a group must exceed
    "document_ad": ("pop_document_id", 5),
    "publisher_ad": ("pop_publisher_id", 10),
    "source_ad": ("pop_source_id", 10),
    "ad_id": ("pop_ad_id", 5),
    "advertiser_id": ("pop_advertiser_id", 10),
    "campaign_id": ("pop_campain_id", 10),
}
_IDS = {
    "ad_id": "ad_id",
    "campaign_id": "campaign_id",
    "doc_event_id": "document_event",
    "event_platform": "platform",
    "doc_id": "document_ad",
    "ad_advertiser": "advertiser_id",
    "doc_event_source_id": "source_event",
    "doc_event_publisher_id": "publisher_event",
    "doc_ad_source_id": "source_ad",
    "doc_ad_publisher_id": "publisher_ad",
}
_ASPECTS = {"categories": "category_id", "topics": "topic_id", "entities": "entity_id"}


def by_pandas(raw: Path, folder: Path) -> None:
    """Write the binary files of both splits, with the default split, thresholds and table sizes of `preproc.outbrain`."""
    import pandas

    frame, documents = _joined(pandas, raw)
    frame["document_ad"] = frame["document_ad"].astype("Int64").fillna(-1).astype(np.int64)
    test = SplitRule(0, 0.2, 11).evaluates(frame["display_id"].to_numpy(), frame["day"].fillna(-1).to_numpy())
    train = frame[~test]
    kept = {}
    for column, (name, views) in _RATES.items():
        groups = train[train[column] >= 0].groupby(column)["clicked"].agg(["sum", "count"])
        groups = groups[groups["count"] > views]
        kept[column] = groups["count"]
        frame[name] = frame[column].map(groups["sum"] / groups["count"]).fillna(0.0)
    counts = {
        "doc_event_days_since_published": _days(frame["second"], frame["published_event"]),
        "doc_ad_days_since_published": _days(frame["second"], frame["published_ad"]),
        "doc_views": frame["document_ad"].map(kept["document_ad"]).fillna(0),
        "ad_views": frame["ad_id"].map(kept["ad_id"]).fillna(0),
    }
    for name, values in counts.items():
        logs = np.log2(1 + values)
        low, high = logs[~test].min(), logs[~test].max()
        frame[f"{name}_log_01scaled"] = ((logs - low) / (high - low)).clip(0, 1) if high > low else 0.0
    for kind, column in _ASPECTS.items():
        aspects = pandas.read_csv(raw / f"documents_{kind}.csv", dtype={"entity_id": str})
        frame[f"doc_event_doc_ad_sim_{kind}"] = _similarity(frame, aspects, column, documents)
    sizes = {name: rows for name, (rows, _) in read_sizes(OUTBRAIN_TABLES).items()}
    for name, column in _IDS.items():
        frame[f"id {name}"] = frame[column].fillna(-1).astype(np.int64) % sizes[name]
    places = frame[~test].drop_duplicates("display_id")["geo_location"]
    for name, cut in (("event_geo_location", None), ("event_country", 2), ("event_country_state", 5)):
        found = places.str[:cut].value_counts()
        found = found[found >= 10].reset_index().sort_values(["count", "geo_location"], ascending=[False, True])["geo_location"].tolist()
        frame[f"id {name}"] = frame["geo_location"].str[:cut].map({text: i + 1 for i, text in enumerate(found)}).fillna(0).astype(np.int64)
    _write(folder / "train", frame[~test], sizes)
    _write(folder / "test", frame[test].sort_values("display_id", kind="stable"), sizes)


def _joined(pandas, raw: Path):
    """Return the clicks joined with the data of display, ad and documents, and the number of documents."""

    def read(name: str, *columns: str):
        return pandas.read_csv(raw / f"{name}.csv", na_values=["\\N", ""], keep_default_na=False, usecols=columns or None)

    clicks, ads, meta = read("clicks_train"), read("promoted_content"), read("documents_meta")
    events = read("events", "display_id", "document_id", "timestamp", "platform", "geo_location")
    alone = sorted(meta[meta["publisher_id"].isna()]["source_id"].dropna().unique())
    own = {source: meta["publisher_id"].max() + 1 + i for i, source in enumerate(alone)}
    meta["publisher_id"] = meta["publisher_id"].fillna(meta["source_id"].map(own))
    times = pandas.to_datetime(meta["publish_time"], format="%Y-%m-%d %H:%M:%S.%f")
    meta["publish_time"] = (times - pandas.Timestamp(0)) / pandas.Timedelta(seconds=1)
    events["day"], events["second"] = events["timestamp"] // _DAY_MS, (events["timestamp"] + _START_MS) // 1000
    events["platform"] -= 1
    frame = clicks.merge(events.rename(columns={"document_id": "document_event"}), on="display_id", how="left")
    frame = frame.merge(ads.rename(columns={"document_id": "document_ad"}), on="ad_id", how="left")
    for end in ("event", "ad"):
        names = {
            "document_id": f"document_{end}",
            "source_id": f"source_{end}",
            "publisher_id": f"publisher_{end}",
            "publish_time": f"published_{end}",
        }
        frame = frame.merge(meta.rename(columns=names), on=f"document_{end}", how="left")
    return frame, len(meta)


def _days(seconds, published):
    days = np.floor((seconds - published) / _DAY_S)
    return days.where((days >= 0) & (days <= _MAX_DAYS), 0)


def _similarity(frame, aspects, column: str, documents: int):
    """Return the cosine similarity of the two documents of every row, computed once for each distinct pair."""
    share = documents / aspects[column].map(aspects[column].value_counts())
    aspects["weight"] = np.log(np.maximum(np.log(np.maximum(share, 1)), 1)) * aspects["confidence_level"]
    length = np.sqrt((aspects["weight"] ** 2).groupby(aspects["document_id"]).sum())
    aspects["weight"] /= aspects["document_id"].map(length)
    aspects = aspects.dropna(subset=["weight"])[["document_id", column, "weight"]]
    pairs = frame[["document_event", "document_ad"]].drop_duplicates()
    joined = pairs.merge(aspects, left_on="document_event", right_on="document_id")
    joined = joined.merge(aspects, left_on=["document_ad", column], right_on=["document_id", column])
    joined["similarity"] = joined["weight_x"] * joined["weight_y"]
    found = joined.groupby(["document_event", "document_ad"])["similarity"].sum().reset_index()
    return frame[["document_event", "document_ad"]].merge(found, how="left")["similarity"].fillna(0).clip(0, 1)


def _write(folder: Path, rows, sizes) -> None:
    folder.mkdir(parents=True)
    rows["clicked"].to_numpy(bool).tofile(folder / "label.bin")
    rows["display_id"].to_numpy(np.int32).tofile(folder / "group.bin")
    rows[list(NUMERICAL)].to_numpy(np.float32).tofile(folder / "numerical.bin")
    for name in CATEGORICAL:
        dtype = next(kind for kind in (np.int8, np.int16, np.int32) if sizes[name] < np.iinfo(kind).max)
        rows[f"id {name}"].to_numpy(dtype).tofile(folder / f"{name}.bin")
