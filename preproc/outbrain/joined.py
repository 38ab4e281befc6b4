"""The tables that clicks are joined with: events, promoted content and documents, as arrays by index, whose last entry stands for a missing row.

Memory grows with displays, ads and the documents that an event or an ad names, not with clicks; other documents are not kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from preproc.outbrain.files import ASPECTS, EVENTS, META, PROMOTED, TABLES, RawFiles
from preproc.outbrain.places import Places, first_rows, with_none
from preproc.outbrain.similarity import Aspects, counted, summed
from preproc.shared.text_places import TextPlaces

NONE = -1  # stands for an id that is missing
NEVER = np.iinfo(np.int64).min  # an unknown time
DAY_S = 86_400
_START_MS = 1_465_876_799_998  # since 1970; the events' timestamps count from here
_DAY_MS = 1000 * DAY_S


@dataclass(frozen=True)
class Events:
    """The events, one for each of E displays, followed by an entry for displays without an event.

    Attributes:
        places: indices of the displays.
        document_ids: `[E + 1]`, -1 where there is none.
        days: `[E + 1]`, days since the first; -1 where there is no event.
        seconds: `[E + 1]`, seconds since 1970 in UTC; `NEVER` where there is no event.
        platforms: `[E + 1]`, 0 to 2, -1 where there is none.
        geo: `[E + 1]`, indices in `geo_texts`.
        geo_texts: distinct texts; the last is null, for events without one.
    """

    places: Places
    document_ids: np.ndarray
    days: np.ndarray
    seconds: np.ndarray
    platforms: np.ndarray
    geo: np.ndarray
    geo_texts: pl.Series


@dataclass(frozen=True)
class Promoted:
    """The P ads in the table of promoted content; missing ids are -1.

    Attributes:
        ids: ids of the ads, `[P]`, rising.
        documents, campaigns, advertisers: ids for each ad, `[P]`.
    """

    ids: np.ndarray
    documents: np.ndarray
    campaigns: np.ndarray
    advertisers: np.ndarray


@dataclass(frozen=True)
class Documents:
    """The D documents that an event or an ad names, followed by an entry for a missing document.

    Attributes:
        places: indices of the documents.
        sources, publishers: ids, `[D + 1]`, -1 where there is none.
        published: seconds since 1970, `[D + 1]`; `NEVER` where the time is unknown.
        aspects: vectors by kind: categories, topics, entities.
        total: number of documents in the table.
    """

    places: Places
    sources: np.ndarray
    publishers: np.ndarray
    published: np.ndarray
    aspects: Mapping[str, Aspects]
    total: int


def read_events(files: RawFiles) -> Events:
    """Read the events. Raises DatasetError."""
    geo = TextPlaces()

    def compact(rows: pl.DataFrame) -> pl.DataFrame:
        stamps = pl.col("timestamp")
        return rows.select(
            "display_id",
            pl.col("document_id").fill_null(NONE),
            (stamps // _DAY_MS).cast(pl.Int32).alias("day"),
            ((stamps + _START_MS) // 1000).alias("second"),
            (pl.col("platform") - 1).fill_null(NONE).cast(pl.Int8),
            "geo_location",
        )

    # Texts are encoded here and not on the threads, so that their codes follow the order of the file.
    frame = pl.concat(rows.with_columns(geo.of(rows["geo_location"])) for rows in files.blocks(EVENTS, compact))
    displays, first = _first_rows(files, EVENTS, frame)
    texts = geo.texts.extend(pl.Series([None], dtype=pl.String))
    column = lambda name, none: with_none(frame[name].to_numpy()[first], none)  # noqa: E731
    places = with_none(frame["geo_location"].fill_null(len(texts) - 1).to_numpy()[first], len(texts) - 1)
    held = (column("document_id", NONE), column("day", -1), column("second", NEVER), column("platform", NONE))
    return Events(Places(displays), *held, places, texts)


def read_promoted(files: RawFiles) -> Promoted:
    """Read the promoted content. Raises DatasetError."""
    frame = pl.concat(files.blocks(PROMOTED))
    ads, first = _first_rows(files, PROMOTED, frame)
    columns = (frame[name].fill_null(NONE).to_numpy()[first] for name in ("document_id", "campaign_id", "advertiser_id"))
    return Promoted(ads, *columns)


def read_documents(files: RawFiles, events: Events, promoted: Promoted) -> Documents:
    """Read the tables of documents, and keep the documents that the events and ads name. Raises DatasetError."""
    used = np.unique(np.concatenate([events.document_ids, promoted.documents]))
    places = Places(used[used >= 0])
    known, sources, publishers, published = _meta(files, places)
    aspects = {}
    for kind, table in ASPECTS.items():
        column = TABLES[table][1].name
        found = list(files.blocks(table, lambda rows, column=column: counted(places, rows, column)))
        aspects[kind] = Aspects([kept for kept, _ in found], summed(counts for _, counts in found), known, len(places))
    return Documents(places, sources, publishers, published, aspects, known)


def _meta(files: RawFiles, places: Places) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return the number of documents in the table, and source, publisher and time of each document in use.

    Documents that have a source but no publisher get a new publisher for each such source. The new ids follow all others, in the order of the
    sources' ids.
    """
    last, alone, kept, ids = NONE, set(), [], []
    lacks = pl.col("publisher_id").is_null() & pl.col("source_id").is_not_null()
    for rows in files.blocks(META):
        ids.append(rows["document_id"])
        last = max(last, rows["publisher_id"].max() or NONE)
        alone.update(rows.filter(lacks)["source_id"].unique())
        place = pl.Series("place", places.of(rows["document_id"].to_numpy()))
        kept.append(rows.with_columns(place).filter(pl.col("place") >= 0))
    known = len(_first_rows(files, META, pl.DataFrame([pl.concat(ids)]))[0])
    frame = pl.concat(kept).unique("place", keep="first", maintain_order=True)
    own = pl.DataFrame({"source_id": sorted(alone), "own": range(last + 1, last + 1 + len(alone))}, {"source_id": pl.Int64, "own": pl.Int64})
    frame = frame.join(own, on="source_id", how="left", maintain_order="left").with_columns(pl.coalesce("publisher_id", "own").alias("publisher_id"))
    of = frame["place"].to_numpy()

    def column(name: str, none: int) -> np.ndarray:
        values = np.full(len(places) + 1, none, np.int64)
        values[of] = frame[name].fill_null(none).to_numpy()
        return values

    return known, column("source_id", NONE), column("publisher_id", NONE), column("publish_time", NEVER)


def _first_rows(files: RawFiles, table: str, frame: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys of a table, which are its first column, and the first row of each; report duplicate keys."""
    name = frame.columns[0]
    ids = frame[name].to_numpy()
    keys, first = first_rows(ids)
    if len(keys) < len(ids):
        again = np.ones(len(ids), bool)
        again[first] = False
        files.twice(table, name, int(ids[np.argmax(again)]), len(ids) - len(keys))
    return keys, first


def days_between(earlier: np.ndarray, later: np.ndarray, most: int) -> np.ndarray:
    """Return the whole days between two times in seconds, `[n]` int64; 0 where a time is unknown, or the days are not within 0 and `most`."""
    known = (earlier != NEVER) & (later != NEVER)
    days = (np.where(known, later, 0) - np.where(known, earlier, 0)) // DAY_S
    return np.where((days >= 0) & (days <= most), days, 0)
