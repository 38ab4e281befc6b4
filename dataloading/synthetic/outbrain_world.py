"""The fixed part of synthetic Outbrain data, shared by all displays: ads, documents, places, and the preferences behind the clicks.

`OutbrainWorld.utilities` returns the utility of ad a in display d, the sum of

    ad + campaign + advertiser + publisher of the ad's document        the worth of an ad in any display
    + [same first category as the page]                                visible in the similarity of both documents
    + platform x advertiser + country x advertiser                     small products

The utility depends only on values in the files: a missing value has an effect of its own.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from dataloading.synthetic.power_law import ids_from_uniforms
from dataloading.synthetic.streams import stream_generator

CATEGORIES, TOPICS_EACH, ENTITIES_EACH, PLATFORMS = 20, 4, 30, 3
_STDS = {"ad": 0.7, "campaign": 0.45, "advertiser": 0.35, "publisher": 0.3, "platform": 0.12, "country": 0.12}
_SAME_CATEGORY = 0.7
_START_S = 1_465_876_799  # 14 June 2016, the origin of the timestamps of events
_DAY_S = 86_400
_SHARE = {"no source": 0.03, "no publisher": 0.05, "no time": 0.1, "not in the table": 0.02, "no category": 0.05}
_COUNTRIES = ("US", "GB", "CA", "AU", "IN", "ZA", "NZ", "PH", "SG", "DE", "FR", "NL", "IE", "SE", "BR", "MX", "JP", "AE", "MY", "IT")


@dataclass(frozen=True)
class Sizes:
    """The number of distinct entities of each kind in a world."""

    ads: int
    campaigns: int
    advertisers: int
    pages: int
    landings: int
    others: int
    publishers: int
    sources: int
    places: int

    @classmethod
    def of(cls, displays: int) -> "Sizes":
        """Return sizes with which an ad is shown some hundred times, and its campaign and advertiser more often."""
        ads = max(60, displays // 100)
        pages, landings = max(50, displays // 100), max(30, ads // 2)
        documents = pages + landings
        return cls(
            ads=ads,
            campaigns=max(20, ads // 5),
            advertisers=max(10, ads // 12),
            pages=pages,
            landings=landings,
            others=documents // 3,
            publishers=max(10, documents // 30),
            sources=max(20, documents // 20),
            places=min(2000, max(60, displays // 50)),
        )

    @property
    def documents(self) -> int:
        """The number of documents: pages that show ads, landing pages, and documents that no display names."""
        return self.pages + self.landings + self.others


class OutbrainWorld:
    """Ads, documents and places of a world, and the utilities that clicks are drawn from: a function of sizes and seed.

    Attributes:
        sizes: the number of entities of each kind.
        ad_ids: `[ads]`, the ids in the files.
        document_ids: `[documents]`; pages come first, then landing documents.
        geo: texts of the places, `[places]`.
    """

    def __init__(self, sizes: Sizes, seed: int, signal: float = 1.0):
        self.sizes, self._seed, draw = sizes, seed, stream_generator(seed, "outbrain world")
        self.ad_ids, self.document_ids = _distinct(draw, sizes.ads), _distinct(draw, sizes.documents)
        self._landing = sizes.pages + _power(draw, sizes.ads, sizes.landings, 0.5)
        self._campaign = _power(draw, sizes.ads, sizes.campaigns, 0.5)
        self._advertiser = _power(draw, sizes.campaigns, sizes.advertisers, 0.5)[self._campaign]
        self._source = np.where(_missing(draw, sizes.documents, "no source"), -1, _power(draw, sizes.documents, sizes.sources, 0.7))
        publisher = draw.integers(0, sizes.publishers, sizes.sources)[self._source]
        self._publisher = np.where(_missing(draw, sizes.documents, "no publisher"), -1, publisher)
        self._known = ~_missing(draw, sizes.documents, "not in the table")
        category = _power(draw, sizes.documents, CATEGORIES, 0.5)
        self._category = np.where(_missing(draw, sizes.documents, "no category"), -1, category)
        self._published = _times(draw, sizes.documents)
        self.geo, self._country = _places(draw, sizes.places)
        self._draw_effects(draw, signal)

    def _draw_effects(self, draw: np.random.Generator, signal: float) -> None:
        def effects(kind: str, *shape: int) -> np.ndarray:
            return signal * _STDS[kind] * draw.standard_normal(shape)

        sizes = self.sizes
        publisher = np.where(self._known, self._publisher, -1)[self._landing]
        self._worth = effects("ad", sizes.ads) + effects("campaign", sizes.campaigns)[self._campaign]
        self._worth += effects("advertiser", sizes.advertisers)[self._advertiser] + effects("publisher", sizes.publishers + 1)[publisher]
        self._by_platform = effects("platform", PLATFORMS + 1, sizes.advertisers)
        self._by_country = effects("country", len(_COUNTRIES) + 1, sizes.advertisers)
        self._same_category = signal * _SAME_CATEGORY

    def utilities(self, ads: np.ndarray, pages: np.ndarray, platforms: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the utilities of n shown ads, `[n]` float64.

        Args:
            ads: indices of the ads, `[n]`.
            pages: indices of the documents that show them, -1 for unknown.
            platforms: 0, 1 or 2, or -1 if missing in the files.
            places: indices of the geo locations, -1 if missing in the files.
        """
        advertiser, category = self._advertiser[ads], self._category[self._landing[ads]]
        same = (category >= 0) & (pages >= 0) & (category == self._category[pages])
        country = np.where(places >= 0, self._country[places], -1)
        found = self._worth[ads] + self._same_category * same
        return found + self._by_platform[platforms, advertiser] + self._by_country[country, advertiser]

    def promoted_content(self) -> pl.DataFrame:
        """Return the table of ads, sorted by id."""
        columns = {"ad_id": self.ad_ids, "document_id": self.document_ids[self._landing]}
        return pl.DataFrame(columns | {"campaign_id": 1 + 3 * self._campaign, "advertiser_id": 2 + 5 * self._advertiser}).sort("ad_id")

    def documents_meta(self) -> pl.DataFrame:
        """Return the documents that are in the table, sorted by id; missing values are null."""
        frame = pl.DataFrame({"document_id": self.document_ids, "source_id": self._source, "publisher_id": self._publisher, "time": self._published})
        given = lambda name, text: pl.when(pl.col(name) >= 0).then(text).alias(name)  # noqa: E731
        time = pl.from_epoch(pl.col("time"), "s").dt.strftime("%Y-%m-%d %H:%M:%S.0")
        columns = ("document_id", given("source_id", pl.col("source_id") + 1), given("publisher_id", 2 * pl.col("publisher_id") + 1))
        return frame.filter(self._known).select(*columns, given("time", time).alias("publish_time")).sort("document_id")

    def aspects(self) -> dict[str, pl.DataFrame]:
        """Return categories, topics and entities of the documents, each with a confidence, by the names of their tables."""
        draw, of = stream_generator(self._seed, "outbrain aspects"), np.flatnonzero(self._category >= 0)
        category = self._category[of]
        second = draw.random(len(of)) < 0.3
        rows = {
            "category_id": [
                (of, 1000 + category, 0.92),
                (of[second], 1000 + (category[second] + draw.integers(1, CATEGORIES, second.sum())) % CATEGORIES, 0.07),
            ],
            "topic_id": [(of, category * TOPICS_EACH + draw.integers(0, TOPICS_EACH, len(of)), 0.4), (of, self._other_topics(draw, category), 0.1)],
            "entity_id": [(of, category * ENTITIES_EACH + place, 0.6) for place in draw.integers(0, ENTITIES_EACH, (2, len(of)))],
        }
        tables = {"category_id": "documents_categories", "topic_id": "documents_topics", "entity_id": "documents_entities"}
        return {tables[name]: self._aspect(draw, name, parts) for name, parts in rows.items()}

    def _other_topics(self, draw: np.random.Generator, category: np.ndarray) -> np.ndarray:
        """Draw topics of other categories, so that no document has a topic twice."""
        return (category + draw.integers(1, CATEGORIES, len(category))) % CATEGORIES * TOPICS_EACH + draw.integers(0, TOPICS_EACH, len(category))

    def _aspect(self, draw: np.random.Generator, name: str, parts: list[tuple[np.ndarray, np.ndarray, float]]) -> pl.DataFrame:
        documents, values = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        confidence = np.concatenate([draw.uniform(0.5, 1.0, len(part[0])) * part[2] for part in parts])
        columns = {"document_id": self.document_ids[documents], name: values, "confidence_level": confidence.round(6)}
        frame = pl.DataFrame(columns).unique(["document_id", name], keep="first", maintain_order=True).sort("document_id", maintain_order=True)
        if name == "entity_id":
            texts = pl.Series([f"{i * 2654435761 % 2**32:08x}" * 4 for i in range(CATEGORIES * ENTITIES_EACH)])
            frame = frame.with_columns(texts.gather(frame[name]).alias(name))
        return frame


def _distinct(draw: np.random.Generator, count: int) -> np.ndarray:
    """Draw `count` distinct numbers from 1 to 3 · count, in random order."""
    return 1 + draw.permutation(3 * count)[:count]


def _power(draw: np.random.Generator, count: int, rows: int, alpha: float) -> np.ndarray:
    return ids_from_uniforms(draw.random(count), rows, alpha).astype(np.int64)


def _missing(draw: np.random.Generator, count: int, what: str) -> np.ndarray:
    return draw.random(count) < _SHARE[what]


def _times(draw: np.random.Generator, count: int) -> np.ndarray:
    """Draw publication times in seconds: most in the year before the events, a few ten years or more before, a few after; -1 if missing."""
    days = np.round(np.abs(draw.standard_normal(count)) * 150 - 5)
    days = np.where(draw.random(count) < 0.01, 4000.0, days)
    return np.where(_missing(draw, count, "no time"), -1, (_START_S - _DAY_S * days - draw.integers(0, _DAY_S, count)).astype(np.int64))


def _places(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct texts country>state>market, and the country of each."""
    countries = ids_from_uniforms(draw.random(count), len(_COUNTRIES), 1.0).astype(np.int64)
    countries[: len(_COUNTRIES)] = np.arange(len(_COUNTRIES))
    texts = []
    for place, country in enumerate(countries.tolist()):
        state = f"{chr(65 + place % 26)}{chr(65 + place // 26 % 5)}"
        texts.append(_COUNTRIES[country] + ("" if place < len(_COUNTRIES) else f">{state}>{500 + place}" if country == 0 else f">{state}{place}"))
    return np.array(texts), countries
