"""The features of Wide & Deep by name: 13 categorical, 13 numerical, label and group; the table sizes of the first are read from a file."""

import json
from collections.abc import Mapping
from pathlib import Path

from dataloading.feature_spec import Categorical, FeatureSpec, smallest_dtype
from utils.errors import UserError

GEO, COUNTRY, STATE = "event_geo_location", "event_country", "event_country_state"
DICTIONARIES = {GEO: None, COUNTRY: 2, STATE: 5}  # number of leading characters of a geo location; None for all
CATEGORICAL = (
    "ad_id",
    "campaign_id",
    "doc_event_id",
    "event_platform",
    "doc_id",
    "ad_advertiser",
    "doc_event_source_id",
    "doc_event_publisher_id",
    "doc_ad_source_id",
    "doc_ad_publisher_id",
    GEO,
    COUNTRY,
    STATE,
)
EVENT_DAYS, AD_DAYS = "doc_event_days_since_published_log_01scaled", "doc_ad_days_since_published_log_01scaled"
DOCUMENT_VIEWS, AD_VIEWS = "doc_views_log_01scaled", "ad_views_log_01scaled"
RATES = {  # click-through rates of the ads that have this in common
    "pop_document_id": "document",
    "pop_publisher_id": "publisher",
    "pop_source_id": "source",
    "pop_ad_id": "ad",
    "pop_advertiser_id": "advertiser",
    "pop_campain_id": "campaign",
}
SIMILARITIES = {f"doc_event_doc_ad_sim_{kind}": kind for kind in ("categories", "topics", "entities")}
NUMERICAL = (
    EVENT_DAYS,
    DOCUMENT_VIEWS,
    "pop_document_id",
    "pop_publisher_id",
    "pop_source_id",
    AD_DAYS,
    AD_VIEWS,
    "pop_ad_id",
    "pop_advertiser_id",
    "pop_campain_id",
    *SIMILARITIES,
)
LABEL, GROUP = "label", "display_id"
_LEAST_ROWS = {"event_platform": 4}  # three platforms, and one row for a missing one


def read_sizes(path: Path) -> dict[str, tuple[int, int]]:
    """Read the rows and columns of each categorical feature's table. Raises UserError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--table_sizes {path}: cannot be read as JSON: {error}") from None
    example = '{"ad_id": {"rows": 250000, "embedding_dim": 128}, …}'
    if not isinstance(content, dict) or set(content) != {*CATEGORICAL}:
        differ = sorted({*CATEGORICAL} ^ set(content)) if isinstance(content, dict) else []
        raise UserError(f"--table_sizes {path}: expected the 13 categorical features, as in {example}{f'; differs in {differ[0]}' if differ else ''}")
    sizes = {}
    for name in CATEGORICAL:
        entry, least = content[name], _LEAST_ROWS.get(name, 2)
        if not isinstance(entry, dict) or set(entry) != {"rows", "embedding_dim"}:
            raise UserError(f"--table_sizes {path}: {name}: expected rows and embedding_dim, as in {example}")
        for key, smallest in (("rows", least), ("embedding_dim", 1)):
            if type(entry[key]) is not int or not smallest <= entry[key] < 2**31:
                raise UserError(f"--table_sizes {path}: {name}: {key}: {entry[key]!r}, expected a whole number from {smallest} to 2147483647")
        sizes[name] = entry["rows"], entry["embedding_dim"]
    return sizes


def spec_of(sizes: Mapping[str, tuple[int, int]], last_display: int) -> FeatureSpec:
    """Return the specification of the dataset; `last_display` is the greatest display id."""
    categorical = tuple(Categorical(name, rows, smallest_dtype(rows), embedding_dim=dim) for name, (rows, dim) in sizes.items())
    dtypes = {feature.name: feature.dtype for feature in categorical} | dict.fromkeys(NUMERICAL, "float32")
    dtypes |= {LABEL: "bool", GROUP: "int32" if last_display < 2**31 else "int64"}
    return FeatureSpec(categorical, NUMERICAL, LABEL, dtypes, group=GROUP)
