"""Raw files in Outbrain's form for tests, the datasets made of them, and a second definition of the features in plain Python."""

import csv
import math
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from preproc.outbrain import command as outbrain
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in

START_MS, DAY_MS = 1_465_876_799_998, 86_400_000


def write_raw(folder: Path, tables: dict[str, str]) -> Path:
    """Write tables given as texts: a row a line, names first, values separated by blanks; _ is an empty value, and ^ a blank."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        rows = [line.split() for line in text.strip().splitlines()]
        (folder / f"{name}.csv").write_text("".join(",".join("" if v == "_" else v.replace("^", " ") for v in row) + "\n" for row in rows))
    return folder


def preprocessed(raw: Path, *flags: object) -> FeatureSpec:
    """Run the command in this process; the dataset is written beside the raw files."""
    destination = raw.with_name(f"{raw.name}-dataset")
    assert do(outbrain, "--src", raw, "--dst", destination, "--overwrite", *flags) == 0
    return spec_in(destination)


def columns(spec: FeatureSpec, split: str) -> dict[str, list]:
    """Return every feature of a split by its name."""
    rows = TfRawSplit(spec, split)
    n = rows.num_samples
    found = {feature.name: rows.read_ids(i, 0, n) for i, feature in enumerate(spec.categorical)}
    found |= dict(zip(spec.numerical, rows.read_numerical(0, n).T, strict=True))
    found |= {"label": rows.read_labels(0, n), "display_id": rows.read_group(0, n)}
    rows.close()
    return {name: values.tolist() for name, values in found.items()}


def split_mix(value: int) -> int:
    """Apply the finalizer of SplitMix64, in Python's integers."""
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) % 2**64
    return value ^ value >> 31


class Slow:
    """The features of raw files by dictionaries and loops, in float64, with the published thresholds and table sizes."""

    def __init__(self, raw: Path, seed: int = 0):
        read = lambda name: list(csv.DictReader((raw / f"{name}.csv").read_text().splitlines()))  # noqa: E731
        number = lambda text: -1 if text in ("", "\\N") else int(text)  # noqa: E731
        self.events = {int(row["display_id"]): row for row in read("events")}
        self.ads = {int(row["ad_id"]): {k: number(v) for k, v in row.items()} for row in read("promoted_content")}
        self.meta = {}
        meta = read("documents_meta")
        last = max(number(row["publisher_id"]) for row in meta)
        alone = sorted({int(row["source_id"]) for row in meta if row["source_id"] and not row["publisher_id"]})
        for row in meta:
            publisher = number(row["publisher_id"])
            if publisher < 0 and row["source_id"]:
                publisher = last + 1 + alone.index(int(row["source_id"]))
            text = row["publish_time"]
            time = None if not text else int(datetime.fromisoformat(text.removesuffix(".0")).replace(tzinfo=UTC).timestamp())
            self.meta[int(row["document_id"])] = (number(row["source_id"]), publisher, time)
        self.vectors = {kind: self._vectors(read(f"documents_{kind}"), len(meta)) for kind in ("categories", "topics", "entities")}
        clicks = [(int(row["display_id"]), int(row["ad_id"]), int(row["clicked"])) for row in read("clicks_train")]
        self.train = [click for click in clicks if not self.evaluates(click[0], seed)]
        self.test = sorted((click for click in clicks if self.evaluates(click[0], seed)), key=lambda click: click[0])
        self._fit()

    def evaluates(self, display: int, seed: int) -> bool:
        if display not in self.events:
            return False
        drawn = split_mix((display + (seed + 1) * 0x9E3779B97F4A7C15) % 2**64) < 0.2 * 2**64
        return int(self.events[display]["timestamp"]) // DAY_MS >= 11 or drawn

    @staticmethod
    def _vectors(rows: list[dict], documents: int) -> dict[int, dict[str, float]]:
        name = next(key for key in rows[0] if key not in ("document_id", "confidence_level"))
        frequency, found = Counter(row[name] for row in rows), defaultdict(dict)
        for row in rows:
            share = documents / frequency[row[name]]
            found[int(row["document_id"])][row[name]] = math.log(math.log(share)) * float(row["confidence_level"]) if share > math.e else 0.0
        return found

    def _keys(self, ad: int) -> dict[str, int]:
        """Return the keys that an ad shares with other ads."""
        row = self.ads.get(ad, {})
        document = row.get("document_id", -1)
        source, publisher, _ = self.meta.get(document, (-1, -1, None))
        keys = {"ad": ad, "document": document, "source": source, "publisher": publisher}
        return keys | {"advertiser": row.get("advertiser_id", -1), "campaign": row.get("campaign_id", -1)}

    def _days(self, document: int, display: int) -> int:
        time = self.meta.get(document, (-1, -1, None))[2]
        if time is None or display not in self.events:
            return 0
        days = ((int(self.events[display]["timestamp"]) + START_MS) // 1000 - time) // 86_400
        return days if 0 <= days <= 3650 else 0

    def _page(self, display: int) -> int:
        return int(self.events[display]["document_id"]) if display in self.events else -1

    def _counts(self, display: int, ad: int) -> dict[str, int]:
        """Return the four counts of a row before scaling."""
        keys = self._keys(ad)
        kept = {kind: self.views[kind][keys[kind]] if keys[kind] >= 0 and self.views[kind][keys[kind]] > 5 else 0 for kind in ("ad", "document")}
        days = {"doc_event_days_since_published": self._days(self._page(display), display)}
        days["doc_ad_days_since_published"] = self._days(keys["document"], display)
        return days | {"doc_views": kept["document"], "ad_views": kept["ad"]}

    def _fit(self) -> None:
        self.views, self.clicks = defaultdict(Counter), defaultdict(Counter)
        for _, ad, clicked in self.train:
            for kind, key in self._keys(ad).items():
                self.views[kind][key] += 1
                self.clicks[kind][key] += clicked
        counts = [self._counts(display, ad) for display, ad, _ in self.train]
        self.span = {name: (min(c[name] for c in counts), max(c[name] for c in counts)) for name in counts[0]}
        shown = {display for display, _, _ in self.train}
        self.codes = {}
        for name, cut in (("event_geo_location", None), ("event_country", 2), ("event_country_state", 5)):
            texts = Counter(self._geo(display)[:cut] for display in shown if self._geo(display))
            kept = sorted((text for text in texts if texts[text] >= 10), key=lambda text: (-texts[text], text.encode()))
            self.codes[name] = cut, {text: i + 1 for i, text in enumerate(kept)}

    def _geo(self, display: int) -> str:
        geo = self.events[display]["geo_location"] if display in self.events else ""
        return "" if geo == "\\N" else geo

    def _cosine(self, kind: str, first: int, second: int) -> float:
        a, b = self.vectors[kind].get(first, {}), self.vectors[kind].get(second, {})
        norms = math.sqrt(sum(w * w for w in a.values()) * sum(w * w for w in b.values()))
        return sum(w * b.get(aspect, 0.0) for aspect, w in a.items()) / norms if norms else 0.0

    def row(self, display: int, ad: int, clicked: int) -> dict[str, float]:
        """Return all that the dataset holds of a click."""
        keys, page, found = self._keys(ad), self._page(display), {"label": clicked, "display_id": display}
        platform = self.events[display]["platform"] if display in self.events else "\\N"
        source, publisher, _ = self.meta.get(page, (-1, -1, None))
        ids = {
            "ad_id": (ad, 250000),
            "campaign_id": (keys["campaign"], 5000),
            "doc_event_id": (page, 300000),
            "event_platform": (-1 if platform == "\\N" else int(platform) - 1, 4),
            "doc_id": (keys["document"], 100000),
            "ad_advertiser": (keys["advertiser"], 2500),
            "doc_event_source_id": (source, 4000),
            "doc_event_publisher_id": (publisher, 1000),
            "doc_ad_source_id": (keys["source"], 4000),
            "doc_ad_publisher_id": (keys["publisher"], 1000),
        }
        found |= {name: value % rows for name, (value, rows) in ids.items()}
        found |= {name: codes.get(self._geo(display)[:cut], 0) for name, (cut, codes) in self.codes.items()}
        for name, kind in (("document_id", "document"), ("publisher_id", "publisher"), ("source_id", "source"), ("ad_id", "ad")):
            found[f"pop_{name}"] = self._rate(kind, keys[kind])
        found |= {"pop_advertiser_id": self._rate("advertiser", keys["advertiser"]), "pop_campain_id": self._rate("campaign", keys["campaign"])}
        for name, count in self._counts(display, ad).items():
            low, high = self.span[name]
            scaled = (math.log2(1 + count) - math.log2(1 + low)) / (math.log2(1 + high) - math.log2(1 + low)) if high > low else 0.0
            found[f"{name}_log_01scaled"] = min(max(scaled, 0.0), 1.0)
        return found | {f"doc_event_doc_ad_sim_{kind}": self._cosine(kind, page, keys["document"]) for kind in self.vectors}

    def _rate(self, kind: str, key: int) -> float:
        views = self.views[kind][key]
        return self.clicks[kind][key] / views if key >= 0 and views > (5 if kind in ("ad", "document") else 10) else 0.0


def assert_equal(found: dict[str, list], rows: list[dict[str, float]]) -> None:
    """Check that integers are equal, and other numbers equal to 1e-6."""
    assert found.keys() == rows[0].keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, [row[name] for row in rows], rtol=0, atol=1e-6 if isinstance(values[0], float) else 0, err_msg=name)
