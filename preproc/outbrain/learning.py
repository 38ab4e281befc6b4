"""Statistics of the clicks of training displays: clicks and views of each ad, the events that occur, and the range of the ads' ages."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from preproc.outbrain.joined import Documents, Events, Promoted, days_between
from preproc.outbrain.places import Places, with_none
from preproc.outbrain.split import SplitRule

MAX_DAYS = 3650  # the age of older documents, and of those published after the event, counts as unknown
_COUNTS = {"ad_id": pl.Int64, "views": pl.Int64, "clicks": pl.Int64}
_ADDED_UP = 32  # number of blocks after which their counts are merged


class Joined(NamedTuple):
    """The tables that clicks are joined with, and the rule that splits them."""

    events: Events
    promoted: Promoted
    documents: Documents
    rule: SplitRule


class Found(NamedTuple):
    """The statistics of a block of n clicks.

    Attributes:
        evaluates: mask of the rows for evaluation, `[n]` bool.
        missing: numbers of rows whose display, ad or ad's document is in no table: `displays`, `ads`, `documents`.
        alone: distinct displays without an event.
        events: distinct indices of the rows' events, -1 for a row without one; by whether the rows are for evaluation.
        counts: `ad_id`, `views` and `clicks` of training rows.
        days: least and greatest age of an ad's document in training rows, in days; None where there are no such rows.
    """

    evaluates: np.ndarray
    missing: dict[str, int]
    alone: np.ndarray
    events: dict[bool, np.ndarray]
    counts: pl.DataFrame
    days: tuple[int, int] | None


@dataclass
class RunningStatistics:
    """The statistics of all blocks. Blocks may be added in any order: sums, minima and maxima do not depend on it.

    Attributes:
        rows, clicks: counts, by whether rows are for evaluation.
        events: mask of the events that rows have, `[E + 1]` bool, by whether rows are for evaluation.
        missing: see `Found`.
        days: see `Found`; (0, 0) where there are no training rows.
        last_display: the greatest display id.
    """

    num_events: int
    rows: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    clicks: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    missing: dict[str, int] = field(default_factory=dict)
    days: tuple[int, int] = (0, 0)
    last_display: int = 0

    def __post_init__(self):
        self.events = {split: np.zeros(self.num_events + 1, bool) for split in (False, True)}
        self._counts: list[pl.DataFrame] = []
        self._alone: list[np.ndarray] = []

    def add(self, rows: pl.DataFrame, found: Found) -> None:
        """Add a block."""
        clicked = rows["clicked"].to_numpy()
        for split, chosen in ((False, ~found.evaluates), (True, found.evaluates)):
            self.rows[split] += int(chosen.sum())
            self.clicks[split] += int(clicked[chosen].sum())
            self.events[split][found.events[split]] = True
        self._alone += [found.alone] if len(found.alone) else []
        for name, count in found.missing.items():
            self.missing[name] = self.missing.get(name, 0) + count
        if found.days is not None:
            self.days = found.days if not self._counts else (min(self.days[0], found.days[0]), max(self.days[1], found.days[1]))
            self._counts.append(found.counts)
        if len(self._counts) == _ADDED_UP:
            self._counts = [added_up(self._counts)]
        self.last_display = max(self.last_display, rows["display_id"].max() or 0)

    def displays(self, evaluates: bool) -> int:
        """Return the number of distinct displays that are for evaluation, or of those for training."""
        alone = 0 if evaluates or not self._alone else len(np.unique(np.concatenate(self._alone)))
        return int(self.events[evaluates][:-1].sum()) + alone

    @property
    def counts(self) -> pl.DataFrame:
        """The `ad_id`, `views` and `clicks` of the training rows, in the order of the ads."""
        return added_up(self._counts).sort("ad_id")


def added_up(counts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Add up the counts of several blocks; the result is in no order."""
    return pl.concat([pl.DataFrame(schema=_COUNTS), *counts]).group_by("ad_id").agg(pl.col("views", "clicks").sum())


class Learner:
    """A reader of blocks of clicks. The result for a block does not depend on other blocks, so that any process may read any block."""

    def __init__(self, joined: Joined):
        self._joined, documents = joined, joined.documents
        self._ads = Places(joined.promoted.ids)
        self._ad_documents = with_none(documents.places.of(joined.promoted.documents), -1)

    def found(self, rows: pl.DataFrame) -> Found:
        """Return the statistics of a block of `display_id` and `ad_id` Int64, `clicked` Boolean."""
        events, _, documents, rule = self._joined
        event, ad = events.places.of(rows["display_id"].to_numpy()), self._ads.of(rows["ad_id"].to_numpy())
        evaluates = rule.evaluates(rows["display_id"].to_numpy(), events.days[event])
        train = ~evaluates
        document = self._ad_documents[ad]
        missing = {"displays": event < 0, "ads": ad < 0, "documents": (ad >= 0) & (document < 0)}
        days = days_between(documents.published[document], events.seconds[event], MAX_DAYS)[train]
        counts = (
            rows.filter(train).group_by("ad_id").agg(pl.len().cast(pl.Int64).alias("views"), pl.col("clicked").sum().cast(pl.Int64).alias("clicks"))
        )
        used = {split: np.unique(event[evaluates == split]) for split in (False, True)}
        span = (int(days.min()), int(days.max())) if len(days) else None
        alone = np.unique(rows["display_id"].to_numpy()[event < 0])
        return Found(evaluates, {name: int(where.sum()) for name, where in missing.items()}, alone, used, counts, span)
