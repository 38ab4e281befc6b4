"""Conversion of clicks to features: a pure function of a block of clicks and of the fitted values."""

from typing import NamedTuple

import numpy as np
import polars as pl

from preproc.outbrain.features import AD_DAYS, CATEGORICAL, NUMERICAL, SIMILARITIES
from preproc.outbrain.fit import Fitted, modulo
from preproc.outbrain.joined import Documents, days_between
from preproc.outbrain.learning import MAX_DAYS


class DatasetRows(NamedTuple):
    """A block of n rows of a dataset.

    Attributes:
        ids: an array `[n]` for each categorical feature.
        numerical: `[n, 13]` float32.
        labels: `[n]` bool.
        groups: `[n]` int64.
    """

    ids: list[np.ndarray]
    numerical: np.ndarray
    labels: np.ndarray
    groups: np.ndarray


def features(rows: pl.DataFrame, fitted: Fitted, documents: Documents, ad_rows: int) -> DatasetRows:
    """Return the features of a block of clicks.

    Args:
        rows: `display_id` and `ad_id` Int64, `clicked` Boolean.
        fitted: values fitted on the training rows.
        documents: publication times and aspects of the documents.
        ad_rows: number of rows of the table of ads.
    """
    displays, ads = rows["display_id"].to_numpy(), rows["ad_id"].to_numpy()
    event, ad = fitted.events.of(displays), fitted.ads.of(ads)
    ids = {name: values[event] for name, values in fitted.event_ids.items()} | {name: values[ad] for name, values in fitted.ad_ids.items()}
    ids["ad_id"] = modulo(ads, ad_rows)
    numbers = {name: values[event] for name, values in fitted.event_numbers.items()} | {
        name: values[ad] for name, values in fitted.ad_numbers.items()
    }
    page, landing = fitted.event_documents[event], fitted.ad_documents[ad]
    numbers[AD_DAYS] = fitted.scales[AD_DAYS].of(days_between(documents.published[landing], fitted.event_seconds[event], MAX_DAYS))
    numbers |= _similarities(page, landing, documents)
    numerical = np.empty((len(rows), len(NUMERICAL)), np.float32)
    for place, name in enumerate(NUMERICAL):
        numerical[:, place] = numbers[name]
    return DatasetRows([ids[name] for name in CATEGORICAL], numerical, rows["clicked"].to_numpy(), displays)


def _similarities(pages: np.ndarray, landings: np.ndarray, documents: Documents) -> dict[str, np.ndarray]:
    """Return each similarity of n pairs of documents; each distinct pair is compared only once."""
    step = len(documents.places) + 1
    pairs, of = np.unique((pages.astype(np.int64) + 1) * step + landings + 1, return_inverse=True)
    first, second = pairs // step - 1, pairs % step - 1
    return {name: documents.aspects[kind].cosine(first, second)[of] for name, kind in SIMILARITIES.items()}
