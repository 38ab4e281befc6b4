"""Features of events and ads: ids, click-through rates and scaled counts, fitted on the training rows only."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from dataloading.feature_spec import smallest_dtype
from preproc.outbrain.features import AD_DAYS, AD_VIEWS, DICTIONARIES, DOCUMENT_VIEWS, EVENT_DAYS, RATES
from preproc.outbrain.joined import NONE, days_between
from preproc.outbrain.learning import MAX_DAYS, Joined, RunningStatistics
from preproc.outbrain.places import Places, with_none
from preproc.shared import polars_engine as engine

SHOWN = ("ad", "document")  # kinds whose rates use `Thresholds.views`; those of the other groups of ads use `group_views`


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the counts from which rates are computed and ids assigned.

    Attributes:
        views: an ad or a document has a rate and a number of views if training rows show it more often than this.
        group_views: a publisher, source, advertiser or campaign has a rate if training rows show it more often than this.
        events: a country, state or place has an id if at least so many events of training displays have it.
    """

    views: int
    group_views: int
    events: int

    def of(self, kind: str) -> int:
        """Return the number of views above which a kind of `RATES` has a rate."""
        return self.views if kind in SHOWN else self.group_views


@dataclass(frozen=True)
class LogScale:
    """A logarithmic scale of counts to 0..1: (log2(1 + x) - log2(1 + low)) / (log2(1 + high) - log2(1 + low)), clipped.

    Attributes:
        low, high: the least and the greatest count of the training rows.
    """

    low: int
    high: int

    def of(self, counts: np.ndarray) -> np.ndarray:
        """Scale counts `[n]` to `[n]` float64; all are 0 if all training rows had the same count."""
        least, most = np.log2(1.0 + self.low), np.log2(1.0 + self.high)
        return np.clip((np.log2(1.0 + counts) - least) / (most - least), 0.0, 1.0) if self.high > self.low else np.zeros(len(counts))


@dataclass(frozen=True)
class Fitted:
    """The arrays in which a click's features are looked up by index; the last entry of each array stands for a missing event or ad.

    Attributes:
        events, ads: indices of displays and of ads.
        event_ids: ids of each categorical feature of events, `[E + 1]` each.
        event_numbers: values of each numerical feature of events, `[E + 1]` float32 each.
        event_documents, event_seconds: indices of the events' documents, and times, `[E + 1]`.
        ad_ids, ad_numbers, ad_documents: the same for ads, `[A + 1]`.
        scales: scales of the four features that are logarithms of counts.
    """

    events: Places
    ads: Places
    event_ids: Mapping[str, np.ndarray]
    event_numbers: Mapping[str, np.ndarray]
    event_documents: np.ndarray
    event_seconds: np.ndarray
    ad_ids: Mapping[str, np.ndarray]
    ad_numbers: Mapping[str, np.ndarray]
    ad_documents: np.ndarray
    scales: Mapping[str, LogScale]


def modulo(ids: np.ndarray, rows: int) -> np.ndarray:
    """Return the hash buckets `[n]` of ids, in the dataset's type: id mod rows; -1, a missing id, gets the last bucket."""
    return np.mod(ids, rows).astype(smallest_dtype(rows))


def fitted(joined: Joined, tally: RunningStatistics, thresholds: Thresholds, rows: Mapping[str, int]) -> tuple[Fitted, dict[str, pl.DataFrame]]:
    """Fit the features; return the arrays for lookup, and the dictionaries (value, id, count) of countries, states and places.

    Args:
        joined: the tables.
        tally: statistics of all clicks.
        thresholds: thresholds of rates and ids.
        rows: number of rows of each categorical feature's table.
    """
    events, documents = joined.events, joined.documents
    dictionaries = _dictionaries(joined, tally, thresholds.events, rows)
    pages = documents.places.of(events.document_ids)
    raw = {
        "doc_event_id": events.document_ids,
        "event_platform": events.platforms.astype(np.int64),
        "doc_event_source_id": documents.sources[pages],
        "doc_event_publisher_id": documents.publishers[pages],
    }
    event_ids = {name: modulo(ids, rows[name]) for name, ids in raw.items()}
    for name, found in dictionaries.items():
        event_ids[name] = _coded(events.geo_texts, DICTIONARIES[name], found).astype(smallest_dtype(rows[name]))[events.geo]
    ages = days_between(documents.published[pages], events.seconds, MAX_DAYS)
    scales = {AD_DAYS: LogScale(*tally.days), EVENT_DAYS: _scale(ages[tally.events[False]])}

    ads, ad_documents, keys, views, clicks = _ads(joined, tally)
    raw = {
        "campaign_id": keys["campaign"],
        "doc_id": keys["document"],
        "ad_advertiser": keys["advertiser"],
        "doc_ad_source_id": keys["source"],
        "doc_ad_publisher_id": keys["publisher"],
    }
    ad_ids = {name: modulo(ids, rows[name]) for name, ids in raw.items()}
    numbers, kept = {}, {}
    for name, kind in RATES.items():
        numbers[name], kept[kind] = _rates(keys[kind], views, clicks, thresholds.of(kind))
    trained = views > 0
    for name, kind in ((AD_VIEWS, "ad"), (DOCUMENT_VIEWS, "document")):
        scales[name] = _scale(kept[kind][trained])
        numbers[name] = scales[name].of(kept[kind])
    numbers = {name: values.astype(np.float32) for name, values in numbers.items()}
    event_numbers = {EVENT_DAYS: scales[EVENT_DAYS].of(ages).astype(np.float32)}
    return Fitted(events.places, ads, event_ids, event_numbers, pages, events.seconds, ad_ids, numbers, ad_documents, scales), dictionaries


def _scale(values: np.ndarray) -> LogScale:
    return LogScale(int(values.min()), int(values.max())) if len(values) else LogScale(0, 0)


def _ads(joined: Joined, tally: RunningStatistics) -> tuple[Places, np.ndarray, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return all ads of the table and the training rows: the ads, indices of their documents, ids of their groups, views, clicks; `[A + 1]` each."""
    promoted, documents, counts = joined.promoted, joined.documents, tally.counts
    shown = counts["ad_id"].to_numpy()
    ads = Places(np.union1d(promoted.ids, shown))
    of_promoted, of_shown = ads.of(promoted.ids), ads.of(shown)

    def column(places: np.ndarray, values: np.ndarray, none: int) -> np.ndarray:
        found = np.full(len(ads) + 1, none, np.int64)
        found[places] = values
        return found

    keys = {"ad": with_none(ads.ids, NONE), "document": column(of_promoted, promoted.documents, NONE)}
    keys |= {"campaign": column(of_promoted, promoted.campaigns, NONE), "advertiser": column(of_promoted, promoted.advertisers, NONE)}
    places = documents.places.of(keys["document"])
    keys |= {"source": documents.sources[places], "publisher": documents.publishers[places]}
    views, clicks = (column(of_shown, counts[name].to_numpy(), 0) for name in ("views", "clicks"))
    return ads, places, keys, views, clicks


def _rates(keys: np.ndarray, views: np.ndarray, clicks: np.ndarray, threshold: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each ad, clicks over views of all ads with the same key, and these views, `[A + 1]`.

    Both are 0 where the views are not above the threshold, or the ad has no key.
    """
    _, of = np.unique(keys, return_inverse=True)
    total_views, total_clicks = (np.bincount(of, counts)[of] for counts in (views, clicks))
    kept = (total_views > threshold) & (keys != NONE)
    return np.where(kept, total_clicks / np.maximum(total_views, 1), 0.0), np.where(kept, total_views, 0).astype(np.int64)


def _dictionaries(joined: Joined, tally: RunningStatistics, threshold: int, rows: Mapping[str, int]) -> dict[str, pl.DataFrame]:
    """Assign ids from 1 to the values of the events of training displays, the most frequent first."""
    events, texts = joined.events, joined.events.geo_texts
    places = events.geo[:-1][tally.events[False][:-1]]
    counts = pl.Series("count", np.bincount(places, minlength=len(texts)), pl.Int64)
    found = {}
    for name, length in DICTIONARIES.items():
        values = pl.DataFrame([_part(texts, length).alias(engine.VALUE), counts]).group_by(engine.VALUE).agg(pl.col("count").sum())
        found[name] = engine.dictionary(values.filter(pl.col("count") > 0), threshold, rows[name] - 1)
    return found


def _part(texts: pl.Series, length: int | None) -> pl.Series:
    """Return the first `length` characters of geo locations, None for all; null where there are none."""
    found = (texts if length is None else texts.str.slice(0, length)).str.strip_chars()
    return found.set(found == "", None)


def _coded(texts: pl.Series, length: int | None, dictionary: pl.DataFrame) -> np.ndarray:
    """Return the id of each geo location, int32; 0 for those that the dictionary lacks."""
    asked = pl.DataFrame([_part(texts, length).alias(engine.VALUE)]).join(dictionary, on=engine.VALUE, how="left", maintain_order="left")
    return asked["id"].fill_null(0).cast(pl.Int32).to_numpy()
